// Who took part in which round: clients × rounds on a canvas.
import { colour } from "./chart.js";
import { h, setText } from "./dom.js";

export class ParticipationGrid {
  constructor() {
    this.canvas = h("canvas", { role: "img", "aria-label": "who took part in which round" });
    this.note = h("p", { class: "soft" }, "no round yet");
    this.tip = h("p", { class: "soft tip" }, " ");
    this.element = h("div", { class: "grid" }, this.canvas, this.tip, this.note);
    this.canvas.addEventListener("mousemove", (event) => this.onMove(event));
    this.canvas.addEventListener("mouseleave", () => setText(this.tip, " "));
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  // data: {clients, group, width, rows, used, refused}; total: rounds of the run
  update(data, total) {
    this.data = data;
    this.total = total;
    this.draw();
  }

  draw() {
    const { data } = this;
    const width = this.element.clientWidth;
    if (!data || !width) return;
    const row = Math.max(4, Math.min(26, Math.floor(230 / data.rows)));
    const columns = Math.max(1, Math.ceil(this.total / data.width), data.used.length);
    const size = Math.max(1, Math.min(22, (width - 44) / columns));
    const ratio = devicePixelRatio || 1;
    this.cell = { row, size };
    const height = data.rows * row + 4;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    const ctx = this.canvas.getContext("2d");
    ctx.scale(ratio, ratio);
    const gap = size > 4 ? 1 : 0;
    const full = data.group * data.width;
    ctx.font = "11px system-ui, sans-serif";
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    const every = Math.ceil(14 / row);
    for (let y = 0; y < data.rows; y += 1) {
      ctx.fillStyle = colour("soft");
      if (y % every === 0) ctx.fillText(String(y * data.group), 34, y * row + row / 2);
    }
    ctx.fillStyle = colour("raised");
    for (let y = 0; y < data.rows; y += 1) ctx.fillRect(40, y * row, columns * size, row - gap);
    const [used, refused] = [colour("series-1"), colour("series-2")];
    data.used.forEach((counts, x) =>
      counts.forEach((count, y) => {
        const bad = data.refused[x][y];
        if (!count && !bad) return;
        ctx.globalAlpha = bad ? 1 : 0.25 + 0.75 * Math.min(1, count / full);
        ctx.fillStyle = bad ? refused : used;
        ctx.fillRect(40 + x * size, y * row, Math.max(0.6, size - gap), row - gap);
        ctx.globalAlpha = 1;
      }),
    );
    const group = data.group > 1 ? `A row is ${data.group} clients. ` : "";
    const bucket = data.width > 1 ? `A column is ${data.width} rounds. ` : "";
    setText(this.note, `${group}${bucket}Blue: took part. Orange: an update was refused.`);
  }

  onMove(event) {
    const { data, cell } = this;
    if (!data || !cell) return;
    const x = Math.floor((event.offsetX - 40) / cell.size);
    const y = Math.floor(event.offsetY / cell.row);
    const count = data.used[x]?.[y];
    if (count === undefined) return setText(this.tip, " ");
    const name = (from, size) => (size > 1 ? `${from}–${from + size - 1}` : String(from));
    const client = `client ${name(y * data.group, data.group)}`;
    const round = `round ${name(x * data.width + 1, data.width)}`;
    const refused = data.refused[x][y] ? `, refused ${data.refused[x][y]} times` : "";
    setText(this.tip, `${client}, ${round}: took part ${count} times${refused}`);
  }
}
