// Conversations as a JSON file. A file may come from anywhere, so every field is checked.

import type { Sampling } from "../api/types";
import { newId, type Answer, type AnswerState, type Conversation, type Figures, type Message } from "./conversation";

const FORMAT = "pianola-conversations";
const VERSION = 1;
const STATES: AnswerState[] = ["complete", "length", "stopped", "interrupted", "failed"];
const SAMPLING: (keyof Sampling)[] = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
const FIGURES: (keyof Figures)[] = ["firstTokenMs", "tokensPerSecond", "completionTokens", "promptTokens", "cachedTokens", "queueMs"];

export class TransferError extends Error {}

export function exportText(conversations: Conversation[]): string {
  return `${JSON.stringify({ format: FORMAT, version: VERSION, exported: new Date().toISOString(), conversations }, null, 1)}\n`;
}

export function importText(text: string): Conversation[] {
  let file: unknown;
  try {
    file = JSON.parse(text);
  } catch {
    throw new TransferError("The file is not JSON. Choose a file that this page has exported.");
  }
  const { format, version, conversations } = record(file, "the file");
  if (format !== FORMAT || !Array.isArray(conversations)) throw new TransferError("The file holds no conversations of Pianola.");
  if (version !== VERSION) throw new TransferError(`The file has version ${String(version)}; this page reads version ${VERSION}.`);
  return conversations.map((value, index) => conversationOf(value, `conversation ${index + 1}`));
}

/** Those of `incoming` that are new; one that has the id of another conversation gets its own. */
export function merge(incoming: Conversation[], present: ReadonlyMap<string, Conversation>): Conversation[] {
  const all = new Map(present);
  const fresh: Conversation[] = [];
  for (const conversation of incoming) {
    const known = all.get(conversation.id);
    if (known && JSON.stringify(known.messages) === JSON.stringify(conversation.messages)) continue;
    const added = known ? { ...conversation, id: newId() } : conversation;
    all.set(added.id, added);
    fresh.push(added);
  }
  return fresh;
}

function conversationOf(value: unknown, where: string): Conversation {
  const fields = record(value, where);
  const settings = record(fields.settings ?? {}, `the settings of ${where}`);
  if (!Array.isArray(fields.messages)) throw new TransferError(`In the file, ${where} has no messages.`);
  return {
    id: text(fields.id, `the id of ${where}`),
    title: text(fields.title ?? "", `the title of ${where}`),
    created: number(fields.created, `the date of ${where}`),
    updated: number(fields.updated, `the date of ${where}`),
    model: text(fields.model ?? "", `the model of ${where}`),
    settings: { system: text(settings.system ?? "", `the system prompt of ${where}`), sampling: numbers(settings.sampling, SAMPLING, `the sampling of ${where}`) },
    messages: fields.messages.map((message, index) => messageOf(message, `message ${index + 1} of ${where}`)),
  };
}

function messageOf(value: unknown, where: string): Message {
  const fields = record(value, where);
  const id = text(fields.id, `the id of ${where}`);
  const content = text(fields.text, `the text of ${where}`);
  if (fields.role === "user") return { id, role: "user", text: content };
  if (fields.role !== "assistant") throw new TransferError(`In the file, ${where} is neither from a user nor an answer.`);
  const state = STATES.find((known) => known === fields.state) ?? "interrupted";
  const answer: Answer = { id, role: "assistant", text: content, reasoning: text(fields.reasoning ?? "", `the reasoning of ${where}`), model: text(fields.model ?? "", `the model of ${where}`), state };
  if (fields.error !== undefined) answer.error = text(fields.error, `the error of ${where}`);
  if (fields.figures !== undefined) answer.figures = numbers(fields.figures, FIGURES, `the figures of ${where}`);
  return answer;
}

function record(value: unknown, what: string): Record<string, unknown> {
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  throw new TransferError(`In the file, ${what} has the wrong form.`);
}

function text(value: unknown, what: string): string {
  if (typeof value === "string") return value;
  throw new TransferError(`In the file, ${what} is not text.`);
}

function number(value: unknown, what: string): number {
  if (typeof value === "number" && Number.isFinite(value)) return value;
  throw new TransferError(`In the file, ${what} is not a number.`);
}

function numbers<K extends string>(value: unknown, names: K[], what: string): Partial<Record<K, number>> {
  const fields = record(value ?? {}, what);
  const kept: Partial<Record<K, number>> = {};
  for (const name of names) if (fields[name] !== undefined && fields[name] !== null) kept[name] = number(fields[name], `"${name}" in ${what}`);
  return kept;
}
