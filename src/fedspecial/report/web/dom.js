// Small helpers for the DOM. Texts become text nodes only, so a name from a file can never become markup.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Writes only what changed: an unchanged page is not laid out again.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setClass(element, name) {
  if (element.className !== name) element.className = name;
}

// Makes the children of `parent` equal to `wanted`, moving only what is out of place.
export function setChildren(parent, wanted) {
  let at = parent.firstChild;
  for (const child of wanted) {
    if (child === at) at = at.nextSibling;
    else parent.insertBefore(child, at);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

// A table whose lines are replaced only if they changed. columns: [title, class]
export class Table {
  constructor(columns, empty) {
    this.body = h("tbody");
    this.columns = columns;
    this.lines = new Map();
    const heads = columns.map(([title, name]) => h("th", { scope: "col", class: name ?? "" }, title));
    this.empty = h("p", { class: "soft" }, empty);
    this.table = h("table", {}, h("thead", {}, h("tr", {}, ...heads)), this.body);
    this.element = h("div", { class: "scroll" }, this.table, this.empty);
    this.update([]);
  }

  // lines: lists of texts or elements; an element is identified by its text
  update(lines) {
    this.table.hidden = lines.length === 0;
    this.empty.hidden = lines.length > 0;
    const kept = new Map();
    const rows = lines.map((line, number) => {
      const key = JSON.stringify([number, line.map((cell) => (cell instanceof Node ? cell.textContent + cell.className : cell))]);
      const row = this.lines.get(key) ?? this.row(line);
      kept.set(key, row);
      return row;
    });
    this.lines = kept;
    setChildren(this.body, rows);
  }

  row(line) {
    return h("tr", {}, ...line.map((cell, i) => h("td", { class: this.columns[i][1] ?? "", "data-head": this.columns[i][0] }, cell)));
  }
}
