// A stand-in for `pianola serve` while working on the page: serves dist/ with the same headers and
// answers the endpoints that the page uses with made-up text and figures.
//
// usage: node dev/stub.mjs [port]      (default 8090; 0 takes any free port)
//
// The last user message chooses the answer: "markdown" shows every construct, "hostile" holds HTML and
// script addresses, "long" goes on for a while, "think" reasons first, "fail" is refused, "cut" breaks
// off in the middle, "echo ..." repeats. Key "secret" is demanded while STUB_KEY is set.

import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import { ANSWERS } from "./answers.mjs";

const PAGE = { "/": ["index.html", "text/html; charset=utf-8"], "/app.js": ["app.js", "text/javascript"], "/app.css": ["app.css", "text/css"] };
const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

export async function startStub(port = 0, options = {}) {
  const state = { running: 0, prompt: 0, cached: 0, generated: 0, started: Date.now(), status: true, ...options };
  const server = createServer((request, response) => {
    handle(state, request, response).catch((error) => response.destroy(error));
  });
  await new Promise((resolve) => server.listen(port, "127.0.0.1", resolve));
  return { url: `http://127.0.0.1:${server.address().port}`, state, close: () => (server.closeAllConnections(), server.close()) };
}

async function handle(state, request, response) {
  const { pathname } = new URL(request.url, "http://stub");
  const page = PAGE[pathname];
  if (page) {
    response.writeHead(200, { "content-type": page[1], "content-security-policy": POLICY, "cache-control": "no-cache" });
    return response.end(await readFile(join(import.meta.dirname, "../dist", page[0])));
  }
  if (state.key && request.headers.authorization !== `Bearer ${state.key}`) return json(response, 401, { error: { message: "a key is needed" } });
  if (pathname === "/v1/models") return json(response, 200, { data: [{ id: "smollm2:135m" }, { id: "gemma3:4b" }] });
  if (pathname === "/status" && state.status) return json(response, 200, statusOf(state));
  if (pathname === "/v1/chat/completions") return chat(state, request, response);
  return json(response, 404, { error: { message: "no such address" } });
}

function json(response, status, body) {
  response.writeHead(status, { "content-type": "application/json" });
  response.end(JSON.stringify(body));
}

async function chat(state, request, response) {
  let body = "";
  for await (const piece of request) body += piece;
  const asked = JSON.parse(body);
  state.lastRequest = asked;
  // A message that follows a failed one is sent together with it.
  const text = asked.messages.at(-1).content.split("\n\n").at(-1);
  if (text.startsWith("fail")) return json(response, 503, { error: { message: "the queue is full: 64 requests are waiting" } });
  const { answer, reasoning = "" } = answerTo(text);
  response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-cache" });
  const send = (data) => response.write(`data: ${typeof data === "string" ? data : JSON.stringify(data)}\n\n`);
  state.running += 1;
  const promptTokens = Math.ceil(body.length / 4);
  state.prompt += promptTokens;
  state.cached += Math.floor(promptTokens * 0.6);
  let generated = 0;
  try {
    await sleep(state.delay ?? 80);
    for (const [field, whole] of [["reasoning_content", reasoning], ["content", answer]]) {
      for (const token of whole.match(/[\s\S]{1,4}/g) ?? []) {
        if (response.destroyed) return;
        if (text.startsWith("cut") && generated === 12) return response.destroy();
        send({ choices: [{ index: 0, delta: { [field]: token } }] });
        generated += 1;
        state.generated += 1;
        if (state.pace !== 0) await sleep(state.pace ?? 8);
      }
    }
    send({ choices: [{ index: 0, delta: {}, finish_reason: "stop" }] });
    const timings = { queue_ms: 3, prompt_ms: 70, generation_ms: generated * 8 + 1, prompt_tokens: promptTokens, cached_tokens: Math.floor(promptTokens * 0.6), generated_tokens: generated };
    send({ choices: [], usage: { prompt_tokens: promptTokens, completion_tokens: generated, total_tokens: promptTokens + generated }, timings });
    send("[DONE]");
    response.end();
  } finally {
    state.running -= 1;
  }
}

function answerTo(text) {
  const name = text.trim().split(/\s/, 1)[0];
  if (name === "echo") return { answer: text.slice(5) };
  return ANSWERS[name] ?? { answer: `You asked: ${text}\n\nThis is a **made-up** answer with a few words in it.` };
}

function statusOf(state) {
  const used = state.running * 14;
  const kept = Math.min(240, Math.floor(state.prompt / 8));
  const model = {
    id: "smollm2:135m", state: state.loading ? "loading" : "loaded", devices: "vulkan0 (made-up GPU) and cpu", context: 8192, lanes: 32,
    parts: [
      { device: "cpu", layers: [0, 8], head: false, weight_bytes: 34_000_000, heaps: [{ name: "host memory", used_bytes: 1.2e9, total_bytes: 16e9 }] },
      { device: "vulkan0", layers: [8, 30], head: true, weight_bytes: 101_000_000, heaps: [{ name: "device memory", used_bytes: 3.1e9, total_bytes: 8e9 }, { name: "shared memory", used_bytes: 2e8, total_bytes: null }] },
    ],
    ceiling_tokens_per_second: 160, running: state.running, waiting: Math.max(0, state.running - 2), kv: { pages: 512, used, kept, free: 512 - used - kept },
    counters: { steps: state.generated, prompt_tokens: state.prompt, cached_tokens: state.cached, generated_tokens: state.generated, preemptions: 0, drafted_tokens: 0, accepted_tokens: 0 },
    busy_share: state.running ? 0.9 : 0.02,
  };
  const other = { id: "gemma3:4b", state: "unloaded", devices: null, context: null, lanes: null, parts: null, ceiling_tokens_per_second: null, running: null, waiting: null, kv: null, counters: null, busy_share: null };
  return { version: "0.1.0 (stub)", uptime_seconds: (Date.now() - state.started) / 1000, sampling: { temperature: 0.7, top_k: 40, top_p: 0.95, min_p: 0.05 }, models: [model, other] };
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const { url } = await startStub(Number(process.argv[2] ?? 8090), { key: process.env.STUB_KEY ? "secret" : "" });
  console.log(`The page is at ${url}`);
}
