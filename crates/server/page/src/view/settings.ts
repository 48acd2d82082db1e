// The dialog with the system prompt, the sampling settings and the server's key.

import type { Sampling } from "../api/types";
import { byId, element } from "../dom";
import type { ChatSettings } from "../store/conversation";

interface Field {
  name: keyof Sampling;
  label: string;
  hint: string;
  min: number;
  max: number;
  whole: boolean;
}

const FIELDS: Field[] = [
  { name: "temperature", label: "Temperature", hint: "0 always takes the likeliest token", min: 0, max: 5, whole: false },
  { name: "top_p", label: "Top p", hint: "likeliest tokens up to this share, 0 to 1", min: 0, max: 1, whole: false },
  { name: "top_k", label: "Top k", hint: "at most this many tokens; 0 for all", min: 0, max: 1_000_000, whole: true },
  { name: "min_p", label: "Min p", hint: "share of the likeliest token, 0 to 1", min: 0, max: 1, whole: false },
  { name: "max_tokens", label: "Max tokens", hint: "length of the answer", min: 1, max: 10_000_000, whole: true },
  { name: "seed", label: "Seed", hint: "repeats an answer; to the letter with --reproducible", min: 0, max: Number.MAX_SAFE_INTEGER, whole: true },
];

export interface SettingsEvents {
  changed(settings: ChatSettings): void;
  makeDefault(settings: ChatSettings): void;
  keyChanged(key: string): void;
}

export class SettingsDialog {
  private readonly dialog = byId<HTMLDialogElement>("settings");
  private readonly system = byId<HTMLTextAreaElement>("system");
  private readonly key = byId<HTMLInputElement>("settings-key");
  private readonly inputs = new Map<keyof Sampling, HTMLInputElement>();

  constructor(private readonly events: SettingsEvents) {
    byId("sampling").append(...FIELDS.map((field) => this.row(field)));
    this.system.addEventListener("input", () => this.changed());
    this.key.addEventListener("change", () => this.events.keyChanged(this.key.value.trim()));
    byId("reset-settings").addEventListener("click", () => {
      this.fill({ system: "", sampling: {} });
      this.changed();
    });
    byId("default-settings").addEventListener("click", () => this.events.makeDefault(this.read()));
    closeOnClick(this.dialog);
  }

  open(settings: ChatSettings, key: string): void {
    this.fill(settings);
    this.key.value = key;
    this.dialog.showModal();
  }

  private fill(settings: ChatSettings): void {
    this.system.value = settings.system;
    for (const [name, input] of this.inputs) {
      input.value = settings.sampling[name]?.toString() ?? "";
    }
    for (const field of FIELDS) mark(this.inputs.get(field.name)!, field, true);
  }

  /** Shows what the server takes for each setting that is left out. */
  showDefaults(defaults: Partial<Record<keyof Sampling, number | null>>): void {
    for (const [name, input] of this.inputs) {
      const value = defaults[name];
      input.placeholder = typeof value === "number" ? `${value} (default)` : name === "seed" ? "random" : name === "max_tokens" ? "no limit" : "default";
    }
  }

  private row(field: Field): HTMLElement {
    const id = `sampling-${field.name}`;
    const input = element("input", { id, class: "field", type: "text", inputmode: field.whole ? "numeric" : "decimal", autocomplete: "off", placeholder: "default", "aria-describedby": `${id}-hint` });
    input.addEventListener("input", () => this.changed());
    this.inputs.set(field.name, input);
    return element("div", { class: "setting" }, element("label", { for: id }, field.label), input, element("span", { id: `${id}-hint`, class: "hint" }, field.hint));
  }

  private changed(): void {
    this.events.changed(this.read());
  }

  /** The settings as entered; a number that is out of range is marked and left out. */
  private read(): ChatSettings {
    const sampling: Sampling = {};
    for (const field of FIELDS) {
      const input = this.inputs.get(field.name)!;
      const text = input.value.trim().replace(",", ".");
      const value = Number(text);
      const valid = text === "" || (value >= field.min && value <= field.max && (!field.whole || Number.isInteger(value)));
      mark(input, field, valid);
      if (valid && text !== "") sampling[field.name] = value;
    }
    return { system: this.system.value, sampling };
  }
}

/** Marks a field, and says below it what it takes. */
function mark(input: HTMLInputElement, field: Field, valid: boolean): void {
  const hint = byId(`${input.id}-hint`);
  hint.textContent = valid ? field.hint : `Not used: ${field.whole ? "a whole number" : "a number"} from ${field.min} to ${field.max} is needed.`;
  hint.classList.toggle("invalid", !valid);
  if (valid) input.removeAttribute("aria-invalid");
  else input.setAttribute("aria-invalid", "true");
}

/** Asks for the server's key after it has refused a request. */
export class KeyDialog {
  private readonly dialog = byId<HTMLDialogElement>("key-dialog");
  private readonly input = byId<HTMLInputElement>("key");

  constructor(accept: (key: string) => void) {
    byId("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.dialog.close();
      accept(this.input.value.trim());
    });
    closeOnClick(this.dialog);
  }

  open(key: string): void {
    if (this.dialog.open) return;
    this.input.value = key;
    byId("key-refused").hidden = key === "";
    this.dialog.showModal();
    this.input.select();
  }
}

/** Closes a dialog by its close buttons and by a click beside it. */
export function closeOnClick(dialog: HTMLDialogElement): void {
  dialog.addEventListener("click", (event) => {
    const target = event.target as Element;
    if (target === dialog || target.closest("[data-close]")) dialog.close();
  });
}
