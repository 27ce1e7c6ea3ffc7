// Pieces that several pages use.
import { h, setText, setClass } from "./dom.js";

export const link = (page, runs) => `#/${page}?${new URLSearchParams(runs.map((run) => ["run", run]))}`;

export class StateBadge {
  constructor() {
    this.element = h("span", { class: "state" });
  }

  update(state, reason) {
    setClass(this.element, `state ${state}`);
    setText(this.element, state);
    this.element.title = reason ?? "";
  }
}

export class Problems {
  constructor() {
    this.list = h("ul");
    this.element = h("section", { class: "problem", hidden: true, "aria-label": "Problems with files" }, h("h2", {}, "Files with problems"), this.list);
    this.shown = "";
  }

  // problems: [{file, text}]
  update(problems) {
    const text = JSON.stringify(problems);
    if (text === this.shown) return;
    this.shown = text;
    this.element.hidden = problems.length === 0;
    this.list.replaceChildren(...problems.map((one) => h("li", {}, h("code", {}, one.file), ` ${one.text}`)));
  }
}

export function card(title, content, { wide = false, note = null, id = null } = {}) {
  const head = h("h2", {}, ...[title].flat());
  return h("section", { class: wide ? "card wide" : "card", id }, head, note ? h("p", { class: "soft" }, note) : null, ...[content].flat());
}

export class Tiles {
  // names: {key: title}
  constructor(names) {
    this.values = {};
    this.titles = {};
    const tiles = Object.entries(names).map(([key, title]) => {
      this.values[key] = h("b", {}, "–");
      this.titles[key] = h("span", {}, title);
      return h("div", { class: "tile" }, this.titles[key], this.values[key]);
    });
    this.element = h("div", { class: "tiles" }, ...tiles);
  }

  update(values) {
    for (const [key, text] of Object.entries(values)) setText(this.values[key], text);
  }

  rename(names) {
    for (const [key, title] of Object.entries(names)) setText(this.titles[key], title);
  }
}

export function copyable(text) {
  const code = h("code", { class: "command" }, text);
  const button = h("button", { type: "button", class: "quiet", onclick: copy }, "Copy");
  async function copy() {
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  }
  return { element: h("div", { class: "copyable" }, code, button), code };
}
