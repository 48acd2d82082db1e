// The messages of the open conversation: draws them, follows a growing answer, handles their buttons.

import { byId } from "../dom";
import type { Answer, Conversation, Message } from "../store/conversation";
import { AnswerView, editorView, userView } from "./message";

export interface ThreadEvents {
  retry(message: Message): void;
  edit(message: Message, text: string): void;
}

/** How near to the end, in pixels, counts as being there. */
const NEAR = 48;

export class Thread {
  private readonly scroller = byId("scroller");
  private readonly list = byId("messages");
  private readonly latest = byId("latest");
  private conversation: Conversation | null = null;
  private answers = new Map<string, AnswerView>();
  private following = true;
  /** Width of the text when it was scrolled last: another one means that the layout scrolled, and no reader. */
  private width = 0;

  constructor(private readonly events: ThreadEvents) {
    this.list.addEventListener("click", (event) => this.clicked(event));
    this.list.addEventListener("keydown", (event) => this.keyed(event));
    this.scroller.addEventListener("scroll", () => this.scrolled());
    this.latest.addEventListener("click", () => this.follow());
    const sizes = new ResizeObserver(() => this.keepUp());
    sizes.observe(this.list);
    sizes.observe(this.scroller);
  }

  show(conversation: Conversation): void {
    this.conversation = conversation;
    this.answers.clear();
    this.list.replaceChildren(...conversation.messages.map((message) => this.view(message)));
    document.body.classList.toggle("empty", conversation.messages.length === 0);
    this.follow();
  }

  update(answer: Answer): void {
    this.answers.get(answer.id)?.update(answer);
  }

  /** Says below an answer without a token yet what the server is doing. */
  waiting(answer: Answer, reason: string): void {
    this.answers.get(answer.id)?.showReason(reason);
  }

  /** Opens the editor of a message, or of the last one of the user. */
  edit(message = this.conversation?.messages.findLast(({ role }) => role === "user")): void {
    const shown = message && this.find(message.id);
    if (message?.role !== "user" || !shown) return;
    this.closeEditors();
    const editor = editorView(message);
    this.find(message.id)!.replaceWith(editor);
    const field = editor.querySelector("textarea")!;
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }

  private view(message: Message): HTMLElement {
    if (message.role === "user") return userView(message);
    const view = new AnswerView(message);
    this.answers.set(message.id, view);
    return view.root;
  }

  private find(id: string): HTMLElement | undefined {
    return [...this.list.children].find((child): child is HTMLElement => (child as HTMLElement).dataset.id === id);
  }

  private clicked(event: Event): void {
    const button = (event.target as Element).closest<HTMLElement>("[data-action]");
    const id = button?.closest<HTMLElement>("[data-id]")?.dataset.id;
    const message = this.conversation?.messages.find((candidate) => candidate.id === id);
    if (!button || !message) return;
    switch (button.dataset.action) {
      case "copy":
        return void copy(message.text, button);
      case "copy-code":
        return void copy(button.closest("figure")!.querySelector("code")!.textContent ?? "", button);
      case "retry":
        return this.events.retry(message);
      case "edit":
        return this.edit(message);
      case "cancel-edit":
        return this.closeEditors();
      case "send-edit":
        return this.sendEdit(message);
    }
  }

  private keyed(event: KeyboardEvent): void {
    const editor = (event.target as Element).closest<HTMLElement>(".editing");
    if (!editor || event.isComposing || !(event.target instanceof HTMLTextAreaElement)) return;
    if (event.key === "Escape") {
      this.closeEditors();
      this.find(editor.dataset.id!)?.querySelector<HTMLElement>("[data-action=edit]")?.focus();
    } else if (event.key === "Enter" && !event.shiftKey) {
      const message = this.conversation?.messages.find(({ id }) => id === editor.dataset.id);
      if (message) this.sendEdit(message);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  private sendEdit(message: Message): void {
    const text = this.find(message.id)!.querySelector("textarea")!.value.trim();
    if (text) this.events.edit(message, text);
  }

  private closeEditors(): void {
    for (const editor of this.list.querySelectorAll<HTMLElement>(".editing")) {
      const message = this.conversation?.messages.find(({ id }) => id === editor.dataset.id);
      if (message?.role === "user") editor.replaceWith(userView(message));
    }
  }

  private scrolled(): void {
    const { scrollTop, clientHeight, clientWidth, scrollHeight } = this.scroller;
    if (clientWidth !== this.width) {
      this.width = clientWidth;
      if (this.following) return this.keepUp();
    }
    this.following = scrollHeight - clientHeight - scrollTop < NEAR;
    this.latest.hidden = this.following;
  }

  private follow(): void {
    this.following = true;
    this.latest.hidden = true;
    this.keepUp();
  }

  private keepUp(): void {
    if (this.following) this.scroller.scrollTop = this.scroller.scrollHeight;
    else this.scrolled();
  }
}

/** Copies, also on pages without https, where browsers offer no clipboard to scripts. */
async function copy(text: string, button: HTMLElement): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = document.createElement("textarea");
    field.value = text;
    field.className = "unseen";
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  button.classList.add("done");
  const label = button.textContent;
  if (label) button.textContent = "Copied";
  setTimeout(() => {
    button.classList.remove("done");
    if (label) button.textContent = label;
  }, 1500);
}
