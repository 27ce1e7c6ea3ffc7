// Before anything is painted: the theme that was chosen here before, otherwise the one of the system.
(() => {
  try {
    const chosen = localStorage.getItem("theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // storage may be blocked; then the system's theme is used
  }
})();
