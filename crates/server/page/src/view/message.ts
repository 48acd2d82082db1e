// One message of the conversation on the page.

import { element } from "../dom";
import { count, rate, seconds } from "../format";
import { MarkdownStream } from "../markdown/stream";
import type { Answer, UserMessage } from "../store/conversation";
import { icon, type IconName } from "./icons";
import { announce } from "./notice";

/** A button of a message; `Thread` handles the click by its action. */
function action(name: string, label: string, sign: IconName): HTMLElement {
  return element("button", { type: "button", class: "icon-button small", "data-action": name, title: label, "aria-label": label }, icon(sign));
}

export function userView(message: UserMessage): HTMLElement {
  return element(
    "article",
    { class: "message user", "data-id": message.id },
    element("h2", { class: "unseen" }, "You"),
    element("div", { class: "bubble" }, message.text),
    element("div", { class: "actions" }, action("copy", "Copy message", "copy"), action("edit", "Edit message and answer again", "pencil")),
  );
}

/** A user message that is being edited. */
export function editorView(message: UserMessage): HTMLElement {
  const field = element("textarea", { class: "field", rows: Math.min(12, message.text.split("\n").length + 1), "aria-label": "Edit message" });
  field.value = message.text;
  return element(
    "article",
    { class: "message user editing", "data-id": message.id },
    field,
    element("p", { class: "hint" }, "What follows this message is replaced by the new answer."),
    element(
      "div",
      { class: "row end" },
      element("button", { type: "button", class: "button", "data-action": "cancel-edit" }, "Cancel"),
      element("button", { type: "button", class: "button primary", "data-action": "send-edit" }, "Send"),
    ),
  );
}

export class AnswerView {
  readonly root: HTMLElement;
  private readonly body = element("div", { class: "markdown" });
  private readonly thought = element("div", { class: "markdown" });
  private readonly thinking = element("details", { class: "reasoning", hidden: true }, element("summary", {}, "Reasoning"), this.thought);
  private readonly foot = element("footer");
  private readonly text: MarkdownStream;
  private readonly reasoning = new MarkdownStream(this.thought);
  private scheduled = false;
  private reason = "Waiting for the first token";

  constructor(private answer: Answer) {
    const live = answer.state === "streaming";
    this.text = new MarkdownStream(this.body, live ? (node) => announce(node.textContent ?? "") : undefined);
    this.root = element(
      "article",
      { class: "message answer", "data-id": answer.id },
      element("h2", { class: "unseen" }, `Answer of ${answer.model || "the model"}`),
      this.thinking,
      this.body,
      this.foot,
    );
    this.update(answer);
  }

  /** Shows the answer as it is now; while it grows, once a frame at most. */
  update(answer: Answer): void {
    this.answer = answer;
    if (this.scheduled) return;
    this.scheduled = true;
    if (answer.state === "streaming" && answer.text + answer.reasoning !== "") requestAnimationFrame(() => this.draw());
    else this.draw();
  }

  /** Says what keeps the first token. */
  showReason(reason: string): void {
    this.reason = reason;
    this.drawFoot();
  }

  private draw(): void {
    this.scheduled = false;
    const { answer } = this;
    const streaming = answer.state === "streaming";
    if (answer.reasoning) {
      // Open while it is all there is to see; the reader's own choice counts afterwards.
      if (this.thinking.hidden) this.thinking.open = streaming && answer.text === "";
      else if (answer.text !== "" && this.body.childElementCount === 0) this.thinking.open = false;
      this.thinking.hidden = false;
      this.reasoning.update(answer.reasoning);
    }
    this.text.update(answer.text);
    this.root.classList.toggle("streaming", streaming);
    this.root.setAttribute("aria-busy", String(streaming));
    if (!streaming) {
      this.reasoning.finish();
      this.text.finish();
    }
    this.drawFoot();
  }

  private drawFoot(): void {
    const { answer } = this;
    if (answer.state === "streaming") {
      const waiting = answer.text + answer.reasoning === "" ? element("p", { class: "waiting" }, this.reason) : null;
      this.foot.replaceChildren(...(waiting ? [waiting] : []));
      return;
    }
    const note = noteOf(answer);
    const problem = note ? element("p", { class: answer.state === "failed" ? "problem" : "note", role: answer.state === "failed" ? "alert" : null }, note) : null;
    const retry =
      answer.state === "failed" || answer.state === "interrupted"
        ? element("button", { type: "button", class: "button", "data-action": "retry" }, "Try again")
        : null;
    if (problem && retry) problem.append(retry);
    const figures = element("span", { class: "figures" }, figuresOf(answer));
    const copy = answer.text === "" ? null : action("copy", "Copy answer", "copy");
    const again = retry ? null : action("retry", "Answer again", "retry");
    const actions = element("div", { class: "actions" }, copy, again, figures);
    this.foot.replaceChildren(...(problem ? [problem] : []), actions);
  }
}

function noteOf(answer: Answer): string | null {
  switch (answer.state) {
    case "failed":
      return answer.error ?? "The answer failed.";
    case "interrupted":
      return answer.error ?? "The page was closed before the answer was complete.";
    case "stopped":
      return "Stopped.";
    case "length":
      return "Ended at the limit of tokens.";
    default:
      return null;
  }
}

function figuresOf(answer: Answer): string {
  const figures = answer.figures ?? {};
  const parts: string[] = [];
  if (figures.tokensPerSecond !== undefined) parts.push(`${rate(figures.tokensPerSecond)} tokens/s`);
  if (figures.firstTokenMs !== undefined) parts.push(`first token after ${seconds(figures.firstTokenMs)}`);
  if (figures.completionTokens !== undefined) parts.push(`${count(figures.completionTokens)} tokens`);
  if (figures.promptTokens !== undefined) {
    const cached = figures.cachedTokens ? `, ${count(figures.cachedTokens)} cached` : "";
    parts.push(`prompt ${count(figures.promptTokens)}${cached}`);
  }
  if (figures.queueMs !== undefined && figures.queueMs >= 100) parts.push(`queued ${seconds(figures.queueMs)}`);
  return parts.join(" · ");
}
