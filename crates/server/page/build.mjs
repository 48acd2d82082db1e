// Bundles the page into dist/ and writes dist/sources.sum; see README.md.
// usage: node build.mjs

import { createHash } from "node:crypto";
import { cp, mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { join, relative, sep } from "node:path";
import { build } from "esbuild";

const root = import.meta.dirname;
const target = ["chrome125", "firefox125", "safari17.5"];

/** Files that decide what dist/ holds, besides everything in src/. */
const SETTINGS = ["build.mjs", "package-lock.json", "package.json", "tsconfig.json"];

async function filesBelow(folder) {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true });
  return entries.filter((entry) => entry.isFile()).map((entry) => relative(root, join(entry.parentPath, entry.name)).split(sep).join("/"));
}

/** Sums of what dist/ was built from, and of what was built: a built file edited by hand is stale, too. */
async function sourcesSum() {
  const folders = [await filesBelow(join(root, "dist")), await filesBelow(join(root, "src"))];
  const paths = [...SETTINGS, ...folders.flat()].sort();
  const lines = paths.map(async (path) => {
    const hash = createHash("sha256").update(await readFile(join(root, path)));
    return `${hash.digest("hex")}  ${path}\n`;
  });
  return (await Promise.all(lines)).join("");
}

await rm(join(root, "dist"), { recursive: true, force: true });
await mkdir(join(root, "dist"));
await build({
  absWorkingDir: root,
  entryPoints: { app: "src/main.ts" },
  outdir: "dist",
  bundle: true,
  minify: true,
  format: "iife",
  charset: "utf8",
  legalComments: "none",
  target,
});
await build({ absWorkingDir: root, entryPoints: { app: "src/style/app.css" }, outdir: "dist", bundle: true, minify: true, charset: "utf8", target });
await cp(join(root, "src/index.html"), join(root, "dist/index.html"));
await writeFile(join(root, "dist/sources.sum"), await sourcesSum());
