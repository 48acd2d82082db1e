// Keeps conversations in the browser's IndexedDB, one record each.
//
// A page that is closed in the middle of an answer has no time left for IndexedDB, so what it had
// received goes to localStorage, which writes at once, and is merged into the record at the next start.

import type { Answer, Conversation } from "./conversation";

const NAME = "pianola";
const STORE = "conversations";
const PARTIAL = "pianola.partial.";

export class Database {
  private readonly channel = new BroadcastChannel("pianola");

  private constructor(private readonly database: IDBDatabase) {}

  static async open(): Promise<Database> {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
    return new Database(await resultOf(request));
  }

  /** Calls `changed` with the id of a conversation that another tab has stored or deleted. */
  watch(changed: (id: string) => void): void {
    this.channel.onmessage = (event) => changed(event.data as string);
  }

  async get(id: string): Promise<Conversation | undefined> {
    return resultOf(this.database.transaction(STORE).objectStore(STORE).get(id));
  }

  async all(): Promise<Conversation[]> {
    const stored: Conversation[] = await resultOf(this.database.transaction(STORE).objectStore(STORE).getAll());
    for (const conversation of stored) if (mergePartial(conversation)) await this.put(conversation);
    return stored;
  }

  async put(conversation: Conversation): Promise<void> {
    await this.write(conversation.id, (store) => store.put(conversation));
  }

  async remove(id: string): Promise<void> {
    await this.write(id, (store) => store.delete(id));
  }

  private async write(id: string, change: (store: IDBObjectStore) => IDBRequest): Promise<void> {
    const transaction = this.database.transaction(STORE, "readwrite");
    change(transaction.objectStore(STORE));
    await new Promise<void>((resolve, reject) => {
      transaction.oncomplete = () => resolve();
      transaction.onabort = () => reject(transaction.error);
    });
    this.channel.postMessage(id);
  }
}

/** Notes how far an answer had come when the page was closed. */
export function keepPartial(conversation: Conversation, answer: Answer): void {
  try {
    localStorage.setItem(PARTIAL + conversation.id, JSON.stringify(answer));
  } catch {
    // Full: the record in IndexedDB, at most half a second older, remains.
  }
}

/** Completes an answer that the record has only in part; whether there was a note that does. */
function mergePartial(conversation: Conversation): boolean {
  const noted = localStorage.getItem(PARTIAL + conversation.id);
  if (noted === null) return false;
  localStorage.removeItem(PARTIAL + conversation.id);
  const partial = JSON.parse(noted) as Answer;
  const index = conversation.messages.findIndex((message) => message.id === partial.id);
  const stored = conversation.messages[index];
  if (stored?.role !== "assistant" || stored.state !== "streaming") return false;
  conversation.messages[index] = { ...partial, state: "interrupted" };
  return true;
}

function resultOf<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
