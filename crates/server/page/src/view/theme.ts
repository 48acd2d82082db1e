// Light and dark: as the system says, or as chosen here.

import type { Theme } from "../store/preferences";

const NEXT: Record<Theme, Theme> = { system: "light", light: "dark", dark: "system" };

export function nextTheme(theme: Theme): Theme {
  return NEXT[theme];
}

export function applyTheme(theme: Theme): void {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}
