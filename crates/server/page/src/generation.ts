// One answer while it is being written: receives the stream and keeps the answer up to date.

import { isAbort, ServerError, type Client } from "./api/client";
import type { ChatChunk, Status, Timings, Usage } from "./api/types";
import { promptOf, type Answer, type Conversation, type Figures } from "./store/conversation";

/** Between two questions to the server for what keeps the first token. */
const ASK_MS = 1000;

export interface GenerationEvents {
  /** No token has come yet; `reason` says what the server is doing. */
  waiting(generation: Generation, reason: string): void;
  /** The answer has grown. */
  progress(generation: Generation): void;
  /** The answer has ended, whichever way; `failure` says why where the server refused it. */
  ended(generation: Generation, failure: ServerError | null): void;
}

export class Generation {
  private readonly controller = new AbortController();
  private readonly started = performance.now();
  private firstToken: number | null = null;
  private lastToken = 0;
  private finish: string | null = null;
  private usage: Usage = {};
  private timings: Timings = {};

  constructor(
    readonly conversation: Conversation,
    readonly answer: Answer,
    private readonly events: GenerationEvents,
  ) {}

  stop(): void {
    this.controller.abort();
  }

  async run(client: Client): Promise<void> {
    const { conversation, answer } = this;
    let failure: ServerError | null = null;
    try {
      const messages = promptOf(conversation, conversation.messages.indexOf(answer));
      void this.watch(client);
      const request = { model: answer.model, messages, ...conversation.settings.sampling };
      for await (const chunk of client.chat(request, this.controller.signal)) this.receive(chunk);
      answer.state = this.finish === "length" ? "length" : "complete";
    } catch (error) {
      if (isAbort(error)) {
        answer.state = "stopped";
      } else if (error instanceof ServerError) {
        failure = error;
        answer.state = error.failure === "broken" && answer.text + answer.reasoning !== "" ? "interrupted" : "failed";
        answer.error = error.message;
      } else {
        answer.state = "failed";
        answer.error = "The page itself failed; the browser's console says where.";
        console.error(error);
      }
    }
    answer.figures = this.figures();
    this.events.ended(this, failure);
  }

  /** Tells what the server is doing until the first token comes. */
  private async watch(client: Client): Promise<void> {
    for (;;) {
      await new Promise((resolve) => setTimeout(resolve, ASK_MS));
      if (this.firstToken !== null || this.answer.state !== "streaming") return;
      try {
        const reason = reasonOf(await client.status(this.controller.signal), this.answer.model);
        if (this.firstToken === null && this.answer.state === "streaming") this.events.waiting(this, reason);
      } catch (error) {
        // The answer itself says what is wrong.
        if (isAbort(error) || error instanceof ServerError) return;
        throw error;
      }
    }
  }

  private receive(chunk: ChatChunk): void {
    const choice = chunk.choices?.[0];
    const { content, reasoning_content: reasoning } = choice?.delta ?? {};
    if (content || reasoning) {
      this.lastToken = performance.now();
      this.firstToken ??= this.lastToken;
      this.answer.text += content ?? "";
      this.answer.reasoning += reasoning ?? "";
      this.events.progress(this);
    }
    this.finish = choice?.finish_reason ?? this.finish;
    this.usage = chunk.usage ?? this.usage;
    this.timings = chunk.timings ?? this.timings;
  }

  private figures(): Figures {
    const { usage, timings } = this;
    const completionTokens = usage.completion_tokens ?? timings.generated_tokens;
    // The server's own time leaves out the network; the page's is the next best.
    const generationMs = timings.generation_ms ?? (this.firstToken === null ? null : this.lastToken - this.firstToken);
    const figures = {
      firstTokenMs: this.firstToken === null ? null : this.firstToken - this.started,
      tokensPerSecond: completionTokens && generationMs ? (completionTokens * 1000) / generationMs : null,
      completionTokens,
      promptTokens: usage.prompt_tokens ?? timings.prompt_tokens,
      cachedTokens: timings.cached_tokens,
      queueMs: timings.queue_ms,
    };
    return Object.fromEntries(Object.entries(figures).filter(([, value]) => typeof value === "number")) as Figures;
  }
}

function reasonOf(status: Status, name: string): string {
  const model = status.models?.find(({ id }) => id === name);
  if (model?.state === "loading" || model?.state === "unloaded") return `Loading ${name}`;
  return model?.waiting ? "Waiting for other requests to end" : "Reading the prompt";
}
