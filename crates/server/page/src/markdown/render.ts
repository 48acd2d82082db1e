// Turns parsed Markdown into DOM nodes. What the model wrote only ever becomes text.

import { colour } from "../code/colour";
import { element } from "../dom";
import { renderFormula } from "../maths/render";
import type { Align, Block } from "./blocks";
import { parseInline, type Inline } from "./inline";

/** `growing` says that more text of this block will follow. */
export function renderBlock(block: Block, growing = false): HTMLElement {
  switch (block.kind) {
    case "heading":
      // The page has a heading of its own, and each message one below it.
      return withInline(element(`h${Math.min(block.level + 2, 6)}` as "h3", { class: `level-${block.level}` }), block.text, growing);
    case "paragraph":
      return withInline(element("p"), block.text, growing);
    case "code":
      return renderCode(block.language, block.text);
    case "formula": {
      const shown = block.closed ? renderFormula(block.text, true) : element("code", { class: "formula" }, block.text.trim());
      return element("div", { class: "formula-block", tabindex: 0, role: "region", "aria-label": "Formula" }, shown);
    }
    case "quote":
      return element("blockquote", {}, ...block.blocks.map((child, index) => renderBlock(child, growing && index === block.blocks.length - 1)));
    case "list":
      return renderList(block, growing);
    case "table":
      return renderTable(block);
    case "rule":
      return element("hr");
  }
}

/** A code block with its language and a button that copies it; the click is handled by the thread. */
function renderCode(language: string, text: string): HTMLElement {
  const head = element(
    "figcaption",
    {},
    element("span", { class: "language" }, language || "text"),
    element("button", { type: "button", class: "text-button", "data-action": "copy-code" }, "Copy"),
  );
  const label = language ? `Code, ${language}` : "Code";
  const code = element("code");
  colour(code, language, text);
  return element("figure", { class: "code" }, head, element("pre", { tabindex: 0, role: "region", "aria-label": label }, code));
}

/** Gives a code block on the page a longer text; false where `shown` is another block. */
export function updateCode(shown: HTMLElement, before: Block, after: Block): boolean {
  if (before.kind !== "code" || after.kind !== "code" || before.language !== after.language) return false;
  colour(shown.querySelector("code")!, after.language, after.text);
  return true;
}

function renderList(block: Extract<Block, { kind: "list" }>, growing: boolean): HTMLElement {
  const list = block.start === null ? element("ul") : element("ol", { start: block.start === 1 ? null : block.start });
  for (const blocks of block.items) {
    const item = element("li");
    const first = blocks[0];
    const task = first?.kind === "paragraph" ? /^\[([ xX])\]\s+/.exec(first.text) : null;
    if (task) {
      item.className = "task";
      item.append(element("input", { type: "checkbox", disabled: true, checked: task[1] !== " ", "aria-label": task[1] === " " ? "open" : "done" }));
    }
    blocks.forEach((child, index) => {
      const shown = task && index === 0 && child.kind === "paragraph" ? { ...child, text: child.text.slice(task[0].length) } : child;
      const grows = growing && blocks === block.items.at(-1) && index === blocks.length - 1;
      if (block.tight && shown.kind === "paragraph") withInline(item, shown.text, grows);
      else item.append(renderBlock(shown, grows));
    });
    list.append(item);
  }
  return list;
}

function renderTable(block: Extract<Block, { kind: "table" }>): HTMLElement {
  const row = (cells: string[], name: "th" | "td"): HTMLElement =>
    element("tr", {}, ...cells.map((text, index) => withInline(element(name, { class: alignClass(block.align[index]), scope: name === "th" ? "col" : null }), text)));
  const body = block.rows.length > 0 ? element("tbody", {}, ...block.rows.map((cells) => row(cells, "td"))) : null;
  const table = element("table", {}, element("thead", {}, row(block.header, "th")), body);
  return element("div", { class: "table", tabindex: 0, role: "region", "aria-label": "Table" }, table);
}

function alignClass(align: Align | undefined): string | null {
  return align === "right" || align === "center" ? align : null;
}

function withInline<T extends HTMLElement>(parent: T, text: string, growing = false): T {
  appendInline(parent, parseInline(text, growing));
  return parent;
}

function appendInline(parent: HTMLElement, nodes: Inline[]): void {
  for (const node of nodes) {
    switch (node.kind) {
      case "text":
        parent.append(node.text);
        break;
      case "code":
        parent.append(element("code", {}, node.text));
        break;
      case "formula":
        parent.append(renderFormula(node.text, node.display));
        break;
      case "break":
        parent.append(element("br"));
        break;
      default:
        parent.append(renderSpan(node));
    }
  }
}

function renderSpan(node: Extract<Inline, { children: Inline[] }>): HTMLElement {
  const names = { strong: "strong", emphasis: "em", strike: "del" } as const;
  const span =
    node.kind === "link"
      ? element("a", { href: node.address, target: "_blank", rel: "noopener noreferrer", referrerpolicy: "no-referrer" })
      : element(names[node.kind]);
  appendInline(span, node.children);
  return span;
}
