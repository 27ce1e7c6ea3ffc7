// Selected runs side by side. Runs that differ in nothing but the seed form a group.
import { Chart, shortNumber } from "./chart.js";
import { Table, h, setText, svg } from "./dom.js";
import { Scale, meanStd, whole } from "./format.js";
import { HeatMap } from "./heatmap.js";
import { Problems, card, link } from "./parts.js";
import { mark, scatter } from "./scatter.js";

const NOT_COMPARED = new Set(["seed", "out", "data", "workers", "threads", "engine", "device", "ray_address", "cpus_per_client", "gpus_per_client", "trackers", "checkpoint_seconds"]);
const MEAN = "mean of the domains trained so far";

export class ComparePage {
  constructor(runs) {
    this.title = "Compare";
    this.view = runs.length ? "compare" : null;
    this.runs = new Map();
    this.problems = new Problems();
    this.status = h("p", { class: "soft" }, "reading the runs …");
    if (!runs.length) {
      this.element = h("div", {}, h("div", { class: "title" }, h("h1", {}, "Compare")), h("p", { class: "empty" }, "Nothing is selected. ", h("a", { href: "#/" }, "Select runs"), " in the list, then choose Compare."));
      return;
    }
    this.legend = h("ul", { class: "legend" });
    this.choice = h("select", { "aria-label": "Accuracy on", onchange: () => this.showCurves() }, h("option", {}, MEAN));
    this.curves = new Chart({ title: "Accuracy over rounds", height: 290 });
    this.losses = new Chart({ title: "Training loss", format: shortNumber });
    this.cloud = h("div", { class: "cloud" });
    this.means = new Table([["Group"], ["Runs"], ["ACC"], ["BWT"], ["Worst drop"], ["s per round"]], "No run was evaluated yet.");
    this.seeds = h("div");
    this.matrices = h("div", { class: "matrices" });
    this.settings = h("div");
    this.titles = { curves: h("span"), means: h("span"), matrices: h("span") };
    this.element = h(
      "div",
      {},
      h("div", { class: "title" }, h("h1", {}, "Compare"), this.status),
      this.problems.element,
      this.legend,
      h(
        "div",
        { class: "cards" },
        card(this.titles.curves, [h("label", { class: "choice" }, "Domain ", this.choice), this.curves.element], { wide: true }),
        card("ACC against BWT", this.cloud, { note: "Large marks: mean over seeds, with one standard deviation; small marks: single runs." }),
        h(
          "div",
          { class: "stack" },
          card(this.titles.means, this.means.element),
          card("Differences per seed", this.seeds, { note: "With the same seed, runs have the same clients, batches and initial weights." }),
        ),
        card(this.titles.matrices, this.matrices, { wide: true }),
        card("Settings that differ", this.settings, { wide: true }),
        card("Training loss", this.losses.element, { wide: true }),
      ),
    );
  }

  redraw() {
    this.curves?.redraw();
    this.losses?.redraw();
  }

  update(parts) {
    for (const [name, part] of Object.entries(parts)) {
      if (!name.startsWith("run/")) continue;
      if (part === null) this.runs.delete(name.slice(4));
      else this.runs.set(name.slice(4), part);
    }
    if (parts.missing) this.missing = parts.missing;
    this.group();
    this.showScale();
    this.problems.update([...(this.missing ?? []).map((file) => ({ file, text: "there is no such run in this folder" })), ...[...this.runs].flatMap(([run, one]) => one.problems.map((p) => ({ file: `${run}/${p.file}`, text: p.text })))]);
    const reading = [...this.runs.values()].filter((one) => one.read < 1).length;
    setText(this.status, `${this.runs.size} runs in ${this.groups.length} groups${reading ? `; reading ${reading} event logs …` : ""}${this.mixed ? "; their main metrics differ, so values cannot be compared" : ""}`);
    this.showLegend();
    this.showChoice();
    this.showCurves();
    this.showMeans();
    this.showMatrices();
    this.showSeeds();
    this.showSettings();
  }

  group() {
    const all = [...this.runs];
    const keys = [...new Set(all.flatMap(([, one]) => Object.keys(one.settings)))];
    this.differing = keys.filter((key) => key !== "out" && new Set(all.map(([, one]) => one.settings[key])).size > 1);
    const own = this.differing.filter((key) => !NOT_COMPARED.has(key));
    const groups = new Map();
    for (const [run, one] of all) {
      const known = own.filter((key) => key !== "method" && one.settings[key] !== undefined); // the others are of other methods
      const named = [one.row.method, ...known.map((key) => `${key}=${one.settings[key]}`)];
      const label = Object.keys(one.settings).length ? named.join(" ") : one.row.method;
      const key = JSON.stringify([one.row.benchmark, label]);
      if (!groups.has(key)) groups.set(key, { label, number: groups.size, benchmark: one.row.benchmark, members: [] });
      groups.get(key).members.push([run, one]);
    }
    const found = [...groups.values()];
    const short = new Set(found.map((group) => `${group.benchmark} ${group.members[0][1].row.method}`));
    for (const group of found) {
      if (short.size === found.length) group.label = group.members[0][1].row.method;
      if (new Set(found.map((other) => other.benchmark)).size > 1) group.label = `${group.benchmark}: ${group.label}`;
      for (const key of ["acc", "bwt", "worst_drop", "seconds_per_round"]) group[key] = meanStd(group.members.map(([, one]) => one.results[key]));
      group.runs = group.members.map(([, one]) => ({ acc: one.results.acc, bwt: one.results.bwt }));
    }
    this.groups = found;
  }

  // Runs with different main metrics can stand side by side, but their values are written as those of the first run.
  showScale() {
    const scales = [...this.runs.values()].map((one) => new Scale(one.row.metric));
    this.mixed = new Set(scales.map((scale) => scale.key)).size > 1;
    this.scale = scales[0] ?? new Scale();
    const { title, unit, range } = this.scale;
    this.curves.options.range = range;
    setText(this.titles.curves, `${title} over rounds${unit}`);
    setText(this.titles.means, `Mean ± standard deviation over seeds${unit}`);
    setText(this.titles.matrices, `${title} matrices, mean over seeds${unit}`);
  }

  showLegend() {
    this.legend.replaceChildren(
      ...this.groups.map((group) => {
        const sign = svg("svg", { viewBox: "-9 -9 18 18", class: `sign series-${(group.number % 8) + 1}`, "aria-hidden": "true" }, mark(group.number, 1.1));
        const links = group.members.map(([run, one]) => h("a", { href: link("run", [run]), title: run }, one.row.seed === null ? run : `seed ${one.row.seed}`));
        return h("li", {}, sign, h("b", {}, group.label), ...links);
      }),
    );
  }

  showChoice() {
    const tasks = [...new Set([...this.runs.values()].flatMap((one) => one.curves.tasks))];
    const wanted = [MEAN, ...tasks];
    if (wanted.length === this.choice.options.length && wanted.every((name, i) => this.choice.options[i].text === name)) return;
    const now = this.choice.value;
    this.choice.replaceChildren(...wanted.map((name) => h("option", {}, name)));
    if (wanted.includes(now)) this.choice.value = now;
  }

  showCurves() {
    const lines = this.groups.flatMap((group) => group.members.map(([, one]) => ({ group, one })));
    const series = lines.map(({ group, one }) => ({ label: `${group.label}, seed ${one.row.seed ?? "–"}`, number: group.number, width: group.members.length > 1 ? 1.4 : 2 }));
    const x = this.axis(lines.map(({ one }) => one));
    const joined = (read) => uPlot.join(lines.map(({ one }) => [one.curves.rounds, read(one.curves)]));
    if (!lines.length) return;
    const name = this.choice.value;
    this.curves.update(series, joined((curves) => (name === MEAN ? meanCurve(curves, this.scale) : (curves.columns[`accuracy/${name}`] ?? curves.rounds.map(() => null)).map((value) => this.scale.scaled(value)))), x);
    this.losses.update(series, joined((curves) => curves.columns.loss), x);
  }

  axis(runs) {
    const total = Math.max(1, ...runs.map((one) => one.row.total || one.curves.rounds.at(-1) || 1));
    const first = runs[0]?.curves;
    const same = first && runs.every((one) => one.curves.per_task === first.per_task && JSON.stringify(one.curves.points) === JSON.stringify(first.points));
    return same ? { total, per_task: first.per_task, points: first.points } : { total };
  }

  showMeans() {
    const { scale } = this;
    const shown = (value) => (value === null ? "–" : value.std === null ? scale.text(value.mean) : `${scale.text(value.mean)} ± ${scale.text(value.std)}`);
    this.means.update(this.groups.map((group) => [group.label, whole(group.members.length), shown(group.acc), shown(group.bwt), shown(group.worst_drop), group.seconds_per_round ? shortNumber(group.seconds_per_round.mean) : "–"]));
    const space = this.cloud.clientWidth || 520;
    const text = JSON.stringify([space, scale.key, this.groups.map(({ label, acc, bwt, runs }) => [label, acc, bwt, runs])]);
    if (text === this.drawn) return;
    this.drawn = text;
    const some = this.groups.some((group) => group.acc && group.bwt);
    this.cloud.replaceChildren(some ? scatter(this.groups, space, scale) : h("p", { class: "soft" }, "BWT is defined when two tasks are finished."));
  }

  showMatrices() {
    const shape = JSON.stringify(this.groups.map((group) => group.label));
    if (shape !== this.shape) {
      this.shape = shape;
      this.maps = this.groups.map(() => new HeatMap());
      this.matrices.replaceChildren(...this.groups.map((group, i) => h("figure", {}, h("figcaption", {}, group.label), h("div", { class: "scroll" }, this.maps[i].table))));
    }
    this.groups.forEach((group, i) => {
      const matrices = group.members.map(([, one]) => one.matrix);
      const { tasks, points } = matrices[0];
      const rows = points.map((_, r) => tasks.map((_, c) => meanStd(matrices.map((matrix) => matrix.rows[r]?.[c] ?? null))?.mean ?? null));
      this.maps[i].update(tasks, rows, this.scale, points);
    });
  }

  // Each group is compared with the first one on its benchmark: on another, a seed gives other data.
  showSeeds() {
    const { scale } = this;
    const firsts = new Map([...this.groups].reverse().map((group) => [group.benchmark, group]));
    const bySeed = (group) => new Map(group.members.map(([, one]) => [one.row.seed, one.results]));
    const others = this.groups.filter((group) => firsts.get(group.benchmark) !== group);
    const tables = others.map((group) => {
      const first = firsts.get(group.benchmark);
      const [base, mine] = [bySeed(first), bySeed(group)];
      const seeds = [...mine.keys()].filter((seed) => base.has(seed)).sort((a, b) => a - b);
      const change = (key, seed) => (mine.get(seed)[key] == null || base.get(seed)[key] == null ? null : mine.get(seed)[key] - base.get(seed)[key]);
      const table = new Table([["Seed"], ["ACC"], ["BWT"]], "No seed occurs in both groups.");
      const lines = seeds.map((seed) => [String(seed), scale.signed(change("acc", seed)), scale.signed(change("bwt", seed))]);
      const total = (key) => {
        const found = meanStd(seeds.map((seed) => change(key, seed)));
        return found === null ? "–" : `${scale.signed(found.mean)}${found.std === null ? "" : ` ± ${scale.text(found.std)}`}`;
      };
      if (seeds.length > 1) lines.push(["mean ± std", total("acc"), total("bwt")]);
      table.update(lines);
      return h("figure", {}, h("figcaption", {}, `${group.label} − ${first.label}${scale.changeUnit}`), table.element);
    });
    this.replace(this.seeds, tables.length ? tables : [h("p", { class: "soft" }, "No two groups are on the same benchmark.")]);
  }

  showSettings() {
    const keys = this.differing.filter((key) => key !== "seed");
    const table = new Table([["Setting"], ...this.groups.map((group) => [group.label, "text"])], "These runs differ in their seeds only.");
    table.update(keys.map((key) => [key, ...this.groups.map((group) => [...new Set(group.members.map(([, one]) => one.settings[key] ?? "–"))].join(", "))]));
    this.replace(this.settings, [table.element]);
  }

  // Replaces only if the texts differ, so that a selection or the position of scrolling is kept.
  replace(parent, children) {
    const text = children.map((child) => child.textContent).join("\n");
    if (parent.textContent !== children.map((child) => child.textContent).join("") || !parent.firstChild || text === "") parent.replaceChildren(...children);
  }
}

// At each round the mean over the domains that were evaluated there.
function meanCurve({ columns, rounds, tasks }, scale) {
  return rounds.map((_, i) => {
    const found = meanStd(tasks.map((name) => columns[`accuracy/${name}`][i] ?? null));
    return found === null ? null : scale.scaled(found.mean);
  });
}
