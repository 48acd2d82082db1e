// What the server's endpoints take and answer, as far as the page uses it.

export interface ChatMessage {
  role: "system" | "user" | "assistant";
  content: string;
}

/** Sampling settings; a missing one leaves the choice to the server. */
export interface Sampling {
  temperature?: number;
  top_p?: number;
  top_k?: number;
  min_p?: number;
  max_tokens?: number;
  seed?: number;
}

export interface ChatRequest extends Sampling {
  model: string;
  messages: ChatMessage[];
}

export interface Usage {
  prompt_tokens?: number | null;
  completion_tokens?: number | null;
}

export interface Timings {
  queue_ms?: number | null;
  prompt_ms?: number | null;
  generation_ms?: number | null;
  prompt_tokens?: number | null;
  cached_tokens?: number | null;
  generated_tokens?: number | null;
}

/** One event of a streamed answer. */
export interface ChatChunk {
  choices?: { delta?: { content?: string | null; reasoning_content?: string | null }; finish_reason?: string | null }[];
  usage?: Usage | null;
  timings?: Timings | null;
  error?: { message?: string; code?: string | number | null } | null;
}

type Count = number | null | undefined;

export interface Heap {
  name: string;
  used_bytes: Count;
  total_bytes: Count;
}

export interface Part {
  device: string;
  /** First layer, and the one after the last. */
  layers: [number, number] | null;
  head?: boolean | null;
  weight_bytes: Count;
  heaps?: Heap[] | null;
}

export interface ModelStatus {
  id: string;
  state: "loaded" | "loading" | "unloaded" | "failed";
  devices?: string | null;
  context?: Count;
  lanes?: Count;
  parts?: Part[] | null;
  ceiling_tokens_per_second?: Count;
  running?: Count;
  waiting?: Count;
  kv?: { pages: Count; used: Count; kept: Count; free: Count } | null;
  counters?: {
    steps?: Count;
    prompt_tokens?: Count;
    cached_tokens?: Count;
    generated_tokens?: Count;
    preemptions?: Count;
    drafted_tokens?: Count;
    accepted_tokens?: Count;
  } | null;
  busy_share?: Count;
}

export interface Status {
  version?: string | null;
  uptime_seconds?: Count;
  /** What the server takes where a request leaves a setting out. */
  sampling?: Partial<Record<keyof Sampling, number | null>> | null;
  models?: ModelStatus[] | null;
}
