// Takes the two pictures of docs/ from a running server.
// usage: node dev/docs.mjs URL FOLDER

import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { answered, launch, openPage, send } from "../test/browser.mjs";

const [url, folder] = process.argv.slice(2);
if (!folder) throw new Error("usage: node dev/docs.mjs URL FOLDER");
await mkdir(folder, { recursive: true });
const browser = await launch();

async function take(name, viewport, panel) {
  const { context, page } = await openPage(browser, url, { viewport, colorScheme: "light" });
  if (panel) await page.click("#toggle-panel");
  await send(page, "What is a player piano? Answer in two sentences.");
  await answered(page);
  await send(page, "Write a short Python function that reverses a list, with one line of explanation.");
  await answered(page);
  await page.waitForTimeout(2500);
  await page.screenshot({ path: join(folder, `${name}.png`) });
  await context.close();
}

await take("page", { width: 1280, height: 800 }, true);
await take("page-narrow", { width: 360, height: 740 }, false);
await browser.close();
