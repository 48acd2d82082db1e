import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";

const css = await readFile(join(import.meta.dirname, "../../src/style/base.css"), "utf8");
const colours = Object.fromEntries([...css.matchAll(/--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)/g)].map(([, name, light, dark]) => [name, [light, dark]]));

/** Relative luminance as WCAG 2 defines it. */
function luminance(colour) {
  const [red, green, blue] = [1, 3, 5].map((at) => {
    const value = parseInt(colour.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function contrast(one, other) {
  const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
}

/** What is written on what, and what only has to be seen; 4.5 and 3 are the limits of level AA. */
const PAIRS = [
  ...["ground", "surface", "raised", "sunken", "accent-soft"].flatMap((ground) => [["text", ground, 4.5], ["muted", ground, 4.5], ["accent", ground, 4.5]]),
  ["on-accent", "accent", 4.5],
  ["problem", "problem-soft", 4.5],
  ...["keyword", "string", "number", "name"].map((name) => [`code-${name}`, "surface", 4.5]),
  ["line-strong", "raised", 3],
  ["line-strong", "surface", 3],
  ...["tone-0", "tone-1", "tone-2", "tone-3"].map((tone) => [tone, "surface", 3]),
];

for (const [index, scheme] of ["light", "dark"].entries()) {
  test(`${scheme} colours reach level AA`, () => {
    for (const [front, back, least] of PAIRS) {
      const found = contrast(colours[front][index], colours[back][index]);
      assert.ok(found >= least, `${front} on ${back}: ${found.toFixed(2)}`);
    }
  });
}
