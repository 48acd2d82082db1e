// Loads TypeScript modules of the page into Node.

import { build } from "esbuild";
import { join } from "node:path";

const page = join(import.meta.dirname, "../..");

export async function load(path) {
  const result = await build({ entryPoints: [join(page, "src", path)], bundle: true, write: false, format: "esm", target: "node20" });
  return import(`data:text/javascript;base64,${Buffer.from(result.outputFiles[0].contents).toString("base64")}`);
}
