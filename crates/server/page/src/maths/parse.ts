// Parses formulas as language models write them, a part of TeX, into a tree that MathML can show.
//
// What is not known is never left out: the parser fails, and the page shows the source.

import { ACCENTS, ALPHABETS, BELOW, DELIMITERS, FUNCTIONS, INTEGRALS, LARGE, LETTERS, LIMITS, OPERATORS, SPACES, UPRIGHT } from "./symbols";

export type Formula =
  | { kind: "identifier" | "upright" | "number" | "operator" | "text"; text: string }
  | { kind: "fence"; text: string; size: number | null }
  | { kind: "space"; width: number }
  | { kind: "row"; children: Formula[] }
  | { kind: "fraction"; line: boolean; children: [Formula, Formula] }
  | { kind: "root"; children: [Formula, Formula | null] }
  | { kind: "scripts"; limits: boolean; base: Formula; below: Formula | null; above: Formula | null }
  | { kind: "accent"; over: boolean; sign: string; children: [Formula] }
  | { kind: "box"; children: [Formula] }
  | { kind: "table"; align: string; rows: Formula[][] };

/** Longer formulas and deeper ones are shown as their source. */
const MAX_LENGTH = 10_000;
const MAX_DEPTH = 40;

const TOKEN = /\s+|%[^\n]*|\\(?:[a-zA-Z]+\*?|[^])|[^]/uy;
/** Columns of environments: "rl" puts the pairs of an equation side by side. */
const ENVIRONMENTS: Record<string, { open: string; close: string; align: string }> = {
  matrix: { open: "", close: "", align: "c" },
  smallmatrix: { open: "", close: "", align: "c" },
  pmatrix: { open: "(", close: ")", align: "c" },
  bmatrix: { open: "[", close: "]", align: "c" },
  Bmatrix: { open: "{", close: "}", align: "c" },
  vmatrix: { open: "|", close: "|", align: "c" },
  Vmatrix: { open: "‖", close: "‖", align: "c" },
  array: { open: "", close: "", align: "c" },
  cases: { open: "{", close: "", align: "l" },
  aligned: { open: "", close: "", align: "rl" },
  align: { open: "", close: "", align: "rl" },
  alignat: { open: "", close: "", align: "rl" },
  split: { open: "", close: "", align: "rl" },
  eqnarray: { open: "", close: "", align: "rcl" },
  gathered: { open: "", close: "", align: "c" },
  gather: { open: "", close: "", align: "c" },
  equation: { open: "", close: "", align: "c" },
};
/** Switches of size and style that change nothing here. */
const IGNORED = new Set(["displaystyle", "textstyle", "scriptstyle", "limits", "nolimits", "nonumber", "notag", "hline", "mathstrut"]);
const SIZES: Record<string, number> = { big: 1.2, Big: 1.8, bigg: 2.4, Bigg: 3 };
const TEXTS = new Set(["text", "textrm", "textit", "textbf", "textsf", "texttt", "mbox", "hbox"]);

class NotUnderstood extends Error {}

/** The formula, or null where a part of it is not known. */
export function parseFormula(source: string): Formula | null {
  if (source.length > MAX_LENGTH) return null;
  try {
    return new Parser(source).whole();
  } catch (error) {
    if (error instanceof NotUnderstood) return null;
    throw error;
  }
}

class Parser {
  private readonly tokens: string[];
  private at = 0;
  private depth = 0;

  constructor(source: string) {
    this.tokens = source.match(new RegExp(TOKEN.source, "gu")) ?? [];
  }

  whole(): Formula {
    const rows = this.rows(() => this.peek() === undefined);
    if (rows.length === 1 && rows[0]!.length === 1) return rows[0]![0]!;
    return { kind: "table", align: "rl", rows };
  }

  // Tokens

  /** The next token that is no space, without taking it. */
  private peek(): string | undefined {
    while (this.at < this.tokens.length && /^(?:\s|%)/.test(this.tokens[this.at]!)) this.at += 1;
    return this.tokens[this.at];
  }

  private next(): string {
    const token = this.peek();
    if (token === undefined) throw new NotUnderstood();
    this.at += 1;
    return token;
  }

  private expect(token: string): void {
    if (this.next() !== token) throw new NotUnderstood();
  }

  /** The text of a group in braces as it stands, spaces included. */
  private raw(): string {
    this.expect("{");
    let text = "";
    for (let depth = 1; ; ) {
      const token = this.tokens[this.at++];
      if (token === undefined) throw new NotUnderstood();
      if (token === "{") depth += 1;
      if (token === "}") depth -= 1;
      if (depth === 0) return text;
      text += token;
    }
  }

  // Rows and tables

  /** Cells and rows up to where `ends` holds. */
  private rows(ends: () => boolean): Formula[][] {
    const rows: Formula[][] = [[]];
    for (;;) {
      rows.at(-1)!.push(this.row(() => ends() || this.peek() === "&" || this.isBreak()));
      if (ends()) break;
      if (this.next() === "&") continue;
      if (this.tokens[this.at] === "[") while (this.next() !== "]");
      if (ends()) break;
      rows.push([]);
    }
    return rows;
  }

  private isBreak(): boolean {
    const token = this.peek();
    return token === "\\\\" || token === "\\cr" || token === "\\newline";
  }

  private row(ends: () => boolean): Formula {
    const children: Formula[] = [];
    while (!ends()) {
      const token = this.peek();
      if (token === undefined || token === "}" || token === "&") throw new NotUnderstood();
      const found = this.scripted();
      if (found) children.push(found);
    }
    return children.length === 1 ? children[0]! : { kind: "row", children };
  }

  private environment(name: string): Formula {
    const bare = name.replace(/\*$/, "");
    const known = Object.hasOwn(ENVIRONMENTS, bare) ? ENVIRONMENTS[bare]! : null;
    if (!known) throw new NotUnderstood();
    let { align } = known;
    if (bare === "array") align = this.raw().replace(/[^lcr]/g, "") || "c";
    if (bare === "alignat") this.raw();
    const rows = this.rows(() => this.peek() === "\\end");
    this.next();
    if (this.raw() !== name) throw new NotUnderstood();
    const table: Formula = { kind: "table", align, rows: rows.filter((row, index) => index < rows.length - 1 || row.length > 1 || !isEmpty(row[0]!)) };
    return known.open || known.close ? fenced(known.open, table, known.close) : table;
  }

  // Parts

  /** An atom with what stands below and above it. */
  private scripted(): Formula | null {
    const token = this.peek()!;
    const base: Formula | null = token === "^" || token === "_" ? { kind: "row", children: [] } : this.atom();
    let below: Formula | null = null;
    let above: Formula | null = null;
    let primes = "";
    for (;;) {
      const sign = this.peek();
      if (sign === "_" && !below) {
        this.next();
        below = this.argument();
      } else if (sign === "^" && !above) {
        this.next();
        above = this.argument();
      } else if (sign === "'") {
        this.next();
        primes += "′";
      } else if (sign === "\\limits" || sign === "\\nolimits") {
        this.next();
      } else {
        break;
      }
    }
    if (primes) {
      const mark: Formula = { kind: "operator", text: primes };
      above = above ? { kind: "row", children: [mark, above] } : mark;
    }
    if (this.peek() === "_" || this.peek() === "^") throw new NotUnderstood();
    if (!below && !above) return base;
    if (!base) throw new NotUnderstood();
    return { kind: "scripts", limits: hasLimits(token, base), base, below, above };
  }

  /** A group in braces, one digit, or one other atom. */
  private argument(): Formula {
    const token = this.peek();
    if (token === "{") return this.group();
    if (token !== undefined && /[0-9]/.test(token)) return { kind: "number", text: this.next() };
    const atom = this.atom();
    if (!atom) throw new NotUnderstood();
    return atom;
  }

  private group(): Formula {
    this.expect("{");
    this.depth += 1;
    if (this.depth > MAX_DEPTH) throw new NotUnderstood();
    const row = this.row(() => this.peek() === "}");
    this.depth -= 1;
    this.next();
    return row;
  }

  private atom(): Formula | null {
    this.depth += 1;
    if (this.depth > MAX_DEPTH) throw new NotUnderstood();
    const found = this.peek() === "{" ? this.group() : this.sign(this.next());
    this.depth -= 1;
    return found;
  }

  private sign(token: string): Formula | null {
    if (token.startsWith("\\")) return this.command(token.slice(1));
    if (/[0-9]/.test(token) || (token === "." && /^[0-9]$/.test(this.tokens[this.at] ?? ""))) return this.number(token);
    if (/\p{L}/u.test(token)) return { kind: "identifier", text: token };
    if ("()[]|".includes(token)) return { kind: "fence", text: token, size: 1 };
    if (token === "~") return { kind: "space", width: SPACES["~"]! };
    if (token === "-") return { kind: "operator", text: "−" };
    if (token === "*") return { kind: "operator", text: "∗" };
    if ("#$^_&}".includes(token)) throw new NotUnderstood();
    return { kind: "operator", text: token };
  }

  private number(first: string): Formula {
    let text = first;
    for (let token = this.tokens[this.at]; token !== undefined && /^[0-9.]$/.test(token); token = this.tokens[this.at]) {
      text += token;
      this.at += 1;
    }
    return { kind: "number", text };
  }

  private command(name: string): Formula | null {
    const simple = symbolOf(name);
    if (simple) return simple;
    if (Object.hasOwn(SPACES, name)) return { kind: "space", width: SPACES[name]! };
    if (IGNORED.has(name)) return null;
    if (TEXTS.has(name)) return { kind: "text", text: this.raw() };
    if (name in ACCENTS) return { kind: "accent", over: true, sign: ACCENTS[name]!, children: [this.argument()] };
    if (name in BELOW) return { kind: "accent", over: false, sign: BELOW[name]!, children: [this.argument()] };
    if (Object.hasOwn(ALPHABETS, name) || name === "bm") return restyled(this.argument(), name === "bm" ? "boldsymbol" : name);
    const size = /^(big|Big|bigg|Bigg)[lrm]?$/.exec(name);
    if (size) return { kind: "fence", text: this.delimiter(), size: SIZES[size[1]!]! };
    switch (name) {
      case "frac": case "dfrac": case "tfrac": case "cfrac":
        return { kind: "fraction", line: true, children: [this.argument(), this.argument()] };
      case "binom": case "dbinom": case "tbinom":
        return fenced("(", { kind: "fraction", line: false, children: [this.argument(), this.argument()] }, ")");
      case "sqrt":
        return this.root();
      case "left":
        return this.leftRight();
      case "begin":
        return this.environment(this.raw());
      case "operatorname": case "operatorname*": case "mathop":
        return { kind: "upright", text: this.raw().replace(/\\[,; ]/g, " ") };
      case "mathrm": case "rm":
        return this.peek() === "{" ? upright(this.group()) : null;
      case "mathit": case "mathnormal":
        return this.argument();
      case "boxed": case "fbox":
        return { kind: "box", children: [this.argument()] };
      case "overset": case "stackrel":
        return { kind: "scripts", limits: true, above: this.argument(), base: this.argument(), below: null };
      case "underset":
        return { kind: "scripts", limits: true, below: this.argument(), base: this.argument(), above: null };
      case "xrightarrow": case "xleftarrow": {
        const above = this.argument();
        return { kind: "scripts", limits: true, base: { kind: "operator", text: name === "xrightarrow" ? "⟶" : "⟵" }, below: null, above };
      }
      case "pmod":
        return { kind: "row", children: [{ kind: "space", width: 1 }, { kind: "fence", text: "(", size: 1 }, { kind: "upright", text: "mod" }, { kind: "space", width: 0.33 }, this.argument(), { kind: "fence", text: ")", size: 1 }] };
      case "bmod": case "mod":
        return { kind: "row", children: [{ kind: "space", width: 0.28 }, { kind: "upright", text: "mod" }, { kind: "space", width: 0.28 }] };
      case "not": {
        const struck = this.argument();
        if (struck.kind !== "operator") throw new NotUnderstood();
        return { kind: "operator", text: `${struck.text}\u0338`.normalize("NFC") };
      }
      case "tag": case "tag*":
        return { kind: "row", children: [{ kind: "space", width: 2 }, { kind: "text", text: `(${this.raw()})` }] };
      case "phantom": case "hphantom": case "vphantom": case "label":
        this.raw();
        return null;
      case "%": case "$": case "#": case "&": case "_":
        return { kind: "operator", text: name };
    }
    throw new NotUnderstood();
  }

  private root(): Formula {
    let index: Formula | null = null;
    if (this.peek() === "[") {
      this.next();
      index = this.row(() => this.peek() === "]");
      this.next();
    }
    return { kind: "root", children: [this.argument(), index] };
  }

  private delimiter(): string {
    const token = this.next();
    const name = token.startsWith("\\") ? token.slice(1) : token;
    if ((token.startsWith("\\") || token === ".") && Object.hasOwn(DELIMITERS, name)) return DELIMITERS[name]!;
    if ("()[]|/<>".includes(token)) return token === "<" ? "⟨" : token === ">" ? "⟩" : token;
    const known = DELIMITERS[name];
    if (known === undefined) throw new NotUnderstood();
    return known;
  }

  private leftRight(): Formula {
    const children: Formula[] = [{ kind: "fence", text: this.delimiter(), size: null }];
    for (;;) {
      children.push(this.row(() => this.peek() === "\\right" || this.peek() === "\\middle"));
      const last = this.next() === "\\right";
      children.push({ kind: "fence", text: this.delimiter(), size: null });
      if (last) return { kind: "row", children };
    }
  }
}

function symbolOf(name: string): Formula | null {
  if (name in LETTERS) return { kind: "identifier", text: LETTERS[name]! };
  if (name in UPRIGHT) return { kind: "upright", text: UPRIGHT[name]! };
  if (name in OPERATORS) return { kind: "operator", text: OPERATORS[name]! };
  if (name in LARGE) return { kind: "operator", text: LARGE[name]! };
  if (name in INTEGRALS) return { kind: "operator", text: INTEGRALS[name]! };
  if (FUNCTIONS.has(name)) return { kind: "upright", text: name };
  if (LIMITS.has(name)) return { kind: "upright", text: name.replace(/^(lim|arg)(?=sup|inf|max|min)/, "$1 ") };
  if (Object.hasOwn(DELIMITERS, name) && name !== ".") return { kind: "fence", text: DELIMITERS[name]!, size: 1 };
  return null;
}

/** Whether scripts stand below and above `base` where there is room. */
function hasLimits(token: string, base: Formula): boolean {
  const name = token.slice(1);
  const brace = base.kind === "accent" && (base.sign === "⏞" || base.sign === "⏟");
  return brace || (token.startsWith("\\") && (name in LARGE || LIMITS.has(name) || name === "operatorname*"));
}

function isEmpty(formula: Formula): boolean {
  return formula.kind === "row" && formula.children.length === 0;
}

function fenced(open: string, inner: Formula, close: string): Formula {
  return { kind: "row", children: [{ kind: "fence", text: open, size: null }, inner, { kind: "fence", text: close, size: null }] };
}

/** `formula` with its letters upright, neighbours as one word. */
function upright(formula: Formula): Formula {
  if (formula.kind === "identifier") return { kind: "upright", text: formula.text };
  if (formula.kind !== "row") return formula;
  const children: Formula[] = [];
  for (const child of formula.children.map(upright)) {
    const last = children.at(-1);
    if (child.kind === "upright" && last?.kind === "upright") last.text += child.text;
    else children.push(child);
  }
  return { kind: "row", children };
}

/** `formula` in another alphabet; characters that it lacks fail. */
function restyled(formula: Formula, alphabet: string): Formula {
  if (formula.kind === "row") return { kind: "row", children: formula.children.map((child) => restyled(child, alphabet)) };
  if (formula.kind === "scripts") return { ...formula, base: restyled(formula.base, alphabet) };
  if (formula.kind !== "identifier" && formula.kind !== "number" && formula.kind !== "upright") return formula;
  const { capital, small, digit, exceptions } = ALPHABETS[alphabet]!;
  const styled = [...formula.text].map((sign) => {
    if (exceptions && sign in exceptions) return exceptions[sign]!;
    if (/[A-Z]/.test(sign)) return String.fromCodePoint(capital + sign.charCodeAt(0) - 65);
    if (/[a-z]/.test(sign)) return String.fromCodePoint(small + sign.charCodeAt(0) - 97);
    if (/[0-9]/.test(sign) && digit) return String.fromCodePoint(digit + sign.charCodeAt(0) - 48);
    return sign;
  });
  return { kind: "upright", text: styled.join("") };
}
