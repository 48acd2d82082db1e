// Cuts code into pieces of one colour. It need not be right for every program: what it takes for a
// string or a comment ends where the language says, and everything else is plain text.

import type { Language } from "./languages";

export type Tone = "plain" | "keyword" | "string" | "comment" | "number" | "name";

export interface Piece {
  tone: Tone;
  text: string;
}

interface Rule {
  tone: Tone;
  pattern: RegExp;
}

const rules = new Map<Language, Rule[]>();

export function pieces(code: string, language: Language): Piece[] {
  const found: Piece[] = [];
  const push = (tone: Tone, text: string): void => {
    const last = found.at(-1);
    if (last?.tone === tone) last.text += text;
    else found.push({ tone, text });
  };
  for (let at = 0; at < code.length; ) {
    const match = firstMatch(code, at, rulesOf(language));
    if (match) push(match.tone, match.text);
    else push("plain", code[at]!);
    at += match ? match.text.length : 1;
  }
  return found;
}

function firstMatch(code: string, at: number, list: Rule[]): Piece | null {
  for (const { tone, pattern } of list) {
    pattern.lastIndex = at;
    const text = pattern.exec(code)?.[0];
    if (text) return { tone, text };
  }
  return null;
}

function rulesOf(language: Language): Rule[] {
  let list = rules.get(language);
  if (!list) rules.set(language, (list = makeRules(language)));
  return list;
}

function makeRules(language: Language): Rule[] {
  const list: Rule[] = [];
  const add = (tone: Tone, pattern: string, flags = ""): void => void list.push({ tone, pattern: new RegExp(pattern, `yu${flags}`) });
  // In a shell a comment begins a word.
  for (const sign of language.line ?? []) add("comment", `${sign === "#" ? "(?<![\\w$&{])" : ""}${literal(sign)}[^\\n]*`);
  for (const [open, close] of language.block ?? []) add("comment", `${literal(open)}(?:(?!${literal(close)})[^])*(?:${literal(close)})?`);
  if (language.keys) add("name", `(?:"(?:[^"\\\\\\n]|\\\\.)*"(?=\\s*:)|[\\p{L}_][\\w.-]*(?=\\s*[:=]))`);
  for (const sign of language.strings ?? []) {
    const many = sign.length === 3 || sign === "\`";
    const end = literal(sign);
    add("string", `${end}(?:\\\\[^]|(?!${end})[^${many ? "" : "\\n"}\\\\])*(?:${end})?`);
  }
  if (language.tags) add("keyword", `</?[a-zA-Z][\\w:-]*|/?>`);
  if (language.variables) add("name", `\\$(?:\\w+|\\{[^}\\n]*\\}|[@*#?!$-])`);
  add("number", `(?<![\\w.])(?:0[xX][\\da-fA-F_]+|0[bB][01_]+|\\d[\\d_]*(?:\\.\\d+)?(?:[eE][+-]?\\d+)?)\\w*`);
  const words = (language.keywords ?? "").split(" ").filter((word) => word !== "");
  if (words.length > 0) add("keyword", `(?<![\\w.])(?:${words.join("|")})(?![\\w-])`, language.anyCase ? "i" : "");
  add("name", `[\\p{L}_]\\w*(?=\\()`);
  // Whole words, so that no part of one is taken for a number or a keyword.
  add("plain", `[\\p{L}_]\\w*|\\s+`);
  return list;
}

function literal(text: string): string {
  return text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
}
