// Small settings of this browser, in localStorage.

import type { ChatSettings } from "./conversation";

export type Theme = "system" | "light" | "dark";

export interface Preferences {
  theme: Theme;
  key: string;
  model: string;
  panel: boolean;
  /** Whether single letters are shortcuts outside of text fields. */
  shortcuts: boolean;
  /** Settings that a new conversation begins with. */
  defaults: ChatSettings;
}

const NAME = "pianola.preferences";

const INITIAL: Preferences = { theme: "system", key: "", model: "", panel: false, shortcuts: true, defaults: { system: "", sampling: {} } };

export function loadPreferences(): Preferences {
  try {
    return { ...INITIAL, ...(JSON.parse(localStorage.getItem(NAME) ?? "{}") as Partial<Preferences>) };
  } catch {
    // Not JSON, or storage is forbidden: the page works with what it starts with.
    return { ...INITIAL };
  }
}

export function savePreferences(preferences: Preferences): void {
  try {
    localStorage.setItem(NAME, JSON.stringify(preferences));
  } catch {
    // Forbidden or full: the choice lasts until the page is closed.
  }
}
