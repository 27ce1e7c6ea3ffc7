// All runs: filter, sort, select.
import { h, setChildren, setText } from "./dom.js";
import { Scale, ago, duration, whole } from "./format.js";
import { Problems, StateBadge, link } from "./parts.js";

const STEP = 200; // lines that are shown at once; a button shows more
const STATES = ["running", "finished", "stopped", "failed"];
const ORDER = { running: 0, failed: 1, stopped: 2, finished: 3 };
const COLUMNS = [
  ["run", "Run", (row) => row.run],
  ["benchmark", "Benchmark", (row) => row.benchmark],
  ["method", "Method", (row) => row.method],
  ["seed", "Seed", (row) => row.seed],
  ["state", "State", (row) => ORDER[row.state]],
  ["progress", "Progress", (row) => (row.total ? row.done / row.total : -1)],
  ["left", "Time left", (row) => row.seconds_left ?? -1],
  ["acc", "ACC", (row) => row.acc],
  ["bwt", "BWT", (row) => row.bwt],
  ["modified", "Last event", (row) => row.modified],
];

class Line {
  constructor(run, onSelect) {
    this.run = run;
    this.box = h("input", { type: "checkbox", "aria-label": `select ${run}`, onchange: () => onSelect(run, this.box.checked) });
    this.state = new StateBadge();
    this.bar = h("progress", { max: "1", value: "0" });
    this.count = h("span", { class: "soft" });
    this.problem = h("span", { class: "mark", hidden: true, role: "img", "aria-label": "files with problems" }, "!");
    this.cells = Object.fromEntries(["benchmark", "method", "seed", "left", "acc", "bwt", "modified"].map((key) => [key, h("td", { class: `c-${key}` })]));
    for (const [key, title] of COLUMNS) this.cells[key]?.setAttribute("data-head", title);
    const { benchmark, method, seed, left, acc, bwt, modified } = this.cells;
    this.element = h(
      "tr",
      {},
      h("td", { class: "c-box" }, this.box),
      h("td", { class: "c-run" }, h("a", { href: link("run", [run]) }, run), this.problem),
      benchmark,
      method,
      seed,
      h("td", { class: "c-state" }, this.state.element),
      h("td", { class: "c-progress", "data-head": "Progress" }, this.bar, this.count),
      left,
      acc,
      bwt,
      modified,
    );
  }

  update(row) {
    this.row = row;
    setText(this.cells.benchmark, row.benchmark);
    setText(this.cells.method, row.method);
    setText(this.cells.seed, row.seed === null ? "–" : String(row.seed));
    setText(this.cells.left, row.state === "running" ? duration(row.seconds_left) : "–");
    const scale = new Scale(row.metric);
    setText(this.cells.acc, scale.text(row.acc));
    setText(this.cells.bwt, scale.text(row.bwt));
    this.cells.acc.classList.toggle("soft", !row.final);
    this.cells.acc.title = row.final || row.acc === null ? "" : "mean over the domains trained so far, after the last evaluated round";
    this.state.update(row.state, row.reason);
    this.bar.value = row.total ? row.done / row.total : 0;
    setText(this.count, row.total ? `${whole(row.done)} / ${whole(row.total)}` : "not started");
    this.problem.hidden = row.problems.length === 0;
    this.problem.title = row.problems.map((one) => `${one.file}: ${one.text}`).join("\n");
    for (const key of ["seed", "left", "acc", "bwt"]) this.cells[key].classList.toggle("none", this.cells[key].textContent === "–");
    this.showAge();
  }

  showAge() {
    setText(this.cells.modified, ago(this.row.modified));
  }
}

export class OverviewPage {
  constructor() {
    this.title = "Runs";
    this.view = "overview";
    this.lines = new Map();
    this.selected = new Set();
    this.sorted = { key: "modified", down: true };
    this.shown = STEP;
    this.filter = h("input", { type: "search", placeholder: "Filter: name, benchmark, method, seed", "aria-label": "Filter", oninput: () => this.onFilter() });
    this.states = Object.fromEntries(STATES.map((state) => [state, this.stateButton(state)]));
    this.compare = h("a", { class: "button", "aria-disabled": "true" }, "Compare");
    this.about = h("p", { class: "soft" }, "reading the folder …");
    this.problems = new Problems();
    this.body = h("tbody");
    this.heads = Object.fromEntries(COLUMNS.map(([key, title]) => [key, this.head(key, title)]));
    const head = h("tr", {}, h("th", {}, h("span", { class: "hidden" }, "select")), ...Object.values(this.heads));
    this.more = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => this.showMore() });
    this.empty = h("p", { class: "empty", hidden: true });
    this.element = h(
      "div",
      {},
      h("div", { class: "title" }, h("h1", {}, "Runs"), this.about),
      this.problems.element,
      h("div", { class: "tools" }, this.filter, h("div", { class: "states", role: "group", "aria-label": "States" }, ...Object.values(this.states)), this.compare),
      h("section", { class: "card flush" }, h("div", { class: "scroll" }, h("table", { class: "runs" }, h("thead", {}, head), this.body)), this.empty),
      this.more,
    );
    this.showSelection();
    this.showSort();
    this.clock = setInterval(() => this.showAges(), 5000);
  }

  leave() {
    clearInterval(this.clock);
  }

  stateButton(state) {
    const button = h("button", { type: "button", class: "quiet", "aria-pressed": "false" }, state);
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") === "true" ? "false" : "true");
      this.onFilter();
    });
    return button;
  }

  head(key, title) {
    const button = h("button", { type: "button", onclick: () => this.onSort(key) }, title);
    return h("th", { scope: "col", class: `c-${key}` }, button);
  }

  update(parts) {
    if (parts.about) {
      this.folder = parts.about.folder;
      this.problems.update(parts.about.problems);
    }
    for (const [name, row] of Object.entries(parts)) {
      if (!name.startsWith("row/")) continue;
      const run = name.slice(4);
      if (row === null) {
        this.lines.delete(run);
        this.selected.delete(run);
        continue;
      }
      if (!this.lines.has(run)) this.lines.set(run, new Line(run, (which, on) => this.onSelect(which, on)));
      this.lines.get(run).update(row);
    }
    this.arrange();
  }

  arrange() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const states = STATES.filter((state) => this.states[state].getAttribute("aria-pressed") === "true");
    const counts = Object.fromEntries(STATES.map((state) => [state, 0]));
    const found = [];
    for (const line of this.lines.values()) {
      const row = line.row;
      counts[row.state] += 1;
      const text = `${row.run} ${row.benchmark} ${row.method} ${row.seed} ${row.state}`.toLowerCase();
      if ((!states.length || states.includes(row.state)) && words.every((word) => text.includes(word))) found.push(line);
    }
    for (const state of STATES) setText(this.states[state], `${state} ${counts[state]}`);
    found.sort(this.order());
    setChildren(this.body, found.slice(0, this.shown).map((line) => line.element));
    this.more.hidden = found.length <= this.shown;
    setText(this.more, `Show ${whole(Math.min(STEP, found.length - this.shown))} more of ${whole(found.length)}`);
    setText(this.about, `${whole(this.lines.size)} runs in ${this.folder ?? ""}`);
    this.empty.hidden = found.length > 0;
    setText(this.empty, this.lines.size ? "No run matches the filter." : "There is no run in this folder yet. Start one with: fedspecial run digits-shift");
  }

  order() {
    const read = COLUMNS.find(([key]) => key === this.sorted.key)[2];
    const sign = this.sorted.down ? -1 : 1;
    return (a, b) => {
      const [x, y] = [read(a.row), read(b.row)];
      if (x === y) return a.run < b.run ? -1 : 1;
      if (x === null || x === undefined) return 1;
      if (y === null || y === undefined) return -1;
      return sign * (x < y ? -1 : 1);
    };
  }

  onFilter() {
    this.shown = STEP;
    this.arrange();
  }

  onSort(key) {
    const numeric = ["progress", "acc", "bwt", "modified"].includes(key);
    this.sorted = { key, down: this.sorted.key === key ? !this.sorted.down : numeric };
    this.showSort();
    this.arrange();
  }

  showSort() {
    for (const [key, head] of Object.entries(this.heads)) {
      if (key === this.sorted.key) head.setAttribute("aria-sort", this.sorted.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
  }

  onSelect(run, on) {
    if (on) this.selected.add(run);
    else this.selected.delete(run);
    this.showSelection();
  }

  showSelection() {
    const count = this.selected.size;
    setText(this.compare, count ? `Compare ${count} selected` : "Select runs to compare");
    this.compare.setAttribute("aria-disabled", String(count === 0));
    if (count) this.compare.href = link("compare", [...this.selected]);
    else this.compare.removeAttribute("href");
  }

  showMore() {
    this.shown += STEP;
    this.arrange();
  }

  showAges() {
    for (const row of this.body.children) this.lines.get(row.querySelector("a").textContent)?.showAge();
  }
}
