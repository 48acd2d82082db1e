import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./bundle.mjs";

const { EventSplitter } = await load("api/events.ts");
const { promptOf, titleOf, matches } = await load("store/conversation.ts");
const { exportText, importText, merge, TransferError } = await load("store/transfer.ts");
const { History, share } = await load("panel/history.ts");
const { bytes, duration, seconds } = await load("format.ts");

const answer = (text, state = "complete") => ({ id: `a${text}`, role: "assistant", text, reasoning: "", model: "m", state });
const user = (text) => ({ id: `u${text}`, role: "user", text });
const conversation = (messages, system = "") => ({ id: "c", title: "", created: 1, updated: 2, model: "m", settings: { system, sampling: { seed: 3 } }, messages });

test("events are the same however the stream is cut", () => {
  const stream = ": comment\r\n\r\ndata: one\r\n\r\ndata:two\ndata: three\n\nevent: x\ndata: [DONE]\n\ndata: unfinished";
  const expected = ["one", "two\nthree", "[DONE]"];
  for (let first = 0; first <= stream.length; first += 1) {
    for (let second = first; second <= stream.length; second += 5) {
      const splitter = new EventSplitter();
      const events = [stream.slice(0, first), stream.slice(first, second), stream.slice(second)].flatMap((piece) => splitter.push(piece));
      assert.deepEqual(events, expected, `cut at ${first} and ${second}`);
    }
  }
});

test("the prompt alternates between user and assistant", () => {
  const kept = conversation([user("one"), answer("", "failed"), user("two"), answer("yes"), user("three"), answer("")], " be brief ");
  assert.deepEqual(promptOf(kept, 5), [
    { role: "system", content: "be brief" },
    { role: "user", content: "one\n\ntwo" },
    { role: "assistant", content: "yes" },
    { role: "user", content: "three" },
  ]);
});

test("a title is the first line of the first message, and search looks into texts", () => {
  const kept = conversation([user(`${"word ".repeat(30)}\nnext`), answer("Needle")]);
  assert.ok(titleOf(kept).length <= 60 && titleOf(kept).endsWith("…"));
  assert.equal(titleOf(conversation([])), "New conversation");
  assert.ok(matches(kept, " needle ") && !matches(kept, "haystack"));
});

test("what is exported can be imported, and only once", () => {
  const kept = conversation([user("one"), { ...answer("two", "stopped"), figures: { firstTokenMs: 3 } }], "system");
  const [read] = importText(exportText([kept]));
  assert.deepEqual(read, kept);
  assert.deepEqual(merge([read], new Map([["c", kept]])), []);
  assert.equal(merge([read, read], new Map()).length, 1);
  const [other] = merge([{ ...read, messages: [user("else")] }], new Map([["c", kept]]));
  assert.notEqual(other.id, "c");
});

test("files of another form are refused in words", () => {
  const whole = JSON.parse(exportText([conversation([user("one")])]));
  const broken = [
    ["not json", /not JSON/],
    ["[]", /wrong form/],
    ["{}", /no conversations/],
    [JSON.stringify({ ...whole, version: 9 }), /version 9/],
    [JSON.stringify({ ...whole, conversations: [{}] }), /no messages/],
    [JSON.stringify({ ...whole, conversations: [{ ...whole.conversations[0], messages: [{ id: "x", role: "system", text: "" }] }] }), /message 1 of conversation 1/],
    [JSON.stringify({ ...whole, conversations: [{ ...whole.conversations[0], settings: { sampling: { seed: "3" } } }] }), /"seed"/],
  ];
  for (const [text, message] of broken) assert.throws(() => importText(text), (error) => error instanceof TransferError && message.test(error.message), text);
});

test("rates are differences of counters", () => {
  const history = new History();
  const at = (time, generated, prompt = 0, cached = 0) => history.add({ counters: { generated_tokens: generated, prompt_tokens: prompt, cached_tokens: cached } }, time);
  assert.equal(history.current(), null);
  at(0, 100, 10, 0);
  at(1, 150, 20, 5);
  at(2, 250, 30, 10);
  assert.deepEqual(history.rates().map((point) => point.rate), [50, 100]);
  assert.equal(history.current(), 75);
  assert.equal(history.recentHits(), 0.5);
  at(60, 1000);
  assert.deepEqual(history.rates(), [], "fewer prompt tokens than before: the server was started again");
  at(61, 1010);
  at(71, 1020);
  assert.deepEqual(history.rates().map((point) => point.rate), [10, null], "a pause has no rate");
  history.add({ counters: null }, 72);
  assert.equal(share(null, 5), null);
  assert.equal(share(7, 5), 1);
});

test("numbers are written for readers", () => {
  assert.equal(bytes(0), "0 B");
  assert.equal(bytes(1536), "1.5 KiB");
  assert.equal(bytes(3.1e9), "2.9 GiB");
  assert.equal(seconds(312), "312 ms");
  assert.equal(seconds(1234), "1.23 s");
  assert.equal(duration(0.4), "0 s");
  assert.equal(duration(3725), "1 h 2 min");
});
