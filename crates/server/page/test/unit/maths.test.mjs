import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./bundle.mjs";
import { html, installDocument } from "./document.mjs";

installDocument();
const { renderFormula } = await load("maths/render.ts");

/** The MathML inside of the formula's frame. */
function mathml(source, display = true) {
  const node = renderFormula(source, display);
  return node.name === "math" ? node.children.map((child) => html(child)).join("") : null;
}

const CASES = {
  "a+b=3.14": "<mrow><mi>a</mi><mo>+</mo><mi>b</mi><mo>=</mo><mn>3.14</mn></mrow>",
  "x^23": "<mrow><msup><mi>x</mi><mn>2</mn></msup><mn>3</mn></mrow>",
  "f''(x)": '<mrow><msup><mi>f</mi><mo>′′</mo></msup><mo fence="true" stretchy="false">(</mo><mi>x</mi><mo fence="true" stretchy="false">)</mo></mrow>',
  "\\frac12": "<mfrac><mn>1</mn><mn>2</mn></mfrac>",
  "\\sqrt[3]{x}": '<mrow><msup><mrow></mrow><mn>3</mn></msup><mo stretchy="true">√</mo><mrow><mi>x</mi></mrow></mrow>',
  "\\sum_{i=1}^n i": "<mrow><munderover><mo>∑</mo><mrow><mi>i</mi><mo>=</mo><mn>1</mn></mrow><mi>n</mi></munderover><mi>i</mi></mrow>",
  "\\int_0^1": "<msubsup><mo>∫</mo><mn>0</mn><mn>1</mn></msubsup>",
  "\\mathbb{R}^n": '<msup><mi mathvariant="normal">ℝ</mi><mi>n</mi></msup>',
  "\\mathbf{v}": '<mi mathvariant="normal">𝐯</mi>',
  "\\mathrm{kg}": '<mrow><mi mathvariant="normal">kg</mi></mrow>',
  "\\sin x": '<mrow><mi mathvariant="normal">sin</mi><mi>x</mi></mrow>',
  "\\text{if } x": "<mrow><mtext>if\u00a0</mtext><mi>x</mi></mrow>",
  "\\left( a \\right.": '<mrow><mo fence="true" stretchy="true">(</mo><mi>a</mi><mo fence="true" stretchy="true"></mo></mrow>',
  "\\hat{x}": '<mover accent="true"><mi>x</mi><mo>^</mo></mover>',
  "\\begin{cases} 1 & a \\\\ 0 & b \\end{cases}":
    '<mrow><mo fence="true" stretchy="true">{</mo><mtable><mtr><mtd><mn>1</mn></mtd><mtd><mi>a</mi></mtd></mtr><mtr><mtd><mn>0</mn></mtd><mtd><mi>b</mi></mtd></mtr></mtable><mo fence="true" stretchy="true"></mo></mrow>',
  "a &= b \\\\ &= c": null,
  "\\not= \\neq": "<mrow><mo>≠</mo><mo>≠</mo></mrow>",
};

for (const [source, expected] of Object.entries(CASES)) {
  test(source, () => {
    const found = mathml(source);
    if (expected !== null) return assert.equal(found, expected);
    assert.match(found, /^<mtable><mtr>.*<\/mtable>$/s);
  });
}

test("limits stand beside the sign inside a line", () => {
  assert.equal(mathml("\\lim_x", false), '<msub><mi mathvariant="normal">lim</mi><mi>x</mi></msub>');
});

test("what is not understood is shown as its source", () => {
  const sources = ["\\unknown", "{a", "a}", "\\frac{1}", "x^", "\\left(", "\\begin{foo}\\end{foo}", "\\begin{matrix}a", "a_b_c", "\\constructor", "\\toString", "\\begin{__proto__}x\\end{__proto__}", "#"];
  for (const source of sources) {
    const node = renderFormula(source, true);
    assert.equal(node.name, "code", source);
    assert.equal(node.textContent, source.trim());
  }
});

test("deep and long formulas end", () => {
  for (const unit of ["{", "\\hat", "\\frac", "x^", "\\left(", "\\sqrt{", "\\begin{matrix}"]) {
    assert.equal(mathml(unit.repeat(Math.floor(9000 / unit.length))), null, unit);
  }
  assert.equal(mathml("x".repeat(20_000)), null);
});
