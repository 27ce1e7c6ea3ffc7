// ACC against BWT: one small mark per run, one large mark with standard deviations per group of seeds.
import { svg } from "./dom.js";

const MARKS = ["circle", "square", "diamond", "triangle"];
const PATHS = { square: "M-5,-5h10v10h-10z", diamond: "M0,-7L7,0L0,7L-7,0z", triangle: "M0,-7L6.5,5H-6.5z" };

export function mark(number, size = 1) {
  const name = MARKS[number % MARKS.length];
  const shape = name === "circle" ? svg("circle", { r: 5.5 }) : svg("path", { d: PATHS[name] });
  shape.setAttribute("transform", `scale(${size})`);
  return shape;
}

// space: the width that there is; scale: how values are written; groups: [{label, number, acc: {mean, std}, bwt: {mean, std}, runs: [{acc, bwt}]}]
export function scatter(groups, space, { factor, unit, changeUnit, digits }) {
  const width = Math.max(280, Math.min(620, space)); // drawn in its real size, so that texts keep theirs
  const height = Math.round(Math.max(260, 0.62 * width));
  const box = { left: 52, right: 16, top: 14, bottom: 44 };
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "scatter", role: "img" });
  const shown = groups.filter((group) => group.acc && group.bwt);
  const ends = (key) => shown.flatMap((group) => [...group.runs.map((run) => factor * run[key]), factor * (group[key].mean - (group[key].std ?? 0)), factor * (group[key].mean + (group[key].std ?? 0))]);
  const scale = (key, from, to) => {
    const values = ends(key).filter(Number.isFinite);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const edge = Math.max(0.005 * factor, 0.12 * (high - low));
    const at = (value) => from + ((value - low + edge) / (high - low + 2 * edge)) * (to - from);
    return { at, ticks: ticks(low - edge, high + edge) };
  };
  if (!shown.length) return picture;
  const x = scale("acc", box.left, width - box.right);
  const y = scale("bwt", height - box.bottom, box.top);
  for (const tick of x.ticks) {
    picture.append(svg("line", { class: "gridline", x1: x.at(tick), x2: x.at(tick), y1: box.top, y2: height - box.bottom }), text(x.at(tick), height - box.bottom + 18, String(tick), "middle"));
  }
  for (const tick of y.ticks) {
    picture.append(svg("line", { class: "gridline", x1: box.left, x2: width - box.right, y1: y.at(tick), y2: y.at(tick) }), text(box.left - 8, y.at(tick) + 4, String(tick).replace("-", "−"), "end"));
  }
  picture.append(text((box.left + width - box.right) / 2, height - 6, `ACC${unit} (further right: better)`, "middle"));
  const label = text(0, 0, `BWT${changeUnit} (higher: forgets less)`, "middle");
  label.setAttribute("transform", `translate(14 ${(box.top + height - box.bottom) / 2}) rotate(-90)`);
  picture.append(label);
  for (const group of shown) picture.append(drawGroup(group, x, y, factor));
  picture.setAttribute("aria-label", shown.map((group) => `${group.label}: ACC${unit} ${(factor * group.acc.mean).toFixed(digits)}, BWT${changeUnit} ${(factor * group.bwt.mean).toFixed(digits)}`).join("; "));
  return picture;
}

function drawGroup(group, x, y, factor) {
  const all = svg("g", { class: `series-${(group.number % 8) + 1}` });
  const [cx, cy] = [x.at(factor * group.acc.mean), y.at(factor * group.bwt.mean)];
  const [dx, dy] = [x.at(factor * (group.acc.mean + (group.acc.std ?? 0))) - cx, y.at(factor * (group.bwt.mean + (group.bwt.std ?? 0))) - cy];
  all.append(svg("line", { class: "error", x1: cx - dx, x2: cx + dx, y1: cy, y2: cy }), svg("line", { class: "error", x1: cx, x2: cx, y1: cy - dy, y2: cy + dy }));
  for (const run of group.runs) {
    if (run.acc === null || run.bwt === null) continue;
    const point = svg("g", { class: "one", transform: `translate(${x.at(factor * run.acc)} ${y.at(factor * run.bwt)})` }, mark(group.number, 0.6));
    all.append(point);
  }
  all.append(svg("g", { class: "mean", transform: `translate(${cx} ${cy})` }, mark(group.number, 1.3)));
  return all;
}

function text(x, y, content, anchor) {
  return svg("text", { x, y, "text-anchor": anchor }, content);
}

function ticks(low, high) {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= 0.7 * rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(Number(at.toFixed(6)));
  return found;
}
