// The chosen theme, before anything is painted: light, dark, or the one of the system.
try {
  document.documentElement.dataset.theme = localStorage.getItem("tidegate-theme") || "auto";
} catch {
  document.documentElement.dataset.theme = "auto"; // the browser stores nothing
}
