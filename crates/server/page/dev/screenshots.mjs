// Takes pictures of the page with the stub's answers, light and dark, wide and narrow.
// usage: node dev/screenshots.mjs FOLDER

import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { answered, launch, openPage, send } from "../test/browser.mjs";
import { startStub } from "./stub.mjs";

const folder = process.argv[2];
if (!folder) throw new Error("usage: node dev/screenshots.mjs FOLDER");
await mkdir(folder, { recursive: true });
const stub = await startStub();
const browser = await launch();

async function take(name, viewport, colorScheme) {
  stub.state.pace = 0;
  const { context, page } = await openPage(browser, stub.url, { viewport, colorScheme });
  const shot = (what) => page.screenshot({ path: join(folder, `${name}-${colorScheme}-${what}.png`) });
  await shot("empty");
  for (const text of ["How does a player piano keep time?", "think about six times seven", "maths please", "markdown please"]) {
    if (text.startsWith("think")) await page.evaluate(() => document.querySelector("#new").click());
    await send(page, text);
    await answered(page);
  }
  await shot("end");
  await page.locator("#scroller").evaluate((node) => (node.scrollTop = 0));
  await page.mouse.move(viewport.width / 2, 200);
  await page.waitForTimeout(300);
  await shot("top");
  if (viewport.width < 900) {
    await page.click("#menu");
    await page.waitForTimeout(300);
    await shot("list");
    await page.keyboard.press("Escape");
    await page.waitForTimeout(300);
  }
  await page.click("#open-settings");
  await shot("settings");
  await page.keyboard.press("Escape");
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("?");
  await shot("keys");
  await page.keyboard.press("Escape");
  await send(page, "fail");
  await answered(page);
  await shot("failed");
  stub.state.pace = 12;
  await page.click("#toggle-panel");
  if (viewport.width >= 900) await send(page, "long");
  await page.waitForTimeout(6000);
  await shot("live");
  await context.close();
}

for (const colorScheme of ["light", "dark"]) {
  await take("wide", { width: 1280, height: 800 }, colorScheme);
  await take("narrow", { width: 360, height: 740 }, colorScheme);
}
await browser.close();
stub.close();
