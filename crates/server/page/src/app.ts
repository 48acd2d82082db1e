// Connects the parts of the page: conversations, answers under way, views.

import { ServerError, Client } from "./api/client";
import { byId, element } from "./dom";
import { Generation } from "./generation";
import { Library } from "./library";
import { Panel } from "./panel/panel";
import { newAnswer, newConversation, newUserMessage, titleOf, type Conversation, type Message } from "./store/conversation";
import { savePreferences, type Preferences } from "./store/preferences";
import { exportText, importText, merge, TransferError } from "./store/transfer";
import { Composer } from "./view/composer";
import { announce, Notices } from "./view/notice";
import { KeyDialog, SettingsDialog } from "./view/settings";
import { Shortcuts } from "./view/shortcuts";
import { Sidebar } from "./view/sidebar";
import { applyTheme, nextTheme } from "./view/theme";
import { Thread } from "./view/thread";

/** From this width on the live panel stands beside the text instead of over it. */
const WIDE = "(min-width: 1100px)";

export class App {
  private readonly client = new Client(() => this.preferences.key);
  private readonly notices = new Notices();
  private readonly library = new Library(
    (id) => this.changedElsewhere(id),
    (reason) => this.notices.show(reason),
  );
  private readonly thread = new Thread({ retry: (message) => this.retry(message), edit: (message, text) => this.edit(message, text) });
  private readonly composer = new Composer({ send: (text) => this.send(text), stop: () => this.stop() });
  private readonly sidebar = new Sidebar({
    open: (conversation) => this.open(conversation),
    rename: (conversation, title) => this.rename(conversation, title),
    remove: (conversation) => this.remove(conversation),
    save: (conversation) => download([conversation], titleOf(conversation)),
  });
  private readonly settings = new SettingsDialog({
    changed: (settings) => this.change(() => (this.current.settings = settings)),
    makeDefault: (defaults) => {
      this.prefer({ defaults });
      this.notices.show("New conversations begin with these settings.");
    },
    keyChanged: (key) => this.useKey(key),
  });
  private readonly keyDialog = new KeyDialog((key) => this.useKey(key));
  private readonly panel = new Panel(this.client, () => this.current.model);
  private readonly modelChoice = byId<HTMLSelectElement>("model");
  private models: string[] = [];
  private current: Conversation;

  constructor(private preferences: Preferences) {
    this.current = newConversation(preferences.model, preferences.defaults);
    this.listen();
    const shortcuts = this.shortcuts();
    byId("show-shortcuts").addEventListener("click", () => shortcuts.open());
    this.showTheme();
    this.panel.setOpen(preferences.panel && matchMedia(WIDE).matches);
  }

  async start(): Promise<void> {
    const id = location.hash.slice(1);
    this.open(this.current);
    const models = this.loadModels();
    await this.library.load();
    const asked = this.library.conversations.get(id);
    if (asked && this.current.messages.length === 0) this.open(asked);
    else this.showList();
    await models;
  }

  private listen(): void {
    const press = (id: string, run: () => void): void => byId(id).addEventListener("click", run);
    press("new", () => this.openNew());
    press("toggle-panel", () => this.togglePanel());
    press("close-panel", () => this.togglePanel());
    press("open-settings", () => this.openSettings());
    press("toggle-theme", () => this.switchTheme());
    press("export", () => download([...this.library.conversations.values()], "pianola conversations"));
    press("import", () => byId("import-file").click());
    byId("import-file").addEventListener("change", (event) => void this.import(event.target as HTMLInputElement));
    this.modelChoice.addEventListener("change", () => {
      this.prefer({ model: this.modelChoice.value });
      this.change(() => (this.current.model = this.modelChoice.value));
    });
    const single = byId<HTMLInputElement>("single-keys");
    single.checked = this.preferences.shortcuts;
    single.addEventListener("change", () => this.prefer({ shortcuts: single.checked }));
  }

  private shortcuts(): Shortcuts {
    const list = [
      { key: "/", text: "Write a message", run: () => this.composer.focus() },
      { key: "n", text: "New conversation", run: () => this.openNew() },
      { key: "s", text: "Search conversations", run: () => this.sidebar.focusSearch() },
      { key: "r", text: "Answer again", run: () => this.retry(this.current.messages.at(-1)) },
      { key: "e", text: "Edit your last message", run: () => this.thread.edit() },
      { key: ",", text: "Settings of the conversation", run: () => this.openSettings() },
      { key: "l", text: "Live panel", run: () => this.togglePanel() },
      { key: "t", text: "Light, dark or as the system", run: () => this.switchTheme() },
    ];
    return new Shortcuts(list, () => this.preferences.shortcuts, () => this.escape());
  }

  private escape(): void {
    if (this.sidebar.isOpen) this.sidebar.setOpen(false);
    else if (this.panel.isOpen && !matchMedia(WIDE).matches) this.togglePanel();
    else if (this.library.generations.has(this.current.id)) this.stop();
    else (document.activeElement as HTMLElement | null)?.blur();
  }

  // Conversations

  private open(conversation: Conversation): void {
    this.show(conversation);
    // On a touch screen the focus would open the keyboard over the text.
    if (matchMedia("(hover: hover)").matches) this.composer.focus();
  }

  private show(conversation: Conversation): void {
    this.current = conversation;
    const kept = this.library.conversations.has(conversation.id);
    history.replaceState(null, "", kept ? `#${conversation.id}` : location.pathname + location.search);
    this.thread.show(conversation);
    this.showModels();
    this.showList();
  }

  private openNew(): void {
    this.sidebar.setOpen(false);
    this.open(newConversation(this.preferences.model, this.preferences.defaults));
    this.composer.focus();
  }

  /** Changes the open conversation, and stores it if it is one that is kept. */
  private change(apply: () => void): void {
    apply();
    if (this.library.conversations.has(this.current.id)) this.library.save(this.current);
  }

  private rename(conversation: Conversation, title: string): void {
    conversation.title = title;
    this.library.save(conversation);
    this.showList();
  }

  private remove(conversation: Conversation): void {
    this.library.remove(conversation);
    if (conversation === this.current) this.openNew();
    else this.showList();
    const undo = (): void => {
      this.library.save(conversation);
      this.open(conversation);
    };
    this.notices.show(`Deleted “${titleOf(conversation)}”.`, { label: "Undo", run: undo });
  }

  private changedElsewhere(id: string): void {
    const conversation = this.library.conversations.get(id);
    if (id === this.current.id && conversation) this.show(conversation);
    else this.showList();
  }

  private async import(input: HTMLInputElement): Promise<void> {
    const file = input.files?.[0];
    if (!file) return;
    try {
      const fresh = merge(importText(await file.text()), this.library.conversations);
      for (const conversation of fresh) this.library.save(conversation);
      this.showList();
      this.notices.show(fresh.length === 0 ? "All conversations of the file are here already." : `Imported ${fresh.length} of the file's conversations.`);
    } catch (error) {
      if (!(error instanceof TransferError)) throw error;
      this.notices.show(error.message);
    } finally {
      input.value = "";
    }
  }

  private showList(): void {
    const title = titleOf(this.current);
    byId("title").textContent = title;
    document.title = this.current.messages.length > 0 ? `${title} – Pianola` : "Pianola";
    this.sidebar.show(this.library.conversations.values(), this.current.id, this.library.generations.keys());
    this.composer.setAnswering(this.library.generations.has(this.current.id));
  }

  // Answers

  private send(text: string): void {
    this.current.messages.push(newUserMessage(text));
    this.answer();
  }

  private edit(message: Message, text: string): void {
    const index = this.current.messages.indexOf(message);
    this.current.messages.splice(index, Infinity, newUserMessage(text));
    this.answer();
    this.composer.focus();
  }

  private retry(message: Message | undefined): void {
    if (message?.role !== "assistant") return;
    this.current.messages.splice(this.current.messages.indexOf(message));
    this.answer();
  }

  private answer(): void {
    const conversation = this.current;
    this.library.generations.get(conversation.id)?.stop();
    const answer = newAnswer(conversation.model);
    conversation.messages.push(answer);
    conversation.updated = Date.now();
    const generation = new Generation(conversation, answer, {
      waiting: (_, reason) => {
        if (conversation === this.current) this.thread.waiting(answer, reason);
      },
      progress: () => {
        this.library.saveSoon(conversation);
        if (conversation === this.current) this.thread.update(answer);
      },
      ended: (ended, failure) => this.ended(ended, failure),
    });
    this.library.generations.set(conversation.id, generation);
    this.library.save(conversation);
    this.open(conversation);
    announce("Answering");
    void generation.run(this.client);
  }

  private ended(generation: Generation, failure: ServerError | null): void {
    const { conversation, answer } = generation;
    if (this.library.generations.get(conversation.id) === generation) this.library.generations.delete(conversation.id);
    if (!this.library.conversations.has(conversation.id)) return;
    this.library.save(conversation);
    if (conversation === this.current) this.thread.update(answer);
    this.showList();
    if (answer.state === "complete") announce("The answer is complete.");
    if (failure?.failure === "unauthorised") this.keyDialog.open(this.preferences.key);
  }

  private stop(): void {
    this.library.generations.get(this.current.id)?.stop();
  }

  // Server and preferences

  private openSettings(): void {
    this.settings.open(this.current.settings, this.preferences.key);
    const unknown = (error: unknown): void => {
      if (!(error instanceof ServerError)) throw error;
    };
    this.client.status(AbortSignal.timeout(5000)).then((status) => this.settings.showDefaults(status.sampling ?? {}), unknown);
  }

  private async loadModels(): Promise<void> {
    try {
      this.models = await this.client.models();
      byId("models-problem").hidden = true;
    } catch (error) {
      if (!(error instanceof ServerError)) throw error;
      if (error.failure === "unauthorised") this.keyDialog.open(this.preferences.key);
      this.showModelsProblem(error.message);
    }
    this.showModels();
  }

  private showModelsProblem(text: string): void {
    const retry = element("button", { type: "button", class: "button" }, "Try again");
    retry.addEventListener("click", () => void this.loadModels());
    const place = byId("models-problem");
    place.replaceChildren(element("span", {}, text), retry);
    place.hidden = false;
  }

  private showModels(): void {
    const chosen = this.models.includes(this.current.model) ? this.current.model : this.models.includes(this.preferences.model) ? this.preferences.model : this.models[0];
    if (chosen !== undefined) this.current.model = chosen;
    this.modelChoice.replaceChildren(...this.models.map((id) => element("option", { value: id, selected: id === chosen }, id)));
    if (this.models.length === 0) this.modelChoice.append(element("option", {}, "no models"));
    this.modelChoice.disabled = this.models.length === 0;
    byId("welcome-model").textContent = chosen ?? "the model";
  }

  private useKey(key: string): void {
    this.prefer({ key });
    void this.loadModels();
    const last = this.current.messages.at(-1);
    if (last?.role === "assistant" && last.state === "failed") this.retry(last);
  }

  private togglePanel(): void {
    this.panel.setOpen(!this.panel.isOpen);
    this.prefer({ panel: this.panel.isOpen });
    if (!this.panel.isOpen) byId("toggle-panel").focus();
    else if (!matchMedia(WIDE).matches) byId("close-panel").focus();
  }

  private switchTheme(): void {
    this.prefer({ theme: nextTheme(this.preferences.theme) });
    this.showTheme();
  }

  private showTheme(): void {
    applyTheme(this.preferences.theme);
    byId("theme-name").textContent = { system: "system", light: "light", dark: "dark" }[this.preferences.theme];
  }

  private prefer(change: Partial<Preferences>): void {
    this.preferences = { ...this.preferences, ...change };
    savePreferences(this.preferences);
  }
}

function download(conversations: Conversation[], name: string): void {
  const link = element("a", { download: `${name.replace(/[^\p{L}\p{N} _-]/gu, "").slice(0, 60) || "conversation"}.json` });
  link.href = URL.createObjectURL(new Blob([exportText(conversations)], { type: "application/json" }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
