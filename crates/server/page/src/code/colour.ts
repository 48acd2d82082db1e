// Shows code in colours, also while it grows: pieces that are on the page already stay there.

import { element } from "../dom";
import { languageOf } from "./languages";
import { pieces, type Piece } from "./tokens";

/** Longer code stays plain, because it is cut into pieces again whenever it grows. */
const MAX_LENGTH = 50_000;

const shown = new WeakMap<HTMLElement, Piece[]>();

/** Fills `code` with `text`. */
export function colour(code: HTMLElement, language: string, text: string): void {
  const known = text.length <= MAX_LENGTH ? languageOf(language) : null;
  const next: Piece[] = known ? pieces(text, known) : text === "" ? [] : [{ tone: "plain", text }];
  const before = shown.get(code) ?? [];
  let same = 0;
  while (same < before.length && before[same]!.tone === next[same]?.tone && before[same]!.text === next[same]?.text) same += 1;
  while (code.childNodes.length > same) code.lastChild!.remove();
  for (const { tone, text: piece } of next.slice(same)) code.append(tone === "plain" ? piece : element("span", { class: `code-${tone}` }, piece));
  shown.set(code, next);
}
