// A short notice at the bottom of the page, with an action where there is one, and what a screen
// reader is told.

import { byId, element } from "../dom";

const SHOWN_MS = 7000;

interface Action {
  label: string;
  run: () => void;
}

export class Notices {
  private readonly place = byId("notice");
  private timer = 0;

  show(text: string, action?: Action): void {
    const button = action ? element("button", { type: "button", class: "text-button" }, action.label) : null;
    button?.addEventListener("click", () => {
      this.hide();
      action!.run();
    });
    const close = element("button", { type: "button", class: "text-button" }, "Close");
    close.addEventListener("click", () => this.hide());
    this.place.replaceChildren(element("span", {}, text), ...(button ? [button] : []), close);
    this.place.hidden = false;
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => this.hide(), SHOWN_MS);
  }

  private hide(): void {
    this.place.hidden = true;
    this.place.replaceChildren();
  }
}

/** Says `text` to a screen reader after what it is saying now. */
export function announce(text: string): void {
  const line = element("p", {}, text);
  const region = byId("announcer");
  region.append(line);
  while (region.childElementCount > 20) region.firstElementChild!.remove();
}
