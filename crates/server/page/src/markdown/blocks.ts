// Parses Markdown into blocks, line by line.
//
// The parser never looks further ahead than the block it is in, so that a block that is followed by
// another one is final: more text can only change the last one. `stream.ts` depends on that.
//
// Differences from CommonMark, chosen for what language models write: no indented code (a list
// that is indented too far would turn into code), no underlined headings (`---` below a paragraph
// is a rule), no HTML, and a list nested by two spaces is nested also below `1.`.

export type Align = "left" | "center" | "right" | null;

export type Block =
  | { kind: "heading"; level: number; text: string }
  | { kind: "paragraph"; text: string }
  | { kind: "code"; language: string; text: string }
  | { kind: "formula"; text: string; closed: boolean }
  | { kind: "quote"; blocks: Block[] }
  | { kind: "list"; start: number | null; tight: boolean; items: Block[][] }
  | { kind: "table"; align: Align[]; header: string[]; rows: string[][] }
  | { kind: "rule" };

/** A block and the index of its first line. */
export interface PlacedBlock {
  block: Block;
  line: number;
}

/** Containers nested deeper than this are shown as plain text, which bounds the recursion. */
const MAX_DEPTH = 24;

const RULE = /^\s*([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const MARKER = /^(\s*)([-*+]|(\d{1,9})([.)]))(?:(\s+)(?=\S)|\s*$)/;
const FENCE = /^(\s*)(`{3,}|~{3,})[ \t]*(.*)$/;
const HEADING = /^\s*(#{1,6})(?=[ \t]|$)/;
const DELIMITER_CELL = /^\s*(:?)-+(:?)\s*$/;

interface Marker {
  /** What items of one list have in common: the bullet, or the sign behind the number. */
  sign: string;
  number: number | null;
  indent: number;
  /** Column where the item's text begins. */
  content: number;
  empty: boolean;
}

interface Fence {
  indent: number;
  sign: string;
  length: number;
  info: string;
}

export function parseBlocks(lines: string[], depth = 0): PlacedBlock[] {
  const blocks: PlacedBlock[] = [];
  for (let at = 0; at < lines.length; ) {
    if (isBlank(lines[at]!)) {
      at += 1;
      continue;
    }
    const [block, next] = parseBlock(lines, at, depth);
    blocks.push({ block, line: at });
    at = next;
  }
  return blocks;
}

/** The block that begins at line `at`, and the line after it. */
function parseBlock(lines: string[], at: number, depth: number): [Block, number] {
  const line = lines[at]!;
  const fence = fenceOf(line);
  if (fence) return parseCode(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return [{ kind: "heading", level: heading[1]!.length, text: headingText(line.slice(heading[0].length)) }, at + 1];
  if (RULE.test(line)) return [{ kind: "rule" }, at + 1];
  if (depth < MAX_DEPTH) {
    if (isQuote(line)) return parseQuote(lines, at, depth);
    if (markerOf(line)) return parseList(lines, at, depth);
  }
  const formula = parseFormulaBlock(lines, at);
  if (formula) return formula;
  const align = tableAlign(line, lines[at + 1]);
  if (align) return parseTable(lines, at, align);
  return parseParagraph(lines, at, depth);
}

function parseCode(lines: string[], at: number, fence: Fence): [Block, number] {
  const text: string[] = [];
  let next = at + 1;
  for (; next < lines.length; next += 1) {
    const line = lines[next]!;
    if (closesFence(line, fence)) {
      next += 1;
      break;
    }
    text.push(outdent(line, fence.indent));
  }
  const language = fence.info.trim().split(/\s+/, 1)[0] ?? "";
  return [{ kind: "code", language, text: text.join("\n") }, next];
}

/** A formula on lines of its own. It ends at a blank line at the latest; then it was none. */
function parseFormulaBlock(lines: string[], at: number): [Block, number] | null {
  const open = formulaSign(lines[at]!);
  if (!open) return null;
  const close = open === "$$" ? "$$" : "\\]";
  const text: string[] = [];
  for (let next = at; next < lines.length; next += 1) {
    const line = next === at ? lines[next]!.trimStart().slice(open.length) : lines[next]!;
    // The last line may be the beginning of one that is not blank.
    if (next > at && next < lines.length - 1 && isBlank(line)) return null;
    const end = line.indexOf(close);
    text.push(end < 0 ? line : line.slice(0, end));
    if (end < 0) continue;
    // With words behind it, it belongs to a paragraph.
    const rest = line.slice(end + close.length).trim();
    return /^[.,;]?$/.test(rest) ? [{ kind: "formula", text: text.join("\n") + rest, closed: true }, next + 1] : null;
  }
  return [{ kind: "formula", text: text.join("\n"), closed: false }, lines.length];
}

function formulaSign(line: string): string | null {
  return /^\s*(\$\$|\\\[)/.exec(line)?.[1] ?? null;
}

function parseQuote(lines: string[], at: number, depth: number): [Block, number] {
  const inner = new ContainerLines();
  let next = at;
  for (; next < lines.length; next += 1) {
    const line = lines[next]!;
    if (isQuote(line)) inner.push(line.trimStart().replace(/^> ?/, ""));
    else if (inner.continuesLazily(line)) inner.push(line);
    else break;
  }
  return [{ kind: "quote", blocks: parseBlocks(inner.lines, depth + 1).map((placed) => placed.block) }, next];
}

function parseList(lines: string[], at: number, depth: number): [Block, number] {
  const first = markerOf(lines[at]!)!;
  const items: Block[][] = [];
  let tight = true;
  let next = at;
  while (next < lines.length) {
    const marker = markerOf(lines[next]!);
    if (!marker || marker.sign !== first.sign || RULE.test(lines[next]!)) break;
    const [inner, after] = itemLines(lines, next, marker);
    let end = after;
    const trailing = trimBlankEnd(inner);
    const following = lines[end];
    if (trailing > 0) {
      const sibling = following === undefined ? null : markerOf(following);
      if (sibling && sibling.sign === first.sign && !RULE.test(following!)) tight = false;
      else end -= trailing;
    }
    const blocks = parseBlocks(inner, depth + 1);
    if (blocks.some(({ line }, index) => index > 0 && isBlank(inner[line - 1]!))) tight = false;
    items.push(blocks.map((placed) => placed.block));
    next = end;
    if (next < lines.length && isBlank(lines[next]!)) break;
  }
  return [{ kind: "list", start: first.number, tight, items }, next];
}

/** The lines of one list item without marker and indentation, and the line after them. */
function itemLines(lines: string[], at: number, marker: Marker): [string[], number] {
  const inner = new ContainerLines();
  inner.push(expandTabs(lines[at]!).slice(marker.content));
  const least = Math.min(marker.content, marker.indent + 2);
  let next = at + 1;
  for (; next < lines.length; next += 1) {
    const line = lines[next]!;
    if (isBlank(line)) inner.push("");
    else if (indentOf(line) >= least) inner.push(outdent(line, marker.content));
    else if (inner.continuesLazily(line)) inner.push(line.trimStart());
    else break;
  }
  return [inner.lines, next];
}

function parseTable(lines: string[], at: number, align: Align[]): [Block, number] {
  const header = cellsOf(lines[at]!);
  const rows: string[][] = [];
  let next = at + 2;
  for (; next < lines.length; next += 1) {
    const line = lines[next]!;
    if (isBlank(line) || startsBlock(line)) break;
    const cells = cellsOf(line).slice(0, align.length);
    while (cells.length < align.length) cells.push("");
    rows.push(cells);
  }
  return [{ kind: "table", align, header, rows }, next];
}

function parseParagraph(lines: string[], at: number, depth: number): [Block, number] {
  const text = [lines[at]!.trimStart()];
  let next = at + 1;
  for (; next < lines.length; next += 1) {
    const line = lines[next]!;
    if (isBlank(line) || (depth < MAX_DEPTH && startsBlock(line)) || tableAlign(line, lines[next + 1])) break;
    text.push(line.trimStart());
  }
  return [{ kind: "paragraph", text: text.join("\n").trimEnd() }, next];
}

/** Whether `line` ends a paragraph above it. */
function startsBlock(line: string): boolean {
  if (fenceOf(line) || HEADING.test(line) || RULE.test(line) || isQuote(line) || formulaSign(line)) return true;
  const marker = markerOf(line);
  return marker !== null && !marker.empty && (marker.number === null || marker.number === 1);
}

/** The lines inside a quote or a list item, and whether they end inside a code block. */
class ContainerLines {
  readonly lines: string[] = [];
  private fence: Fence | null = null;

  push(line: string): void {
    this.lines.push(line);
    if (!this.fence) this.fence = fenceOf(line.replace(/^[\s>]*(?:(?:[-*+]|\d{1,9}[.)])\s+)*/, ""));
    else if (closesFence(line, this.fence)) this.fence = null;
  }

  /** Whether `line`, which lacks the container's prefix, still belongs to the paragraph in it. */
  continuesLazily(line: string): boolean {
    const last = this.lines.at(-1);
    if (last === undefined || isBlank(last) || isBlank(line)) return false;
    if (startsBlock(line) || markerOf(line) || HEADING.test(last) || RULE.test(last)) return false;
    return this.fence === null;
  }
}

function markerOf(line: string): Marker | null {
  if (!MARKER.test(line)) return null;
  const match = MARKER.exec(expandTabs(line))!;
  const [whole, indent, sign, digits, delimiter, gap] = match;
  const empty = gap === undefined;
  const before = indent!.length + sign!.length;
  return {
    sign: delimiter ?? sign!,
    number: digits === undefined ? null : Number(digits),
    indent: indent!.length,
    content: empty || gap.length > 4 ? before + 1 : whole.length,
    empty,
  };
}

function fenceOf(line: string): Fence | null {
  const match = FENCE.exec(line);
  if (!match) return null;
  const [, indent, sign, info] = match;
  if (sign!.startsWith("`") && info!.includes("`")) return null;
  return { indent: indentOf(indent!), sign: sign![0]!, length: sign!.length, info: info! };
}

function closesFence(line: string, fence: Fence): boolean {
  const text = line.trim();
  return text.length >= fence.length && text === fence.sign.repeat(text.length);
}

function headingText(rest: string): string {
  const text = rest.trim();
  const bare = text.replace(/#+$/, "");
  return bare === "" || /[ \t]$/.test(bare) ? bare.trimEnd() : text;
}

function tableAlign(line: string, below: string | undefined): Align[] | null {
  if (below === undefined || !line.includes("|") || !below.includes("-") || !/^[\s|:-]+$/.test(below)) return null;
  const cells = cellsOf(below);
  if (cells.length !== cellsOf(line).length) return null;
  const align: Align[] = [];
  for (const cell of cells) {
    const match = DELIMITER_CELL.exec(cell);
    if (!match) return null;
    align.push(match[1] ? (match[2] ? "center" : "left") : match[2] ? "right" : null);
  }
  return align;
}

function cellsOf(line: string): string[] {
  let text = line.trim();
  if (text.startsWith("|")) text = text.slice(1);
  if (text.endsWith("|") && !text.endsWith("\\|")) text = text.slice(0, -1);
  return text.split(/(?<!\\)\|/).map((cell) => cell.replaceAll("\\|", "|").trim());
}

function isBlank(line: string): boolean {
  return line.trim() === "";
}

function isQuote(line: string): boolean {
  return line.trimStart().startsWith(">");
}

function indentOf(line: string): number {
  const wide = expandTabs(line);
  return wide.length - wide.trimStart().length;
}

function outdent(line: string, columns: number): string {
  const wide = expandTabs(line);
  return wide.slice(Math.min(columns, wide.length - wide.trimStart().length));
}

/** Replaces tabs in the indentation by spaces up to the next multiple of four. */
function expandTabs(line: string): string {
  let column = 0;
  for (let at = 0; at < line.length; at += 1) {
    if (line[at] === "\t") column += 4 - (column % 4);
    else if (line[at] === " ") column += 1;
    else return column === at ? line : " ".repeat(column) + line.slice(at);
  }
  return " ".repeat(column);
}

/** Removes blank lines behind the first line and returns how many there were. */
function trimBlankEnd(lines: string[]): number {
  let count = 0;
  while (lines.length > 1 && isBlank(lines[lines.length - 1]!)) {
    lines.pop();
    count += 1;
  }
  return count;
}
