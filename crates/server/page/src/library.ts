// The conversations of this browser: in memory for the page, in the database for the next visit.

import type { Conversation } from "./store/conversation";
import { Database, keepPartial } from "./store/database";
import type { Generation } from "./generation";

/** While an answer grows, its conversation is stored this often. */
const SAVE_MS = 500;

export class Library {
  readonly conversations = new Map<string, Conversation>();
  /** Answers under way, by the id of their conversation. */
  readonly generations = new Map<string, Generation>();
  private database: Database | null = null;
  private readonly due = new Map<string, number>();

  /** `failed` is told in words why something is not kept. */
  constructor(
    private readonly changed: (id: string) => void,
    private readonly failed: (reason: string) => void,
  ) {
    window.addEventListener("pagehide", () => {
      for (const { conversation, answer } of this.generations.values()) keepPartial(conversation, answer);
    });
  }

  async load(): Promise<void> {
    try {
      this.database = await Database.open();
      for (const conversation of await this.database.all()) this.conversations.set(conversation.id, settled(conversation));
      this.database.watch((id) => void this.reload(id));
    } catch (error) {
      this.failed(`This browser does not keep conversations: ${reasonOf(error)}`);
    }
  }

  /** Stores a conversation now. */
  save(conversation: Conversation): void {
    clearTimeout(this.due.get(conversation.id));
    this.due.delete(conversation.id);
    this.conversations.set(conversation.id, conversation);
    this.database?.put(conversation).catch((error: unknown) => this.failed(`The conversation could not be stored: ${reasonOf(error)}`));
  }

  /** Stores a conversation that changes many times a second. */
  saveSoon(conversation: Conversation): void {
    if (this.due.has(conversation.id)) return;
    this.due.set(
      conversation.id,
      window.setTimeout(() => this.save(conversation), SAVE_MS),
    );
  }

  remove(conversation: Conversation): void {
    this.generations.get(conversation.id)?.stop();
    this.generations.delete(conversation.id);
    clearTimeout(this.due.get(conversation.id));
    this.due.delete(conversation.id);
    this.conversations.delete(conversation.id);
    this.database?.remove(conversation.id).catch((error: unknown) => this.failed(`The conversation could not be deleted: ${reasonOf(error)}`));
  }

  /** Takes over what another tab has stored, unless this one is writing to the same conversation. */
  private async reload(id: string): Promise<void> {
    if (this.generations.has(id) || !this.database) return;
    const stored = await this.database.get(id);
    if (stored) this.conversations.set(id, settled(stored));
    else this.conversations.delete(id);
    this.changed(id);
  }
}

/** An answer that is stored as growing has lost the page that received it. */
function settled(conversation: Conversation): Conversation {
  for (const message of conversation.messages) if (message.role === "assistant" && message.state === "streaming") message.state = "interrupted";
  return conversation;
}

function reasonOf(error: unknown): string {
  if (error instanceof DOMException && error.name === "QuotaExceededError") return "its storage is full. Export and delete some.";
  return error instanceof Error ? error.message : String(error);
}
