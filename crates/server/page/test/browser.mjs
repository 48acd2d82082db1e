// Starts Chromium and opens pages, for the tests and the screenshots. CHROMIUM names another browser.

import { chromium } from "playwright-core";

const ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

export function launch() {
  return chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ARGUMENTS });
}

/** Ends answers that name no length after 400 tokens: a small model may ramble until its context is full. */
function boundLength(route) {
  const body = route.request().postDataJSON();
  return route.continue({ postData: { max_tokens: 400, ...body } });
}

/** A page of its own profile at `url`; `problems` collects script errors and refused resources. */
export async function openPage(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, acceptDownloads: true, ...options });
  await context.route("**/v1/chat/completions", boundLength);
  const page = await context.newPage();
  const problems = [];
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("console", (message) => message.type() === "error" && !/Failed to load resource/.test(message.text()) && problems.push(message.text()));
  await page.goto(url);
  await page.waitForSelector("#model:enabled");
  return { context, page, problems };
}

export async function send(page, text) {
  await page.fill("#message", text);
  await page.press("#message", "Enter");
}

/** Waits until no answer is under way and gives the last answer's element. */
export async function answered(page) {
  await page.waitForFunction(() => !document.querySelector("#send.stop") && !document.querySelector(".streaming"), undefined, { timeout: 60_000 });
  return page.locator(".answer").last();
}
