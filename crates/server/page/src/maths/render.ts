// Turns a parsed formula into MathML. A formula that is not understood is shown as its source.

import { element, mathml } from "../dom";
import { parseFormula, type Formula } from "./parse";

/** `display` says that the formula stands on lines of its own. */
export function renderFormula(source: string, display: boolean): Element {
  const formula = parseFormula(source);
  if (!formula) return element("code", { class: display ? "formula display" : "formula" }, source.trim());
  return mathml("math", { display: display ? "block" : "inline", alttext: source.trim() }, render(formula, display));
}

function render(formula: Formula, display: boolean): Element {
  const inner = (child: Formula): Element => render(child, display);
  switch (formula.kind) {
    case "identifier":
      return mathml("mi", {}, formula.text);
    case "upright":
      return mathml("mi", { mathvariant: "normal" }, formula.text);
    case "number":
      return mathml("mn", {}, formula.text);
    case "operator":
      return mathml("mo", {}, formula.text);
    case "text":
      return mathml("mtext", {}, formula.text.replace(/^\s|\s$/g, "\u00a0"));
    case "fence":
      return mathml("mo", { fence: "true", ...stretch(formula.size) }, formula.text);
    case "space":
      return mathml("mspace", { width: `${formula.width}em` });
    case "row":
      return mathml("mrow", {}, ...formula.children.map(inner));
    case "fraction":
      return mathml("mfrac", formula.line ? {} : { linethickness: "0" }, ...formula.children.map(inner));
    case "root":
      return renderRoot(formula, display);
    case "scripts":
      return renderScripts(formula, display);
    case "accent": {
      const sign = mathml("mo", { stretchy: formula.sign.length === 1 ? null : "false" }, formula.sign);
      return mathml(formula.over ? "mover" : "munder", formula.over ? { accent: "true" } : { accentunder: "true" }, inner(formula.children[0]), sign);
    }
    case "box":
      return mathml("mrow", { class: "boxed" }, inner(formula.children[0]));
    case "table":
      return renderTable(formula, display);
  }
}

/** A size of null grows with what the fence encloses. */
function stretch(size: number | null): Record<string, string> {
  if (size === null) return { stretchy: "true" };
  if (size === 1) return { stretchy: "false" };
  return { stretchy: "true", minsize: `${size}em`, maxsize: `${size}em` };
}

/** Drawn by parts: without a mathematical font browsers leave out the sign of `msqrt`. */
function renderRoot({ children: [base, index] }: Extract<Formula, { kind: "root" }>, display: boolean): Element {
  const sign = mathml("mo", { stretchy: "true", class: "radical" }, "√");
  const above = index ? mathml("msup", {}, mathml("mrow"), render(index, display)) : null;
  return mathml("mrow", { class: "root" }, above, sign, mathml("mrow", { class: "radicand" }, render(base, display)));
}

function renderScripts({ limits, base, below, above }: Extract<Formula, { kind: "scripts" }>, display: boolean): Element {
  const around = limits && display;
  const name = below && above ? (around ? "munderover" : "msubsup") : below ? (around ? "munder" : "msub") : around ? "mover" : "msup";
  const parts = [base, below, above].filter((part) => part !== null);
  return mathml(name, {}, ...parts.map((part) => render(part, display)));
}

function renderTable({ align, rows }: Extract<Formula, { kind: "table" }>, display: boolean): Element {
  const names = { l: "left", c: "center", r: "right" } as Record<string, string>;
  const cell = (formula: Formula, index: number): Element =>
    mathml("mtd", { class: names[align[index % align.length]!]! }, render(formula, display));
  return mathml("mtable", { class: align === "rl" ? "equations" : null }, ...rows.map((row) => mathml("mtr", {}, ...row.map(cell))));
}
