// Checks that hold for every server with a chat model.

import { readFile } from "node:fs/promises";
import { answered, openPage, send } from "./browser.mjs";

const LONG = "long please: write a story of two thousand words about a paper roll that travels the world.";

async function stopped(page) {
  await page.waitForSelector("#send.stop", { state: "detached" });
}

/** Waits until the answer under way shows some text. */
async function begun(page) {
  await page.waitForFunction(() => (document.querySelector(".streaming > .markdown")?.textContent.length ?? 0) > 8, undefined, { timeout: 60_000 });
}

async function noSidewaysScroll(page, assert) {
  const [wide, room] = await page.evaluate(() => [Math.max(document.documentElement.scrollWidth, document.querySelector("#scroller").scrollWidth), innerWidth]);
  assert.ok(wide <= room, `content is ${wide} wide in a window of ${room}`);
}

export const anyServer = {
  async "sends with Enter, streams, and tells figures"({ browser, url, assert }) {
    const { context, page, problems } = await openPage(browser, url);
    await page.fill("#message", "Hello there");
    await page.press("#message", "Shift+Enter");
    assert.equal(await page.inputValue("#message"), "Hello there\n");
    await page.press("#message", "Enter");
    const answer = await answered(page);
    assert.ok((await answer.locator(".markdown").last().textContent()).length > 0);
    const figures = await answer.locator(".figures").textContent();
    assert.match(figures, /tokens\/s · first token after .* · [\d,]+ tokens/);
    assert.equal(await page.locator(".bubble").textContent(), "Hello there");
    assert.ok((await page.locator("#announcer").textContent()).length > 0, "nothing for screen readers");
    assert.deepEqual(problems, []);
    await context.close();
  },

  async "stops by button and by Esc, and keeps what there is"({ browser, url, assert }) {
    const { context, page } = await openPage(browser, url);
    for (const stop of [() => page.click("#send.stop"), () => page.keyboard.press("Escape")]) {
      await send(page, LONG);
      await begun(page);
      await stop();
      await stopped(page);
      const answer = await answered(page);
      assert.match(await answer.locator("footer").textContent(), /Stopped/);
      assert.ok((await answer.locator(".markdown").last().textContent()).length > 8);
    }
    await context.close();
  },

  async "answers again"({ browser, url, assert }) {
    const { context, page } = await openPage(browser, url);
    await send(page, "Say a word");
    const first = await (await answered(page)).getAttribute("data-id");
    await page.click(".answer [data-action=retry]");
    const second = await (await answered(page)).getAttribute("data-id");
    assert.notEqual(first, second);
    assert.equal(await page.locator(".message").count(), 2);
    await context.close();
  },

  async "edits an earlier message and replaces what follows"({ browser, url, assert }) {
    const { context, page } = await openPage(browser, url);
    for (const text of ["first words", "second words"]) {
      await send(page, text);
      await answered(page);
    }
    await page.locator(".message.user").first().hover();
    await page.locator("[data-action=edit]").first().click();
    await page.fill(".editing textarea", "dropped");
    await page.press(".editing textarea", "Escape");
    assert.equal(await page.locator(".bubble").first().textContent(), "first words");
    await page.locator(".message.user").first().hover();
    await page.locator("[data-action=edit]").first().click();
    await page.fill(".editing textarea", "other words");
    await page.press(".editing textarea", "Enter");
    await answered(page);
    assert.deepEqual(await page.locator(".bubble").allTextContents(), ["other words"]);
    assert.equal(await page.locator(".answer").count(), 1);
    await context.close();
  },

  async "a reload keeps the conversation, also in the middle of an answer"({ browser, url, assert }) {
    const { context, page } = await openPage(browser, url);
    await send(page, "Hello");
    const whole = await (await answered(page)).locator(".markdown").last().textContent();
    await send(page, LONG);
    await begun(page);
    const partial = await page.locator(".streaming > .markdown").textContent();
    await page.reload();
    await page.waitForSelector(".message");
    assert.equal(await page.locator(".answer > .markdown").first().textContent(), whole);
    const kept = await page.locator(".answer > .markdown").last().textContent();
    assert.ok(kept.startsWith(partial.slice(0, 8)) && kept.length >= partial.length, `kept ${kept.length} of ${partial.length}`);
    assert.match(await page.locator(".answer footer").last().textContent(), /closed before the answer was complete/);
    await page.click(".answer:last-child [data-action=retry]");
    await begun(page);
    await page.keyboard.press("Escape");
    await stopped(page);
    await context.close();
  },

  async "lists, searches, renames, deletes and restores conversations"({ browser, url, assert }) {
    const { context, page } = await openPage(browser, url);
    for (const text of ["apples", "pears"]) {
      await page.click("#new");
      await send(page, `Say something short about ${text}`);
      await answered(page);
    }
    const titles = () => page.locator("#conversations .open").allTextContents();
    assert.deepEqual(await titles(), ["Say something short about pears", "Say something short about apples"]);
    await page.locator("#conversations li.current [aria-label^=Rename]").click();
    await page.fill("#conversations input", "Fruit");
    await page.press("#conversations input", "Enter");
    assert.equal((await titles())[0], "Fruit");
    assert.equal(await page.locator("#title").textContent(), "Fruit");
    await page.fill("#search", "about apples");
    assert.equal((await titles()).length, 1);
    await page.fill("#search", "");
    await page.locator("#conversations li.current [aria-label^=Delete]").click();
    assert.equal((await titles()).length, 1);
    await page.click("#notice >> text=Undo");
    assert.equal((await titles()).length, 2);
    await page.reload();
    await page.waitForSelector("#conversations li");
    assert.equal((await titles())[0], "Fruit");
    await context.close();
  },

  async "exports a file that another browser imports"({ browser, url, assert }) {
    const first = await openPage(browser, url);
    await send(first.page, "Hello");
    await answered(first.page);
    const [file] = await Promise.all([first.page.waitForEvent("download"), first.page.click("#export")]);
    const path = await file.path();
    assert.equal(JSON.parse(await readFile(path, "utf8")).conversations.length, 1);
    const second = await openPage(browser, url);
    await second.page.setInputFiles("#import-file", { name: "x.json", mimeType: "application/json", buffer: await readFile(path) });
    await second.page.click("#conversations .open");
    assert.equal(await second.page.locator("#messages").innerText(), await first.page.locator("#messages").innerText());
    await second.page.setInputFiles("#import-file", { name: "x.json", mimeType: "application/json", buffer: Buffer.from("{}") });
    await second.page.waitForSelector("#notice >> text=holds no conversations");
    assert.deepEqual(second.problems, []);
    await first.context.close();
    await second.context.close();
  },

  async "fits a window of 360 pixels"({ browser, url, assert }) {
    const { context, page } = await openPage(browser, url, { viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true });
    await noSidewaysScroll(page, assert);
    await send(page, `markdown ${"unbroken".repeat(30)}`);
    await answered(page);
    await noSidewaysScroll(page, assert);
    assert.ok(!(await page.locator("#sidebar").isVisible()));
    await page.click("#menu");
    await page.locator("#conversations li").waitFor({ state: "visible" });
    await page.click("#conversations .open");
    await page.locator("#sidebar").waitFor({ state: "hidden" });
    for (const dialog of ["#open-settings", "#toggle-panel"]) {
      await page.click(dialog);
      await noSidewaysScroll(page, assert);
      await page.keyboard.press("Escape");
    }
    assert.ok(!(await page.locator("#panel").isVisible()));
    await context.close();
  },

  async "follows the system's colours and a choice of its own"({ browser, url, assert }) {
    const { context, page } = await openPage(browser, url, { colorScheme: "dark" });
    const lightness = () => page.evaluate(() => Number(/\d+/.exec(getComputedStyle(document.body).backgroundColor)[0]));
    assert.ok((await lightness()) < 60);
    await page.emulateMedia({ colorScheme: "light" });
    assert.ok((await lightness()) > 200);
    await page.click("#toggle-theme");
    await page.click("#toggle-theme");
    assert.equal(await page.locator("#theme-name").textContent(), "dark");
    assert.ok((await lightness()) < 60);
    await page.reload();
    assert.ok((await lightness()) < 60);
    await context.close();
  },

  async "works by keyboard"({ browser, url, assert }) {
    const { context, page } = await openPage(browser, url);
    await page.keyboard.press("Escape");
    await page.keyboard.press("?");
    assert.ok(await page.locator("#shortcuts").isVisible());
    await page.keyboard.press("Escape");
    await page.keyboard.press("/");
    await page.keyboard.type("? n l");
    assert.equal(await page.inputValue("#message"), "? n l");
    await page.keyboard.press("Escape");
    await page.keyboard.press("s");
    assert.equal(await page.evaluate(() => document.activeElement.id), "search");
    await page.keyboard.press("Tab");
    const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
    assert.equal(outline, "solid");
    const unnamed = await page.evaluate(() =>
      [...document.querySelectorAll("button, input, select, textarea")].filter((node) => !(node.textContent.trim() || node.getAttribute("aria-label") || node.labels?.length)).map((node) => node.id || node.className),
    );
    assert.deepEqual(unnamed, []);
    await context.close();
  },

  async "the live panel draws, and is remembered"({ browser, url, assert }) {
    const { context, page, problems } = await openPage(browser, url);
    await page.click("#toggle-panel");
    await send(page, LONG);
    await page.waitForSelector("[data-section=throughput] .chart .line", { state: "attached", timeout: 20_000 });
    const { models } = await page.evaluate(async () => (await fetch("status")).json());
    const model = models.find(({ state }) => state === "loaded");
    // A server may not know everything; what it tells has to be drawn.
    const told = { requests: model.lanes, kv: model.kv?.pages, prefix: model.counters?.prompt_tokens, devices: model.parts?.length, memory: model.parts?.some(({ heaps }) => heaps?.some((heap) => heap.total_bytes)) };
    for (const [name, value] of Object.entries(told)) if (value) assert.ok((await page.locator(`[data-section=${name}] rect`).count()) > 0, name);
    assert.equal(await page.locator("[data-section=throughput] .ceiling").count(), model.ceiling_tokens_per_second === null ? 0 : 1);
    await page.keyboard.press("Escape");
    await stopped(page);
    await page.reload();
    await page.waitForSelector("[data-section=throughput]");
    await page.click("#close-panel");
    let asked = 0;
    page.on("request", (request) => (asked += request.url().endsWith("/status") ? 1 : 0));
    await page.waitForTimeout(1500);
    assert.equal(asked, 0, "a closed panel asks for nothing");
    assert.deepEqual(problems, []);
    await context.close();
  },
};
