// The sections of the live panel, made from one model's part of /status.

import type { Heap, ModelStatus, Part } from "../api/types";
import { element } from "../dom";
import { bytes, count, percent, rate } from "../format";
import { laneSquares, segmentBar, throughputChart, type Segment } from "./drawings";
import { share, type History } from "./history";

/** Colours for devices, other ones first than those of shares; more devices repeat them. */
const DEVICE_TONES = ["tone-2", "tone-3", "tone-0", "tone-1"];

export function modelSections(model: ModelStatus, history: History, now: number): HTMLElement[] {
  return [throughput(model, history, now), requests(model), pages(model), prefix(model, history), devices(model), memory(model)].filter((part) => part !== null);
}

function section(name: string, title: string, figure: string, ...content: (Element | null)[]): HTMLElement {
  const head = element("div", { class: "section-head" }, element("h3", {}, title), element("span", { class: "figure" }, figure));
  return element("section", { "data-section": name }, head, ...content);
}

function note(text: string): HTMLElement {
  return element("p", { class: "hint" }, text);
}

function legend(entries: [tone: string, text: string][]): HTMLElement {
  return element("ul", { class: "legend" }, ...entries.map(([tone, text]) => element("li", {}, element("span", { class: `swatch ${tone}` }), text)));
}

function throughput(model: ModelStatus, history: History, now: number): HTMLElement {
  const current = history.current();
  const busy = model.busy_share ?? null;
  const middle = busy === null ? null : element("span", {}, `devices busy ${percent(Math.min(1, busy))}`);
  const axis = element("div", { class: "axis" }, element("span", {}, "2 min ago"), middle, element("span", {}, "now"));
  const chart = throughputChart(history.rates(), model.ceiling_tokens_per_second ?? null, now);
  return section("throughput", "Speed", current === null ? "measuring" : `${rate(current)} tokens/s`, chart, axis);
}

function requests(model: ModelStatus): HTMLElement {
  const running = model.running ?? null;
  const waiting = model.waiting ?? null;
  if (running === null && waiting === null) return section("requests", "Requests", "not known");
  const lanes = model.lanes ?? null;
  const squares = lanes !== null && lanes > 0 ? laneSquares(lanes, running ?? 0, waiting ?? 0) : null;
  const of = lanes === null ? "" : ` of ${count(lanes)}`;
  return section("requests", "Requests", `${count(running ?? 0)}${of} running, ${count(waiting ?? 0)} waiting`, squares);
}

function pages(model: ModelStatus): HTMLElement {
  const { pages: total = null, used = null, kept = null, free = null } = model.kv ?? {};
  if (total === null || used === null || kept === null) return section("kv", "KV pages", "not known");
  const rest = free ?? Math.max(0, total - used - kept);
  const segments: Segment[] = [
    { size: used, tone: "tone-0", title: `${count(used)} used` },
    { size: kept, tone: "tone-1", title: `${count(kept)} kept` },
  ];
  const strip = segmentBar(segments, total, `${used} pages used, ${kept} kept, ${rest} free`);
  const entries: [string, string][] = [
    ["tone-0", `${count(used)} used`],
    ["tone-1", `${count(kept)} kept for reuse`],
    ["track", `${count(rest)} free`],
  ];
  return section("kv", "KV pages", count(total), strip, legend(entries));
}

function prefix(model: ModelStatus, history: History): HTMLElement {
  const { prompt_tokens: prompt, cached_tokens: cached, drafted_tokens: drafted, accepted_tokens: accepted } = model.counters ?? {};
  const all = share(cached, prompt);
  if (all === null) return section("prefix", "Prompt cache", "no prompts yet");
  const bar = segmentBar([{ size: all, tone: "tone-0", title: "cached" }], 1, `${percent(all)} of all prompt tokens were cached`);
  const recent = history.recentHits();
  const detail = `${count(cached ?? 0)} of ${count(prompt ?? 0)} tokens${recent === null ? "" : `; ${percent(recent)} in the last 2 min`}`;
  const drafts = share(accepted, drafted);
  return section("prefix", "Prompt cache", `${percent(all)} cached`, bar, note(detail), drafts === null ? null : note(`Drafted tokens accepted: ${percent(drafts)}`));
}

function devices(model: ModelStatus): HTMLElement | null {
  const parts = model.parts ?? [];
  if (parts.length === 0) return null;
  const names = deviceNames(parts);
  const segments: Segment[] = [];
  const entries: [string, string][] = [];
  for (const part of parts) {
    const tone = toneOf(names, part.device);
    const [from, to] = part.layers ?? [0, 0];
    const layers = to > from ? (to - from === 1 ? `layer ${from}` : `layers ${from} to ${to - 1}`) : "";
    const what = [layers, part.head ? "head" : ""].filter(Boolean).join(" and ") || "no layers";
    if (to > from) segments.push({ size: to - from, tone, title: `${part.device}: ${layers}` });
    if (part.head) segments.push({ size: 1, tone, title: `${part.device}: head` });
    const weights = typeof part.weight_bytes === "number" ? `, ${bytes(part.weight_bytes)}` : "";
    entries.push([tone, `${part.device}: ${what}${weights}`]);
  }
  const total = segments.reduce((sum, { size }) => sum + size, 0);
  const bar = segmentBar(segments, total, entries.map(([, text]) => text).join("; "));
  return section("devices", "Layers by device", names.length === 1 ? "one device" : `${names.length} devices`, bar, legend(entries));
}

function memory(model: ModelStatus): HTMLElement | null {
  const parts = model.parts ?? [];
  const names = deviceNames(parts);
  const shown = new Map<string, { device: string; heap: Heap }>();
  // Two parts on one device report the same heaps.
  for (const part of parts) for (const heap of part.heaps ?? []) shown.set(`${part.device}\n${heap.name}`, { device: part.device, heap });
  if (shown.size === 0) return null;
  const rows = [...shown.values()].map(({ device, heap }) => heapRow(names.length > 1 ? `${device}, ${heap.name}` : heap.name, toneOf(names, device), heap));
  return section("memory", "Memory", "", ...rows);
}

function heapRow(name: string, tone: string, heap: Heap): HTMLElement {
  const used = heap.used_bytes ?? null;
  const total = heap.total_bytes ?? null;
  const text = used === null ? "not known" : total === null ? bytes(used) : `${bytes(used)} of ${bytes(total)}`;
  const row = element("div", { class: "heap" }, element("div", { class: "heap-head" }, element("span", {}, name), element("span", {}, text)));
  if (used !== null && total !== null) row.append(segmentBar([{ size: used, tone, title: text }], total, `${name}: ${text}`));
  return row;
}

function deviceNames(parts: Part[]): string[] {
  return [...new Set(parts.map((part) => part.device))];
}

function toneOf(names: string[], device: string): string {
  return DEVICE_TONES[names.indexOf(device) % DEVICE_TONES.length]!;
}
