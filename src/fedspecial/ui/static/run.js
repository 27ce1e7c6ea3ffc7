// One run, live.
import { Chart, shortNumber } from "./chart.js";
import { Table, h, setText } from "./dom.js";
import { Scale, bytes, duration, whole } from "./format.js";
import { ParticipationGrid } from "./grid.js";
import { HeatMap } from "./heatmap.js";
import { Problems, StateBadge, Tiles, card, copyable, link } from "./parts.js";

const TILES = { acc: "ACC", bwt: "BWT", worst_drop: "Worst drop", rounds: "Rounds", left: "Time left", per_round: "Time per round" };

// Settings that are shown first; those that are not set come last.
const FIRST = ["benchmark", "method", "lam", "mu", "seed", "model", "rounds", "clients", "clients_per_round"];

export class RunPage {
  constructor([run = ""]) {
    this.run = run;
    this.title = run;
    this.view = "run";
    this.state = new StateBadge();
    this.what = h("p", { class: "soft" });
    this.reason = h("p", { class: "reason", hidden: true });
    this.reading = h("p", { class: "soft reading" });
    this.bar = h("progress", { max: "1", value: "0", "aria-label": "progress" });
    this.tiles = new Tiles(TILES);
    this.problems = new Problems();
    this.accuracy = new Chart({ title: "Accuracy per domain", height: 280, empty: "no round was evaluated yet" });
    this.matrix = new HeatMap();
    this.titles = { curves: h("span"), matrix: h("span") };
    this.matrixNote = h("span");
    this.drift = new Chart({ title: "Drift and its bound", empty: "no round with an anchor yet; only methods with a server-side anchor have this" });
    this.certificate = new Table([["Task"], ["Certificate"], ["Drift"], ["Bound"], ["Largest share"]], "No task with an anchor is finished yet.");
    this.loss = new Chart({ title: "Training loss" });
    this.norms = new Chart({ title: "Update norms" });
    this.grid = new ParticipationGrid();
    this.costs = new Table([["Cost"], ["Value"]], "No round yet.");
    this.warnings = h("ul", { class: "warnings" });
    this.repeat = copyable("");
    this.resume = copyable("");
    this.settings = new Table([["Setting"], ["Value", "text"]], "There is no readable config.yaml.");
    this.files = new Table([["File", "text"], ["Size"]], "The directory is empty.");
    this.federation = h("a", { class: "button", href: link("federation", [run]), hidden: true }, "Federation");
    this.driftCard = card("Drift under its certificate", h("div", { class: "beside" }, this.drift.element, this.certificate.element), { wide: true, note: "Distance of the model to the anchor, and the bound on it that needs no assumption. The table has the values at the end of each task." });
    this.repeatCard = card("Repeat or continue", [h("p", { class: "soft" }, "Start it again in a new folder:"), this.repeat.element, h("p", { class: "soft" }, "Continue it after a stop:"), this.resume.element]);
    this.driftCard.hidden = true;
    this.metrics = h("div");
    this.metricsCard = card("Further metrics", this.metrics, { wide: true, note: "After the last task, on each domain; fractions, or the unit of the targets. Values for each class are in result.json." });
    this.metricsCard.hidden = true;
    this.element = h(
      "div",
      {},
      h("div", { class: "title" }, h("h1", {}, run, " ", this.state.element), this.what, this.reason),
      h("div", { class: "progressline" }, this.bar, this.reading, this.federation),
      this.tiles.element,
      this.problems.element,
      h(
        "div",
        { class: "cards" },
        card(this.titles.curves, this.accuracy.element, { wide: true }),
        card(this.titles.matrix, h("div", { class: "scroll" }, this.matrix.table), { note: this.matrixNote }),
        card("Who took part", this.grid.element, { note: "Clients from top to bottom, rounds from left to right." }),
        this.driftCard,
        this.metricsCard,
        card("Training loss", this.loss.element),
        card("Update norms", this.norms.element),
        card("Costs", this.costs.element),
        h("div", { class: "stack" }, card("Warnings and notices", this.warnings), this.repeatCard),
        card("Settings and versions", this.settings.element),
        card("Files", this.files.element),
      ),
    );
    this.showWarnings([]);
  }

  redraw() {
    for (const chart of [this.accuracy, this.drift, this.loss, this.norms]) chart.redraw();
    this.grid.draw();
  }

  update(parts) {
    this.parts = { ...this.parts, ...parts };
    const { row, results } = this.parts;
    if (!row) return;
    this.showScale(new Scale(row.metric));
    if (parts.row || parts.results || parts.about) this.showHead(row, results, this.parts.about);
    if (parts.curves || parts.row) this.showCurves(this.parts.curves, row.total);
    if (parts.matrix) this.matrix.update(parts.matrix.tasks, parts.matrix.rows, this.scale, parts.matrix.points);
    if (parts.certificates) this.showCertificates(parts.certificates);
    if (parts.participation) this.grid.update(parts.participation, row.total);
    if (parts.metrics) this.showMetrics(parts.metrics);
    if (parts.warnings) this.showWarnings(parts.warnings);
    if (parts.problems) this.problems.update(parts.problems);
    if (parts.results) this.showCosts(parts.results);
    if (parts.commands) {
      setText(this.repeat.code, parts.commands.repeat);
      setText(this.resume.code, parts.commands.resume);
    }
    if (parts.settings) this.showSettings(parts.settings);
    if (parts.files) this.showFiles(parts.files);
  }

  showScale(scale) {
    this.scale = scale;
    this.accuracy.options.range = scale.range;
    setText(this.titles.curves, `${scale.title} per domain${scale.unit}`);
    setText(this.titles.matrix, `${scale.title} matrix${scale.unit}`);
    setText(this.matrixNote, `Each row shows the ${scale.name} on all domains after training on one more of them; bold: the domain just learned.`);
    this.tiles.rename({ acc: `ACC${scale.unit}`, bwt: `BWT${scale.changeUnit}`, worst_drop: `Worst drop${scale.changeUnit}` });
  }

  showHead(row, results, about) {
    this.state.update(row.state, row.reason);
    setText(this.what, [row.method, `on ${row.benchmark}`, row.seed === null ? null : `seed ${row.seed}`, about?.clients ? `${whole(about.clients)} clients` : null].filter(Boolean).join(" · "));
    this.reason.hidden = !row.reason;
    setText(this.reason, row.reason);
    this.bar.value = row.total ? row.done / row.total : 0;
    setText(this.reading, about && about.read < 1 ? `reading the event log: ${Math.round(100 * about.read)} %` : "");
    this.federation.hidden = !row.federation;
    this.driftCard.hidden = !about?.anchored;
    this.tiles.update({
      acc: this.scale.text(results?.acc) + (results && !results.final && results.acc !== null ? " so far" : ""),
      bwt: this.scale.text(results?.bwt),
      worst_drop: this.scale.text(results?.worst_drop),
      rounds: row.total ? `${whole(row.done)} / ${whole(row.total)}` : "–",
      left: row.state === "running" ? duration(row.seconds_left) : "–",
      per_round: duration(results?.seconds_per_round),
    });
  }

  showCurves(curves, total) {
    const { columns, rounds, tasks, points, per_task } = curves;
    const x = { total: total || rounds.at(-1) || 1, per_task, points };
    const chosen = (names, scale = 1) => [rounds, ...names.map((name) => columns[name].map((value) => (value === null ? null : scale * value)))];
    this.accuracy.update(tasks.map((label, number) => ({ label, number })), chosen(tasks.map((name) => `accuracy/${name}`), this.scale.factor), x);
    this.drift.update([{ label: "drift", number: 0 }, { label: "bound", number: 1, dash: [7, 4] }], chosen(["drift", "bound"]), x);
    this.loss.update([{ label: "mean local loss", number: 0 }], chosen(["loss"]), x);
    this.norms.update([{ label: "mean update", number: 0 }, { label: "largest client update", number: 1, dash: [7, 4] }], chosen(["delta_norm", "max_client_delta"]), x);
  }

  showCertificates(certificates) {
    const anchored = Object.entries(certificates).filter(([, one]) => one.anchored);
    this.certificate.update(
      anchored.map(([task, one]) => [task, h("span", { class: one.status === "holds" ? "good" : "bad" }, one.status), shortNumber(one.drift), shortNumber(one.recursion_bound), one.max_ratio === null ? "–" : `${Math.round(100 * one.max_ratio)} %`]),
    );
  }

  showMetrics({ tasks, lines }) {
    this.metricsCard.hidden = lines.length === 0;
    const table = new Table([["Metric"], ...tasks.map((name) => [name])], "");
    table.update(lines.map(({ name, values }) => [name, ...values.map((value) => (value === null ? "–" : value.toFixed(3)))]));
    this.metrics.replaceChildren(table.element);
  }

  showWarnings(warnings) {
    const items = warnings.map((one) => h("li", {}, one.text, one.count > 1 ? h("span", { class: "soft" }, ` (${whole(one.count)} times)`) : null));
    this.warnings.replaceChildren(...(items.length ? items : [h("li", { class: "none" }, "Nothing to report.")]));
  }

  showCosts(results) {
    const { counts } = results;
    this.costs.update(
      [
        ["Time in rounds", duration(counts.seconds)],
        ["Upload per client and round", bytes(results.bytes_up)],
        ["Download per client and round", bytes(results.bytes_down)],
        ["Upload in total", bytes(counts.bytes_up + counts.query_bytes_up)],
        ["Download in total", bytes(counts.bytes_down + counts.query_bytes_down)],
        ["Memory of a client", bytes(results.client_memory_bytes)],
        ["Updates refused", whole(counts.refused)],
        ["Rounds without change", whole(counts.held)],
        results.final ? ["Rounds to the best accuracy", whole(results.rounds_to_best)] : null,
      ].filter(Boolean),
    );
  }

  showSettings({ settings, about }) {
    const place = ([key, value]) => (FIRST.includes(key) ? FIRST.indexOf(key) : FIRST.length + (value === "null" ? 1 : 0));
    const sorted = Object.entries({ ...settings, ...about }).sort((one, other) => place(one) - place(other)); // keeps the order of equals
    this.settings.update(sorted.map(([key, value]) => [key, h("code", {}, value)]));
  }

  showFiles(files) {
    this.files.update(
      files.map(({ name, size }) => [h("a", { href: `file?${new URLSearchParams({ run: this.run, name })}`, target: "_blank", rel: "noopener noreferrer" }, name), bytes(size)]),
    );
  }
}
