// The field for the next message, and the button that sends it or stops the answer.

import { byId } from "../dom";
import { icon } from "./icons";

export interface ComposerEvents {
  send(text: string): void;
  stop(): void;
}

export class Composer {
  private readonly field = byId<HTMLTextAreaElement>("message");
  private readonly button = byId<HTMLButtonElement>("send");
  private answering = false;

  constructor(private readonly events: ComposerEvents) {
    this.field.addEventListener("input", () => this.fit());
    this.field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.submit();
    });
    this.button.addEventListener("click", () => (this.answering ? this.events.stop() : this.submit()));
    this.setAnswering(false);
  }

  focus(): void {
    this.field.focus();
  }

  setAnswering(answering: boolean): void {
    this.answering = answering;
    const label = answering ? "Stop the answer" : "Send";
    this.button.replaceChildren(icon(answering ? "stop" : "send"));
    this.button.classList.toggle("stop", answering);
    this.button.setAttribute("aria-label", label);
    this.button.title = answering ? "Stop (Esc)" : "Send (Enter)";
    this.fit();
  }

  private submit(): void {
    const text = this.field.value.trim();
    if (text === "" || this.answering) return;
    this.field.value = "";
    this.fit();
    this.events.send(text);
  }

  /** Grows the field with its text, up to the height that the style sheet allows. */
  private fit(): void {
    this.field.style.height = "auto";
    this.field.style.height = `${this.field.scrollHeight}px`;
    this.button.disabled = !this.answering && this.field.value.trim() === "";
  }
}
