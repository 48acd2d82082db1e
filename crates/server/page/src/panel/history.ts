// Rates from counters that only grow.

import type { ModelStatus } from "../api/types";

export const WINDOW_SECONDS = 120;

interface Sample {
  /** Seconds, on the clock of `performance.now`. */
  time: number;
  generated: number;
  prompt: number;
  cached: number;
}

export interface RatePoint {
  time: number;
  /** Tokens per second; null where too long passed since the sample before. */
  rate: number | null;
}

/** The page polls every second; after a longer pause a mean would hide what happened. */
const MAX_PAUSE = 5;

export class History {
  private samples: Sample[] = [];

  add(model: ModelStatus, time: number): void {
    const counters = model.counters ?? {};
    const sample = { time, generated: counters.generated_tokens ?? 0, prompt: counters.prompt_tokens ?? 0, cached: counters.cached_tokens ?? 0 };
    const last = this.samples.at(-1);
    // Smaller than before: the server or the model has been started again.
    if (last && (sample.generated < last.generated || sample.prompt < last.prompt)) this.samples = [];
    this.samples.push(sample);
    while (this.samples[0]!.time < time - WINDOW_SECONDS - 2) this.samples.shift();
  }

  rates(): RatePoint[] {
    return this.samples.slice(1).map((sample, index) => {
      const before = this.samples[index]!;
      const elapsed = sample.time - before.time;
      return { time: sample.time, rate: elapsed > 0 && elapsed <= MAX_PAUSE ? (sample.generated - before.generated) / elapsed : null };
    });
  }

  /** Tokens per second over the last three seconds. */
  current(): number | null {
    const last = this.samples.at(-1);
    const first = last && this.samples.find((sample) => sample.time >= last.time - 3.5);
    if (!last || !first || last === first) return null;
    return (last.generated - first.generated) / (last.time - first.time);
  }

  /** Share of the prompt tokens of the window that were cached; null without any. */
  recentHits(): number | null {
    const first = this.samples[0];
    const last = this.samples.at(-1);
    if (!first || !last) return null;
    return share(last.cached - first.cached, last.prompt - first.prompt);
  }
}

export function share(part: number | null | undefined, whole: number | null | undefined): number | null {
  if (part === null || part === undefined || !whole || whole <= 0) return null;
  return Math.min(1, Math.max(0, part / whole));
}
