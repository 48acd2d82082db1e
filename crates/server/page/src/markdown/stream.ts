// Renders Markdown that is still being written.
//
// Blocks that whole lines have closed are rendered once and stay as they are; only what follows is
// parsed again and replaced. The last line may still change its meaning ("-" becomes a list, a rule
// or a word), so nothing that depends on it is kept.

import { parseBlocks, type Block } from "./blocks";
import { renderBlock, updateCode } from "./render";

export class MarkdownStream {
  private text = "";
  /** Where in `text` the first block begins that is not final. */
  private open = 0;
  /** The blocks on the page that are not final, with what they were made from. */
  private tail: { block: Block; source: string; growing: boolean; node: HTMLElement }[] = [];

  /** `onClosed` is called once with each block that is final, in order. */
  constructor(
    private readonly parent: HTMLElement,
    private readonly onClosed: (node: HTMLElement) => void = () => {},
  ) {}

  /** Shows `text`, which continues what was shown before. */
  update(text: string): void {
    this.text = text;
    this.replaceTail(true);
    const complete = parseBlocks(linesOf(this.text.slice(this.open, this.text.lastIndexOf("\n") + 1)));
    const closed = complete.length - 1;
    if (closed < 1) return;
    for (const { node } of this.tail.splice(0, closed)) this.onClosed(node);
    this.open = offsetOfLine(this.text, this.open, complete[closed]!.line);
  }

  /** Reports the blocks that the end of the text closes. */
  finish(): void {
    this.replaceTail(false);
    for (const { node } of this.tail.splice(0)) this.onClosed(node);
    this.open = this.text.length;
  }

  /** Renders what is not final; `more` says whether text will follow. */
  private replaceTail(more: boolean): void {
    const lines = linesOf(this.text.slice(this.open));
    const placed = parseBlocks(lines);
    const next: typeof this.tail = [];
    placed.forEach(({ block, line }, index) => {
      const source = lines.slice(line, placed[index + 1]?.line).join("\n");
      const growing = more && index === placed.length - 1;
      const shown = this.tail[index];
      if (shown && ((shown.source === source && shown.growing === growing) || updateCode(shown.node, shown.block, block))) {
        next.push({ block, source, growing, node: shown.node });
        return;
      }
      const node = renderBlock(block, growing);
      if (shown) shown.node.replaceWith(node);
      else this.parent.append(node);
      next.push({ block, source, growing, node });
    });
    for (const { node } of this.tail.slice(placed.length)) node.remove();
    this.tail = next;
  }
}

function linesOf(text: string): string[] {
  return text.split("\n").map((line) => (line.endsWith("\r") ? line.slice(0, -1) : line));
}

function offsetOfLine(text: string, from: number, line: number): number {
  let at = from;
  for (let index = 0; index < line; index += 1) at = text.indexOf("\n", at) + 1;
  return at;
}
