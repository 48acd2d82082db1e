// Starts the page. The theme is set before the first paint, the rest once the document is there.

import { App } from "./app";
import { loadPreferences } from "./store/preferences";
import { fillIcons } from "./view/icons";
import { applyTheme } from "./view/theme";

const preferences = loadPreferences();
applyTheme(preferences.theme);

document.addEventListener("DOMContentLoaded", () => {
  fillIcons();
  void new App(preferences).start();
});
