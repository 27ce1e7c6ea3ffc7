// The pages: which one is shown follows from the part of the address after #.
import { h, setText } from "./dom.js";
import { Live } from "./live.js";
import { OverviewPage } from "./overview.js";
import { RunPage } from "./run.js";
import { ComparePage } from "./compare.js";
import { FederationPage } from "./federation.js";

const PAGES = { overview: OverviewPage, run: RunPage, compare: ComparePage, federation: FederationPage };
const STATES = { live: "live", lost: "not connected; is fedspecial ui still running?" };
const main = document.getElementById("main");
const connection = document.getElementById("connection");
let page = null;

const live = new Live(
  (parts) => page?.update(parts),
  (state, text) => {
    connection.dataset.state = state;
    setText(connection, text ?? STATES[state] ?? "");
  },
);

function show() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const name = PAGES[path] ? path : "overview";
  const runs = new URLSearchParams(query).getAll("run");
  page?.leave?.();
  page = new PAGES[name](runs);
  main.replaceChildren(page.element);
  document.title = `${page.title} · fedspecial`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.page === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  scrollTo(0, 0);
  if (page.view) live.open(page.view, runs);
  else live.stop();
}

const themes = matchMedia("(prefers-color-scheme: dark)");
const button = document.getElementById("theme");

function isDark() {
  return (document.documentElement.dataset.theme ?? (themes.matches ? "dark" : "light")) === "dark";
}

function showTheme() {
  setText(button, isDark() ? "Light theme" : "Dark theme");
  page?.redraw?.();
}

button.addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  try {
    localStorage.setItem("theme", document.documentElement.dataset.theme);
  } catch {
    // storage may be blocked; then the choice lasts as long as the page
  }
  showTheme();
});
themes.addEventListener("change", showTheme);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", show);
addEventListener("error", (event) => main.append(h("p", { class: "problem" }, `This page has a fault: ${event.message}`)));
showTheme();
show();
