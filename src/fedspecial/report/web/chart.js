// Line charts over rounds, drawn by uPlot. Sizes are fixed before data arrives, so nothing jumps.
/* global uPlot */
import { h } from "./dom.js";

const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// Eight colours; after them the same colours with another dash.
export function seriesStyle(number) {
  return { stroke: colour(`series-${(number % 8) + 1}`), dash: DASHES[Math.floor(number / 8) % DASHES.length] };
}

export function shortNumber(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 100000)) return value.toExponential(1);
  return String(Number(value.toPrecision(3)));
}

export class Chart {
  // title; height; range: [low, high] or null; format: of values; log: logarithmic scale
  constructor(options) {
    this.options = { height: 230, range: null, format: shortNumber, ...options };
    this.box = h("div", { class: "chart", tabindex: "0", role: "img", "aria-label": options.title });
    this.note = h("p", { class: "chart-empty" }, options.empty ?? "no round yet");
    this.box.style.minHeight = `${this.options.height}px`;
    this.box.append(this.note);
    this.element = this.box;
    this.zoom = null;
    this.plot = null;
    this.shape = "";
    this.box.addEventListener("keydown", (event) => this.onKey(event));
    new ResizeObserver(() => this.resize()).observe(this.box);
  }

  // series: [{label, number, width, dash}]; data: [rounds, ...values]; x: {total, per_task, points}, where points are the
  // domains in the order in which they are learned, which may return
  update(series, data, x) {
    this.last = [series, data, x];
    const width = this.box.clientWidth;
    const filled = data[0].length > 0 && data.slice(1).some((values) => values.some((value) => value !== null));
    this.note.hidden = filled;
    if (!filled || width === 0) {
      if (!filled) this.destroy();
      return;
    }
    this.x = x;
    const shape = JSON.stringify([series, x, document.documentElement.dataset.theme]);
    if (shape !== this.shape || this.plot === null) this.build(series, data, width, shape);
    else this.plot.setData(data);
    setTimeout(() => this.showLast()); // after uPlot has drawn
    this.describe(series, data);
  }

  redraw() {
    this.shape = "";
    if (this.last) this.update(...this.last);
  }

  destroy() {
    this.plot?.destroy();
    this.plot = null;
    this.shape = "";
  }

  build(series, data, width, shape) {
    this.destroy();
    this.shape = shape;
    const axis = { stroke: colour("soft"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const [low, high] = this.options.range ?? [];
    const y = this.options.range ? { range: (_, min, max) => (min < low || max > high ? [min, max] : [low, high]) } : {};
    if (this.options.log) Object.assign(y, { distr: 3 });
    this.plot = new uPlot(
      {
        width,
        height: this.options.height,
        pxAlign: 0,
        padding: [14, 12, 0, 0],
        scales: { x: { time: false, range: () => this.zoom ?? [0, Math.max(1, this.x.total)] }, y },
        cursor: { drag: { x: true, y: false, setScale: false }, points: { size: 7 } },
        legend: { live: true },
        axes: [
          { ...axis, size: 30, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? String(tick) : "")) },
          { ...axis, size: 46, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : this.options.format(tick))) },
        ],
        series: [
          { label: "round", value: (_, value) => (value === null ? "–" : this.roundName(value)) },
          ...series.map((one) => ({
            label: one.label,
            width: one.width ?? 1.8,
            spanGaps: true,
            points: { show: data[0].length < 3 },
            ...seriesStyle(one.number),
            ...(one.dash ? { dash: one.dash } : {}),
            value: (_, value) => (value === null || value === undefined ? "–" : this.options.format(value)),
          })),
        ],
        hooks: { drawClear: [(u) => this.drawTasks(u)], setSelect: [(u) => this.onSelect(u)] },
      },
      data,
      this.box,
    );
    this.plot.over.addEventListener("dblclick", () => this.setZoom(null));
    this.plot.over.addEventListener("mouseleave", () => setTimeout(() => this.showLast()));
  }

  // Without a cursor in the chart, the legend shows the last value of each line.
  showLast() {
    const { plot } = this;
    if (!plot || plot.cursor.left >= 0) return;
    plot.setLegend({ idxs: plot.data.map((values) => Math.max(0, values.findLastIndex((value) => value !== null && value !== undefined))) });
  }

  roundName(value) {
    const { per_task: size, points } = this.x;
    if (!size || !points?.length) return String(value);
    const task = Math.min(points.length, Math.ceil(value / size));
    return `${value} (task ${task}, round ${value - (task - 1) * size})`;
  }

  onSelect(u) {
    if (u.select.width < 5) return;
    const ends = [u.select.left, u.select.left + u.select.width].map((at) => u.posToVal(at, "x"));
    this.setZoom([Math.max(0, ends[0]), ends[1]]);
    u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
  }

  setZoom(ends) {
    this.zoom = ends;
    if (this.plot) this.plot.setScale("x", { min: ends?.[0] ?? 0, max: ends?.[1] ?? this.x.total });
  }

  // The background alternates between tasks, which are named at the top where there is room.
  drawTasks(u) {
    const { per_task: size, points } = this.x;
    if (!size || !points || points.length < 2) return;
    const { ctx, bbox } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, 0, bbox.width, bbox.top + bbox.height);
    ctx.clip();
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textAlign = "center";
    points.forEach((name, number) => {
      const [left, right] = [number * size, (number + 1) * size].map((at) => u.valToPos(at, "x", true));
      if (number % 2) {
        ctx.fillStyle = colour("raised");
        ctx.fillRect(left, bbox.top, right - left, bbox.height);
      }
      if (ctx.measureText(name).width < right - left - 8) {
        ctx.fillStyle = colour("soft");
        ctx.fillText(name, (left + right) / 2, bbox.top - 4 * devicePixelRatio);
      }
    });
    ctx.restore();
  }

  // Arrow keys move the cursor; the legend shows the values there.
  onKey(event) {
    if (!this.plot || !["ArrowLeft", "ArrowRight", "Escape"].includes(event.key)) return;
    event.preventDefault();
    if (event.key === "Escape") return this.setZoom(null);
    const last = this.plot.data[0].length - 1;
    const now = this.plot.cursor.idx ?? (event.key === "ArrowLeft" ? last + 1 : -1);
    const idx = Math.max(0, Math.min(last, now + (event.key === "ArrowLeft" ? -1 : 1)));
    this.plot.setCursor({ left: this.plot.valToPos(this.plot.data[0][idx], "x"), top: this.plot.over.clientHeight / 2 });
  }

  describe(series, data) {
    const values = series.map((one, i) => {
      const known = data[i + 1].filter((value) => value !== null && value !== undefined);
      return `${one.label} ${known.length ? this.options.format(known.at(-1)) : "none"}`;
    });
    const text = `${this.options.title}, last values: ${values.slice(0, 12).join(", ")}`;
    if (this.box.getAttribute("aria-label") !== text) this.box.setAttribute("aria-label", text);
  }

  resize() {
    const width = this.box.clientWidth;
    if (!width) return;
    if (this.plot && this.plot.width !== width) this.plot.setSize({ width, height: this.options.height });
    else if (!this.plot && this.last) this.update(...this.last);
  }
}
