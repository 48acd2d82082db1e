// The list of conversations: search, open, rename, delete, export.

import { byId, element } from "../dom";
import { matches, titleOf, type Conversation } from "../store/conversation";
import { icon, type IconName } from "./icons";

export interface SidebarEvents {
  open(conversation: Conversation): void;
  rename(conversation: Conversation, title: string): void;
  remove(conversation: Conversation): void;
  save(conversation: Conversation): void;
}

export class Sidebar {
  private readonly root = byId("sidebar");
  private readonly list = byId("conversations");
  private readonly search = byId<HTMLInputElement>("search");
  private conversations: Conversation[] = [];
  private current = "";
  private running = new Set<string>();

  constructor(private readonly events: SidebarEvents) {
    this.search.addEventListener("input", () => this.draw());
    byId("menu").addEventListener("click", () => this.setOpen(true));
    byId("close-menu").addEventListener("click", () => this.setOpen(false));
    byId("veil").addEventListener("click", () => this.setOpen(false));
    // A drawer that is shut must not catch the focus; beside the text the list always shows.
    const narrow = matchMedia("(max-width: 899px)");
    narrow.addEventListener("change", () => this.setOpen(false));
    this.setOpen(false);
  }

  get isOpen(): boolean {
    return this.root.classList.contains("open");
  }

  setOpen(open: boolean): void {
    const narrow = matchMedia("(max-width: 899px)").matches;
    this.root.classList.toggle("open", open && narrow);
    this.root.inert = narrow && !open;
    byId("veil").hidden = !(open && narrow);
    byId("menu").setAttribute("aria-expanded", String(open && narrow));
    if (!narrow) return;
    if (open) byId("close-menu").focus();
    else if (this.root.contains(document.activeElement)) byId("menu").focus();
  }

  focusSearch(): void {
    this.setOpen(true);
    this.search.focus();
  }

  /** Draws the list, the latest first; `running` are those with an answer under way. */
  show(conversations: Iterable<Conversation>, current: string, running: Iterable<string>): void {
    this.conversations = [...conversations].sort((a, b) => b.updated - a.updated);
    this.current = current;
    this.running = new Set(running);
    this.draw();
  }

  private draw(): void {
    if (this.list.querySelector("input")) return;
    const shown = this.conversations.filter((conversation) => matches(conversation, this.search.value));
    const focused = (document.activeElement as HTMLElement | null)?.closest<HTMLElement>("#conversations li")?.dataset.id;
    this.list.replaceChildren(...shown.map((conversation) => this.entry(conversation)));
    if (focused) this.list.querySelector<HTMLElement>(`li[data-id="${CSS.escape(focused)}"] .open`)?.focus();
    const none = byId("no-conversations");
    none.hidden = shown.length > 0;
    none.textContent = this.conversations.length > 0 ? "No conversation has this text." : "No conversations yet.";
  }

  private entry(conversation: Conversation): HTMLElement {
    const title = titleOf(conversation);
    const isCurrent = conversation.id === this.current;
    const open = element("button", { type: "button", class: "open", "aria-current": isCurrent ? "true" : null, title }, element("span", {}, title));
    if (this.running.has(conversation.id)) open.append(element("span", { class: "running", role: "img", "aria-label": "answering" }));
    open.addEventListener("click", () => {
      this.events.open(conversation);
      this.setOpen(false);
    });
    const entry = element("li", { "data-id": conversation.id, class: isCurrent ? "current" : null }, open);
    entry.append(
      element(
        "span",
        { class: "tools" },
        tool("Rename", title, "pencil", () => this.rename(entry, conversation)),
        tool("Export", title, "download", () => this.events.save(conversation)),
        tool("Delete", title, "trash", () => this.events.remove(conversation)),
      ),
    );
    return entry;
  }

  private rename(entry: HTMLElement, conversation: Conversation): void {
    const field = element("input", { class: "field", "aria-label": "Title of the conversation", maxlength: 200 });
    field.value = titleOf(conversation);
    entry.replaceChildren(field);
    field.select();
    let ended = false;
    const end = (keep: boolean): void => {
      if (ended) return;
      ended = true;
      const title = field.value.trim();
      field.remove();
      if (keep && title) this.events.rename(conversation, title);
      this.draw();
    };
    field.addEventListener("blur", () => end(true));
    field.addEventListener("keydown", (event) => {
      if (event.isComposing || (event.key !== "Enter" && event.key !== "Escape")) return;
      event.stopPropagation();
      end(event.key === "Enter");
    });
  }
}

function tool(label: string, title: string, sign: IconName, run: () => void): HTMLElement {
  const button = element("button", { type: "button", class: "icon-button small", title: label, "aria-label": `${label}: ${title}` }, icon(sign));
  button.addEventListener("click", run);
  return button;
}
