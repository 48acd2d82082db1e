// Parses the text of a block: code spans, formulas, emphasis, links, line breaks.
//
// Emphasis follows CommonMark's rule of delimiter runs. HTML stays text, except for `<br>`, which
// models write inside table cells. An image becomes a link: the page loads nothing from outside.

export type Inline =
  | { kind: "text"; text: string }
  | { kind: "code"; text: string }
  | { kind: "formula"; text: string; display: boolean }
  | { kind: "break" }
  | { kind: "strong" | "emphasis" | "strike"; children: Inline[] }
  | { kind: "link"; address: string; children: Inline[] };

/** A piece of the row that is being parsed: finished, or a run that may open or close something. */
type Piece = Finished | Run | Bracket;
type Finished = { node: Inline; depth: number };
type Run = { run: string; length: number; opens: boolean; closes: boolean };
type Bracket = { bracket: string; active: boolean };

/** Emphasis nested deeper than this stays text, which bounds the depth of the DOM. */
const MAX_DEPTH = 16;

const SPECIAL = /[\\`*_~[\]!<&\n$]|https?:\/\//g;
const LINK_TARGET = /^\]\(\s*(?:<([^<>\n]*)>|([^\s()]*(?:\([^\s()]*\)[^\s()]*)*))(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/;
const MAX_ADDRESS = 2000;
/** Between single dollars; longer ones have signs of their own. */
const MAX_FORMULA = 500;
const ENTITIES: Record<string, string> = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", "#39": "'", nbsp: "\u00a0" };
const PUNCTUATION = /[\p{P}\p{S}]/u;

/** Only addresses of the web are links; anything else stays text. */
export function webAddress(address: string): string | null {
  if (!/^https?:\/\//i.test(address) || /[\s\u0000-\u001f]/.test(address)) return null;
  try {
    const url = new URL(address);
    return url.protocol === "http:" || url.protocol === "https:" ? url.href : null;
  } catch {
    return null;
  }
}

/**
 * `growing` says that more text will follow: emphasis and code that are not closed yet are shown
 * as if they were, so that no signs flash up at the end of a stream.
 */
export function parseInline(text: string, growing = false): Inline[] {
  return new InlineParser(growing ? text.replace(/[*`]{1,3}$/, "") : text, growing).parse();
}

class InlineParser {
  private pieces: Piece[] = [];
  private at = 0;
  /** Indices of the brackets in `pieces` that no link has used. */
  private brackets: number[] = [];
  /** Lengths of backtick runs that have no partner further on. */
  private unpaired = new Set<number>();
  /** Ends of formulas that do not occur further on. */
  private unended = new Set<string>();

  constructor(
    private readonly text: string,
    private readonly growing: boolean,
  ) {}

  parse(): Inline[] {
    while (this.at < this.text.length) {
      SPECIAL.lastIndex = this.at;
      const found = SPECIAL.exec(this.text);
      const end = found ? found.index : this.text.length;
      this.plain(this.text.slice(this.at, end));
      this.at = end;
      if (found) this.special(found[0]);
    }
    const row = this.fold(0);
    if (this.growing) closeOpenRuns(row);
    return nodesOf(row);
  }

  private special(sign: string): void {
    switch (sign) {
      case "\\": return this.escape();
      case "`": return this.code();
      case "\n": return this.lineBreak();
      case "[": return this.bracket("[");
      case "]": return this.link();
      case "!": return this.text[this.at + 1] === "[" ? this.bracket("![") : this.take(1);
      case "<": return this.angle();
      case "&": return this.entity();
      case "$": return this.dollar();
      case "*": case "_": case "~": return this.delimiters(sign);
      default: return this.bareAddress();
    }
  }

  private plain(text: string): void {
    if (text === "") return;
    const last = this.pieces.at(-1);
    if (last && "node" in last && last.node.kind === "text") last.node.text += text;
    else this.pieces.push({ node: { kind: "text", text }, depth: 0 });
  }

  private take(length: number): void {
    this.plain(this.text.slice(this.at, this.at + length));
    this.at += length;
  }

  private push(node: Inline, length: number, depth = 0): void {
    this.pieces.push({ node, depth });
    this.at += length;
  }

  private escape(): void {
    const next = this.text[this.at + 1];
    if (next === "\n") return this.push({ kind: "break" }, 2);
    if (next === "(") return this.formula("\\(", "\\)", false);
    if (next === "[") return this.formula("\\[", "\\]", true);
    if (next === ")" || next === "]") return this.take(2);
    if (next === undefined || !/[!-/:-@[-`{-~]/.test(next)) return this.take(1);
    this.plain(next);
    this.at += 2;
  }

  /** A formula between its signs; without an end they are text. */
  private formula(open: string, close: string, display: boolean): void {
    const start = this.at + open.length;
    const end = this.unended.has(close) ? -1 : this.text.indexOf(close, start);
    if (end < 0) this.unended.add(close);
    if (end <= start) return this.take(open.length);
    this.push({ kind: "formula", text: this.text.slice(start, end), display }, end + close.length - this.at);
  }

  /** `$$…$$`, or `$…$` where the signs stand close to what they enclose, so that prices stay prices. */
  private dollar(): void {
    if (this.text[this.at + 1] === "$") return this.formula("$$", "$$", true);
    const found = /^\$(?=[^\s$])((?:\\[^\n]|[^$\\\n])*?[^\s\\$])\$(?!\d)/.exec(this.text.slice(this.at, this.at + MAX_FORMULA));
    const before = this.text[this.at - 1];
    if (!found || (before !== undefined && /[\w$]/.test(before))) return this.take(1);
    this.push({ kind: "formula", text: found[1]!, display: false }, found[0].length);
  }

  private code(): void {
    const run = runLength(this.text, this.at, "`");
    const start = this.at + run;
    const close = this.unpaired.has(run) ? -1 : findRun(this.text, start, run);
    if (close < 0) {
      if (this.growing && run < 3) return this.push({ kind: "code", text: this.text.slice(start) }, this.text.length - this.at);
      this.unpaired.add(run);
      return this.take(run);
    }
    let text = this.text.slice(start, close).replaceAll("\n", " ");
    if (text.startsWith(" ") && text.endsWith(" ") && text.trim() !== "") text = text.slice(1, -1);
    this.push({ kind: "code", text }, close + run - this.at);
  }

  /** Every line end is a break: models do not wrap paragraphs, but they write verse. */
  private lineBreak(): void {
    const last = this.pieces.at(-1);
    if (last && "node" in last && last.node.kind === "text") last.node.text = last.node.text.trimEnd();
    this.push({ kind: "break" }, 1);
  }

  private bracket(sign: string): void {
    this.brackets.push(this.pieces.length);
    this.pieces.push({ bracket: sign, active: true });
    this.at += sign.length;
  }

  private link(): void {
    const open = this.brackets.pop();
    if (open === undefined) return this.take(1);
    const bracket = this.pieces[open] as Bracket;
    const target = LINK_TARGET.exec(this.text.slice(this.at, this.at + MAX_ADDRESS + 100));
    const address = target && bracket.active ? webAddress(target[1] ?? target[2] ?? "") : null;
    if (address === null) return this.take(target ? target[0].length : 1);
    const row = this.fold(open + 1);
    this.pieces.length = open;
    this.push({ kind: "link", address, children: nodesOf(row) }, target![0].length, depthOf(row) + 1);
    // A link holds no other link.
    for (const index of this.brackets) (this.pieces[index] as Bracket).active = false;
  }

  private angle(): void {
    const rest = this.text.slice(this.at, this.at + MAX_ADDRESS);
    const broken = /^<br\s*\/?>/i.exec(rest);
    if (broken) return this.push({ kind: "break" }, broken[0].length);
    const found = /^<([^<>\s]+)>/.exec(rest);
    const address = found ? webAddress(found[1]!) : null;
    if (address === null) return this.take(1);
    this.push({ kind: "link", address, children: [{ kind: "text", text: found![1]! }] }, found![0].length);
  }

  private entity(): void {
    const found = /^&(#?\w{2,4});/.exec(this.text.slice(this.at, this.at + 8));
    const sign = found ? ENTITIES[found[1]!] : undefined;
    if (sign === undefined) return this.take(1);
    this.plain(sign);
    this.at += found![0].length;
  }

  private bareAddress(): void {
    const boundary = this.at === 0 || /[\s(*_~>"']/.test(this.text[this.at - 1]!);
    const found = boundary ? /^https?:\/\/[^\s<>`*"'[\]]+/.exec(this.text.slice(this.at, this.at + MAX_ADDRESS)) : null;
    // Inside brackets the address is probably the text of a link.
    if (!found || this.brackets.length > 0) return this.take(1);
    let shown = found[0].replace(/[.,:;!?_~]+$/, "");
    if (shown.endsWith(")") && !shown.includes("(")) shown = shown.replace(/[).,:;!?]+$/, "");
    const address = webAddress(shown);
    if (address === null) return this.take(1);
    this.push({ kind: "link", address, children: [{ kind: "text", text: shown }] }, shown.length);
  }

  private delimiters(sign: string): void {
    const length = runLength(this.text, this.at, sign);
    const before = this.text[this.at - 1] ?? " ";
    const after = this.text[this.at + length] ?? " ";
    const left = !/\s/.test(after) && (!PUNCTUATION.test(after) || /\s/.test(before) || PUNCTUATION.test(before));
    const right = !/\s/.test(before) && (!PUNCTUATION.test(before) || /\s/.test(after) || PUNCTUATION.test(after));
    const inWord = sign === "_";
    const opens = left && (!inWord || !right || PUNCTUATION.test(before));
    const closes = right && (!inWord || !left || PUNCTUATION.test(after));
    if ((!opens && !closes) || (sign === "~" ? length !== 2 : length > 3)) return this.take(length);
    this.pieces.push({ run: sign, length, opens, closes });
    this.at += length;
  }

  /** Pairs the delimiter runs from piece `from` on. */
  private fold(from: number): Piece[] {
    const row = this.pieces.slice(from);
    const bottom = new Map<string, number>();
    for (let at = 0; at < row.length; at += 1) {
      const closer = row[at]!;
      if (!("run" in closer) || !closer.closes || closer.length === 0) continue;
      const key = `${closer.run}${closer.opens}${closer.length % 3}`;
      const open = findOpener(row, at, closer, bottom.get(key) ?? 0);
      const depth = open < 0 ? 0 : depthOf(row.slice(open + 1, at)) + 1;
      if (open < 0 || depth > MAX_DEPTH) {
        bottom.set(key, at);
        continue;
      }
      const opener = row[open] as Run;
      const width = opener.length >= 2 && closer.length >= 2 ? 2 : 1;
      const kind = closer.run === "~" ? "strike" : width === 2 ? "strong" : "emphasis";
      const children = nodesOf(row.slice(open + 1, at));
      opener.length -= width;
      closer.length -= width;
      row.splice(open + 1, at - open - 1, { node: { kind, children }, depth });
      for (const [sign, limit] of bottom) if (limit > open + 1) bottom.set(sign, open + 1);
      // The closer, now behind the new node, may close another opener.
      at = open + 1;
    }
    return row;
  }
}

function depthOf(row: Piece[]): number {
  return row.reduce((depth, piece) => ("node" in piece ? Math.max(depth, piece.depth) : depth), 0);
}

function findOpener(row: Piece[], before: number, closer: Run, bottom: number): number {
  for (let at = before - 1; at >= bottom; at -= 1) {
    const piece = row[at]!;
    if (!("run" in piece) || piece.run !== closer.run || !piece.opens || piece.length === 0) continue;
    const odd = (piece.closes || closer.opens) && (piece.length + closer.length) % 3 === 0;
    if (!odd || (piece.length % 3 === 0 && closer.length % 3 === 0)) return at;
  }
  return -1;
}

/** Closes the last few runs that are open, at the end of the row. */
function closeOpenRuns(row: Piece[]): void {
  for (let at = row.length - 1, closed = 0; at >= 0 && closed < 3; at -= 1) {
    const piece = row[at]!;
    if (!("run" in piece) || piece.run !== "*" || !piece.opens || piece.length === 0 || piece.length > 2) continue;
    const inner = row.splice(at, Infinity).slice(1);
    row.push({ node: { kind: piece.length === 2 ? "strong" : "emphasis", children: nodesOf(inner) }, depth: depthOf(inner) + 1 });
    closed += 1;
  }
}

/** Runs and brackets that found no partner are text. */
function nodesOf(pieces: Piece[]): Inline[] {
  const nodes: Inline[] = [];
  for (const piece of pieces) {
    const node: Inline = "node" in piece ? piece.node : { kind: "text", text: "run" in piece ? piece.run.repeat(piece.length) : piece.bracket };
    const last = nodes.at(-1);
    if (node.kind === "text" && last?.kind === "text") nodes[nodes.length - 1] = { kind: "text", text: last.text + node.text };
    else if (node.kind !== "text" || node.text !== "") nodes.push(node);
  }
  return nodes;
}

function runLength(text: string, at: number, sign: string): number {
  let end = at;
  while (text[end] === sign) end += 1;
  return end - at;
}

function findRun(text: string, from: number, length: number): number {
  for (let at = text.indexOf("`", from); at >= 0; ) {
    const run = runLength(text, at, "`");
    if (run === length) return at;
    at = text.indexOf("`", at + run);
  }
  return -1;
}
