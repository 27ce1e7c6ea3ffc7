// The matrix of the main metric as a table: row = after which task, column = on which domain. Also readable without colours.
import { h, setText } from "./dom.js";

export function level(value) {
  return Math.max(0, Math.min(20, Math.round(20 * value)));
}

export class HeatMap {
  constructor() {
    this.table = h("table", { class: "heat" });
    this.shape = "";
  }

  // tasks: names; rows: one list of values per finished task, null for the others; scale: how values are written;
  // points: the domain learned before each row, where domains return
  update(tasks, rows, scale, points = tasks) {
    this.scale = scale;
    const known = rows.flatMap((row) => row ?? []).filter((value) => value !== null);
    this.ends = scale.range ? [0, 1] : [Math.min(...known), Math.max(...known)];
    const shape = JSON.stringify([tasks, points]);
    if (shape !== this.shape) {
      this.shape = shape;
      this.build(tasks, points);
    }
    points.forEach((learned, i) =>
      tasks.forEach((name, j) => this.show(this.cells[i][j], rows[i]?.[j] ?? null, learned === name)),
    );
  }

  build(tasks, points) {
    this.cells = [];
    const head = h("tr", {}, h("td", { class: "corner" }), ...tasks.map((name) => h("th", { scope: "col" }, name)));
    const body = points.map((name) => {
      const cells = tasks.map(() => h("td"));
      this.cells.push(cells);
      return h("tr", {}, h("th", { scope: "row", title: `after training on ${name}` }, `after ${name}`), ...cells);
    });
    this.table.replaceChildren(h("thead", {}, head), h("tbody", {}, ...body));
  }

  show(cell, value, learned) {
    const [low, high] = this.ends;
    const name = value === null ? "missing" : `level-${level(high > low ? (value - low) / (high - low) : 0.5)}`;
    const wanted = learned && value !== null ? `${name} learned` : name;
    if (cell.className !== wanted) cell.className = wanted;
    setText(cell, value === null ? "·" : this.scale.text(value));
  }
}
