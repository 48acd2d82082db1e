// Checks that need the stub's answers.

import { answered, openPage, send } from "./browser.mjs";

export const stubOnly = {
  async "what a model writes stays inert"({ browser, url, assert }) {
    const { context, page, problems } = await openPage(browser, url);
    const outside = [];
    page.on("request", (request) => !request.url().startsWith(url) && !request.url().startsWith("data:") && outside.push(request.url()));
    await send(page, "hostile");
    const answer = await answered(page);
    await answer.locator("th").first().hover();
    await page.waitForTimeout(200);
    assert.equal(await page.evaluate(() => window.hacked), undefined);
    assert.equal(await answer.locator("script, img, iframe, b, .markdown svg, [onerror], [onload], [onmouseover]").count(), 0);
    const addresses = await answer.locator("a").evaluateAll((links) => links.map((link) => link.href));
    assert.deepEqual(addresses, ["https://example.org/x.png", "https://example.org/%22"]);
    assert.match(await answer.textContent(), /<script>window\.hacked = 1<\/script>/);
    assert.deepEqual(outside, []);
    assert.deepEqual(problems, []);
    await context.close();
  },

  async "Markdown becomes a document"({ browser, url, assert }) {
    const { context, page } = await openPage(browser, url);
    await context.grantPermissions(["clipboard-read", "clipboard-write"]);
    await send(page, "markdown");
    const answer = await answered(page);
    for (const [selector, count] of Object.entries({ h3: 1, "ol > li": 3, "ol ul > li": 2, "tbody tr": 2, "figure.code": 1, blockquote: 1, hr: 1, "li.task": 2, a: 2 })) {
      assert.equal(await answer.locator(`.markdown ${selector}`).count(), count, selector);
    }
    assert.equal(await answer.locator(".language").textContent(), "rust");
    await answer.locator("[data-action=copy-code]").click();
    const copied = await page.evaluate(() => navigator.clipboard.readText());
    assert.ok(copied.startsWith("fn play(") && copied.endsWith("}"));
    assert.equal(await answer.locator("[data-action=copy-code]").textContent(), "Copied");
    await context.close();
  },

  async "formulas and code are set"({ browser, url, assert }) {
    const { context, page, problems } = await openPage(browser, url);
    await send(page, "maths");
    const answer = await answered(page);
    assert.equal(await answer.locator("math").count(), 4);
    assert.equal(await answer.locator("math[display=block]").count(), 2);
    const heights = await answer.locator("mfrac").evaluateAll((nodes) => nodes.map((node) => node.getBoundingClientRect().height));
    assert.ok(heights.every((height) => height > 15), `fractions are ${heights} high`);
    assert.match(await answer.textContent(), /\\begin\{align\} and \$5 are left as they are\./);
    await send(page, "markdown");
    const colours = await (await answered(page)).locator(".code-keyword").evaluateAll((nodes) => nodes.map((node) => [node.textContent, getComputedStyle(node).color]));
    assert.ok(colours.some(([text]) => text === "fn"));
    const plain = await page.locator("pre code").last().evaluate((node) => getComputedStyle(node).color);
    assert.notEqual(colours[0][1], plain);
    assert.deepEqual(problems, []);
    await context.close();
  },

  async "says that a model is being loaded"({ browser, url, stub, assert }) {
    Object.assign(stub.state, { delay: 2500, loading: true });
    const { context, page } = await openPage(browser, url);
    await send(page, "Hello");
    await page.waitForSelector("text=Loading smollm2:135m");
    await answered(page);
    assert.equal(await page.locator(".waiting").count(), 0);
    stub.state.loading = false;
    await context.close();
  },

  async "opening the live panel goes on following an answer"({ browser, url, stub, assert }) {
    stub.state.pace = 4;
    const { context, page } = await openPage(browser, url);
    const gap = () => page.locator("#scroller").evaluate((node) => node.scrollHeight - node.clientHeight - node.scrollTop);
    await send(page, "long");
    await page.waitForFunction(() => document.querySelector("#scroller").scrollTop > 200);
    for (let turn = 0; turn < 4; turn += 1) {
      await page.click("#toggle-panel");
      await page.waitForTimeout(300);
      assert.ok((await gap()) < 48, `turn ${turn}: ${await gap()} pixels behind`);
    }
    await context.close();
  },

  async "a growing answer keeps its finished blocks"({ browser, url, stub, assert }) {
    stub.state.pace = 5;
    const { context, page } = await openPage(browser, url);
    await send(page, "long");
    await page.waitForFunction(() => document.querySelectorAll(".streaming .markdown > p").length > 3);
    await page.evaluate(() => (document.querySelector(".streaming .markdown > p").marked = true));
    await page.waitForFunction(() => document.querySelectorAll(".streaming .markdown > p").length > 6);
    assert.ok(await page.evaluate(() => document.querySelector(".streaming .markdown > p").marked));
    await context.close();
  },

  async "follows a growing answer until the reader scrolls up"({ browser, url, stub, assert }) {
    stub.state.pace = 4;
    const { context, page } = await openPage(browser, url);
    const gap = () => page.locator("#scroller").evaluate((node) => node.scrollHeight - node.clientHeight - node.scrollTop);
    await send(page, "long");
    await page.waitForFunction(() => document.querySelector("#scroller").scrollTop > 200);
    assert.ok((await gap()) < 48);
    await page.mouse.move(600, 300);
    await page.mouse.wheel(0, -400);
    await page.waitForSelector("#latest:visible");
    await page.waitForTimeout(400);
    assert.ok((await gap()) > 300);
    await page.click("#latest");
    await page.waitForTimeout(400);
    assert.ok((await gap()) < 48);
    await context.close();
  },

  async "reasoning folds"({ browser, url, assert }) {
    const { context, page } = await openPage(browser, url);
    await send(page, "think");
    const answer = await answered(page);
    assert.equal(await answer.locator("details").getAttribute("open"), null);
    await answer.locator("summary").click();
    assert.match(await answer.locator("details").innerText(), /Six times seven/);
    assert.equal(await answer.locator("> .markdown").innerText(), "The answer is 42.");
    await context.close();
  },

  async "settings reach the server, and only those that are set"({ browser, url, stub, assert }) {
    const { context, page } = await openPage(browser, url);
    await page.click("#open-settings");
    await page.fill("#system", "Be brief.");
    await page.fill("#sampling-temperature", "0.5");
    await page.fill("#sampling-top_k", "1.5");
    assert.equal(await page.getAttribute("#sampling-top_k", "aria-invalid"), "true");
    assert.equal(await page.textContent("#sampling-top_k-hint"), "Not used: a whole number from 0 to 1000000 is needed.");
    await page.waitForSelector("#sampling-min_p[placeholder^='0.05']");
    await page.fill("#sampling-seed", "7");
    await page.click("#settings >> text=Done");
    await page.selectOption("#model", "gemma3:4b");
    await send(page, "Hello");
    await answered(page);
    // The length was bounded on the way.
    const { messages, max_tokens: _, ...rest } = stub.state.lastRequest;
    assert.deepEqual(messages, [{ role: "system", content: "Be brief." }, { role: "user", content: "Hello" }]);
    assert.deepEqual(rest, { model: "gemma3:4b", temperature: 0.5, seed: 7, stream: true, stream_options: { include_usage: true } });
    await page.reload();
    await page.waitForSelector(".message");
    assert.equal(await page.inputValue("#model"), "gemma3:4b");
    await context.close();
  },

  async "a refusal is told in words and can be tried again"({ browser, url, assert }) {
    const { context, page } = await openPage(browser, url);
    await send(page, "fail");
    const answer = await answered(page);
    assert.match(await answer.locator(".problem").textContent(), /The queue is full: 64 requests are waiting\./);
    await answer.locator("text=Try again").click();
    await answered(page);
    assert.equal(await page.locator(".answer").count(), 1);
    await send(page, "cut");
    assert.match(await (await answered(page)).locator("footer").textContent(), /connection (broke|ended) before the answer was complete/);
    await context.close();
  },

  async "asks for a key when the server does"({ browser, url, stub, assert }) {
    stub.state.key = "secret";
    const context = await browser.newContext();
    const page = await context.newPage();
    await page.goto(url);
    await page.waitForSelector("#key-dialog[open]");
    await page.fill("#key", "wrong");
    await page.press("#key", "Enter");
    await page.waitForSelector("#key-refused:visible");
    await page.fill("#key", "secret");
    await page.press("#key", "Enter");
    await page.waitForSelector("#model:enabled");
    await send(page, "Hello");
    assert.match(await (await answered(page)).textContent(), /made-up/);
    stub.state.key = "changed";
    await send(page, "again");
    await page.waitForSelector("#key-dialog[open]");
    await page.fill("#key", "changed");
    await page.press("#key", "Enter");
    await page.waitForFunction(() => document.querySelectorAll(".answer").length === 2 && !document.querySelector(".answer .problem"));
    assert.match(await (await answered(page)).textContent(), /You asked: again/);
    await context.close();
  },

  async "says so where a server has no status"({ browser, url, stub }) {
    stub.state.status = false;
    const { context, page } = await openPage(browser, url);
    await page.click("#toggle-panel");
    await page.waitForSelector("#panel >> text=does not report its status");
    await context.close();
  },

  async "an answer goes on while another conversation is open"({ browser, url, stub, assert }) {
    stub.state.pace = 4;
    const { context, page } = await openPage(browser, url);
    await send(page, "long one");
    await page.waitForSelector(".streaming .markdown > p");
    await page.click("#new");
    await page.waitForSelector("#conversations .running");
    assert.equal(await page.locator("#send.stop").count(), 0);
    await send(page, "Hello");
    await page.waitForFunction(() => document.querySelectorAll("#conversations .running").length === 1);
    await page.click("#conversations .open:has(.running)");
    await answered(page);
    assert.match(await page.locator(".answer").textContent(), /Paragraph 60/);
    await context.close();
  },

  async "a second tab sees what the first one stores"({ browser, url, assert }) {
    const { context, page } = await openPage(browser, url);
    const other = await context.newPage();
    await other.goto(url);
    await send(page, "Hello from the first tab");
    await answered(page);
    await other.waitForSelector("#conversations >> text=Hello from the first tab");
    await page.locator("#conversations [aria-label^=Delete]").click();
    await other.waitForFunction(() => document.querySelectorAll("#conversations li").length === 0);
    assert.equal(await other.locator("#conversations li").count(), 0);
    await context.close();
  },
};
