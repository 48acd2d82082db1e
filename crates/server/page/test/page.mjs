// Drives the page in Chromium.
// usage: node test/page.mjs [URL]
// Without a URL it starts the stub of dev/ and also checks what depends on exact texts; with one it
// runs against that server, which needs a chat model and no key.

import assert from "node:assert/strict";
import { startStub } from "../dev/stub.mjs";
import { launch } from "./browser.mjs";
import { anyServer } from "./any_server.mjs";
import { stubOnly } from "./stub_only.mjs";

const given = process.argv[2];
const stub = given ? null : await startStub();
const url = given ?? stub.url;
const browser = await launch();
const checks = { ...anyServer, ...(stub ? stubOnly : {}) };
let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  try {
    if (stub) Object.assign(stub.state, { pace: 2, delay: 20, key: "", status: true });
    await check({ browser, url, stub, assert });
    console.log(`ok      ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED  ${name}\n${error.stack}`);
  }
}
await browser.close();
stub?.close();
console.log(`${Object.keys(checks).length - failed} passed, ${failed} failed`);
process.exitCode = failed > 0 ? 1 : 0;
