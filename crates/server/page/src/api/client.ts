// Calls the server. Every failure becomes a `ServerError` with a sentence that a reader can act on.

import { EventSplitter } from "./events";
import type { ChatChunk, ChatRequest, Status } from "./types";

export type Failure = "unauthorised" | "unreachable" | "refused" | "broken";

export class ServerError extends Error {
  constructor(
    readonly failure: Failure,
    message: string,
    readonly status = 0,
  ) {
    super(message);
  }
}

export class Client {
  /** `key` is asked before every request, so that a new key counts at once. */
  constructor(private readonly key: () => string) {}

  async models(): Promise<string[]> {
    const body = await this.json<{ data?: { id?: unknown }[] }>("v1/models");
    const ids = (body.data ?? []).map((model) => model.id);
    return ids.filter((id): id is string => typeof id === "string");
  }

  status(signal: AbortSignal): Promise<Status> {
    return this.json<Status>("status", signal);
  }

  /** The chunks of an answer; ends when the server says that it is done. */
  async *chat(request: ChatRequest, signal: AbortSignal): AsyncGenerator<ChatChunk> {
    const body = JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } });
    const response = await this.request("v1/chat/completions", { method: "POST", body, signal });
    if (!response.headers.get("content-type")?.startsWith("text/event-stream") || !response.body) {
      throw new ServerError("broken", "The server answered, but not with a stream. Is something else running at this address?");
    }
    for await (const data of eventsOf(response.body)) {
      if (data === "[DONE]") return;
      const chunk = parseChunk(data);
      if (chunk.error) throw new ServerError("refused", sentence(chunk.error.message ?? "The server stopped with an error."));
      yield chunk;
    }
    throw new ServerError("broken", "The connection ended before the answer was complete.");
  }

  private async json<T>(path: string, signal?: AbortSignal): Promise<T> {
    const response = await this.request(path, { signal: signal ?? null });
    try {
      return (await response.json()) as T;
    } catch (error) {
      if (isAbort(error)) throw error;
      throw new ServerError("broken", `The server's answer to /${path} is not JSON.`);
    }
  }

  private async request(path: string, init: RequestInit): Promise<Response> {
    const headers = new Headers();
    if (init.body) headers.set("content-type", "application/json");
    const key = this.key();
    if (key) headers.set("authorization", `Bearer ${key}`);
    let response: Response;
    try {
      response = await fetch(path, { ...init, headers, credentials: "same-origin" });
    } catch (error) {
      if (isAbort(error)) throw error;
      throw new ServerError("unreachable", "The server does not answer. Check that pianola serve is running and reachable.");
    }
    if (response.ok) return response;
    throw await failureOf(response);
  }
}

export function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}

async function* eventsOf(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const splitter = new EventSplitter();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* splitter.push(decoder.decode(value, { stream: true }));
    }
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new ServerError("broken", "The connection broke before the answer was complete.");
  } finally {
    // Closes the connection where the reader leaves early; fails only where it is closed already.
    reader.cancel().catch(() => {});
  }
}

function parseChunk(data: string): ChatChunk {
  try {
    const chunk: unknown = JSON.parse(data);
    if (typeof chunk === "object" && chunk !== null) return chunk as ChatChunk;
  } catch {
    // Told below, together with JSON of another shape.
  }
  throw new ServerError("broken", "The server sent something that is not a part of an answer.");
}

async function failureOf(response: Response): Promise<ServerError> {
  const said = await messageOf(response);
  const { status } = response;
  if (status === 401) return new ServerError("unauthorised", "The server asks for a key, or does not accept the one it got.", status);
  if (said) return new ServerError("refused", sentence(said), status);
  if (status === 429 || status === 503) return new ServerError("refused", "The server is busy. Try again in a moment.", status);
  if (status === 404) return new ServerError("refused", "The server does not know this address or model (404).", status);
  return new ServerError("refused", `The server answered with status ${status} and gave no reason.`, status);
}

async function messageOf(response: Response): Promise<string | null> {
  try {
    const body = (await response.json()) as { error?: { message?: unknown } | string };
    const message = typeof body.error === "string" ? body.error : body.error?.message;
    return typeof message === "string" && message.trim() !== "" ? message : null;
  } catch {
    return null;
  }
}

function sentence(text: string): string {
  const trimmed = text.trim();
  const capital = trimmed.charAt(0).toUpperCase() + trimmed.slice(1);
  return /[.!?]$/.test(capital) ? capital : `${capital}.`;
}
