// Keyboard shortcuts, and the dialog that lists them.

import { byId, element } from "../dom";
import { closeOnClick } from "./settings";

export interface Shortcut {
  key: string;
  text: string;
  run: () => void;
}

/** Keys that work inside the fields, listed with the others. */
const FIXED: [string, string][] = [
  ["Enter", "Send the message"],
  ["Shift + Enter", "New line"],
  ["Esc", "Stop the answer, close a panel, leave a field"],
];

export class Shortcuts {
  private readonly dialog = byId<HTMLDialogElement>("shortcuts");

  constructor(
    private readonly shortcuts: Shortcut[],
    private readonly enabled: () => boolean,
    private readonly escape: () => void,
  ) {
    const rows = [...FIXED, ...shortcuts.map(({ key, text }) => [key, text] as [string, string]), ["?", "Show this list"] as [string, string]];
    byId("shortcut-list").append(...rows.flatMap(([key, text]) => [element("dt", {}, element("kbd", {}, key)), element("dd", {}, text)]));
    closeOnClick(this.dialog);
    document.addEventListener("keydown", (event) => this.keyed(event));
  }

  open(): void {
    this.dialog.showModal();
  }

  private keyed(event: KeyboardEvent): void {
    if (event.defaultPrevented || event.isComposing || document.querySelector("dialog[open]")) return;
    if (event.key === "Escape") return this.escape();
    if (event.ctrlKey || event.metaKey || event.altKey || !this.enabled() || isTyping(event.target)) return;
    if (event.key === "?") {
      event.preventDefault();
      return this.open();
    }
    const found = this.shortcuts.find(({ key }) => key === event.key);
    if (!found) return;
    event.preventDefault();
    found.run();
  }
}

function isTyping(target: EventTarget | null): boolean {
  return target instanceof Element && target.closest("input, textarea, select") !== null;
}
