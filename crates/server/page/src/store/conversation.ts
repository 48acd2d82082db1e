// A conversation as it is kept in the browser and in exported files.

import type { ChatMessage, Sampling } from "../api/types";

/** How an answer ended; `streaming` is also what a reload in the middle of one leaves behind. */
export type AnswerState = "streaming" | "complete" | "length" | "stopped" | "interrupted" | "failed";

/** What is told below an answer. */
export interface Figures {
  /** From sending the request to the first part of the answer, as the page saw it. */
  firstTokenMs?: number;
  tokensPerSecond?: number;
  completionTokens?: number;
  promptTokens?: number;
  cachedTokens?: number;
  queueMs?: number;
}

export interface UserMessage {
  id: string;
  role: "user";
  text: string;
}

export interface Answer {
  id: string;
  role: "assistant";
  text: string;
  reasoning: string;
  model: string;
  state: AnswerState;
  error?: string;
  figures?: Figures;
}

export type Message = UserMessage | Answer;

export interface ChatSettings {
  system: string;
  sampling: Sampling;
}

export interface Conversation {
  id: string;
  title: string;
  /** Milliseconds since 1970. */
  created: number;
  updated: number;
  model: string;
  settings: ChatSettings;
  messages: Message[];
}

export function newConversation(model: string, settings: ChatSettings): Conversation {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, model, settings: structuredClone(settings), messages: [] };
}

export function newAnswer(model: string): Answer {
  return { id: newId(), role: "assistant", text: "", reasoning: "", model, state: "streaming" };
}

export function newUserMessage(text: string): UserMessage {
  return { id: newId(), role: "user", text };
}

/** `crypto.randomUUID` exists on https and localhost only; the page is also served over a LAN. */
export function newId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function titleOf(conversation: Conversation): string {
  if (conversation.title) return conversation.title;
  const first = conversation.messages.find((message) => message.role === "user")?.text.trim() ?? "";
  const line = first.split("\n", 1)[0]!;
  return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line || "New conversation";
}

/**
 * What the server is sent: the messages up to `end`. Chat templates want turns to alternate, so an
 * answer that stayed empty is left out and messages of one role in a row become one.
 */
export function promptOf(conversation: Conversation, end: number): ChatMessage[] {
  const prompt: ChatMessage[] = [];
  const system = conversation.settings.system.trim();
  if (system) prompt.push({ role: "system", content: system });
  for (const { role, text } of conversation.messages.slice(0, end)) {
    if (role === "assistant" && text === "") continue;
    const last = prompt.at(-1);
    if (last?.role === role) last.content += `\n\n${text}`;
    else prompt.push({ role, content: text });
  }
  return prompt;
}

export function matches(conversation: Conversation, query: string): boolean {
  const wanted = query.trim().toLowerCase();
  if (wanted === "") return true;
  return [titleOf(conversation), ...conversation.messages.map((message) => message.text)].some((text) => text.toLowerCase().includes(wanted));
}
