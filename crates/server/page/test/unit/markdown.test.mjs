import assert from "node:assert/strict";
import { test } from "node:test";
import { ANSWERS } from "../../dev/answers.mjs";
import { load } from "./bundle.mjs";
import { html, installDocument } from "./document.mjs";

installDocument();
const { MarkdownStream } = await load("markdown/stream.ts");

function render(text) {
  const root = document.createElement("div");
  const stream = new MarkdownStream(root);
  stream.update(text);
  stream.finish();
  return root.children.map((child) => html(child)).join("");
}

const CASES = {
  "paragraphs and line ends": ["one\ntwo\n\nthree", "<p>one<br></br>two</p><p>three</p>"],
  headings: ["# One #\n## Two\n####### seven\n#tag", "<h3>One</h3><h4>Two</h4><p>####### seven<br></br>#tag</p>"],
  emphasis: ["**bold** *it* ***both*** __b__ _i_ ~~s~~", "<p><strong>bold</strong> <em>it</em> <em><strong>both</strong></em> <strong>b</strong> <em>i</em> <del>s</del></p>"],
  "emphasis inside emphasis": ["**a *b* c**", "<p><strong>a <em>b</em> c</strong></p>"],
  "signs that are no emphasis": ["2 * 3 * 4, snake_case_name, a*", "<p>2 * 3 * 4, snake_case_name, a*</p>"],
  "emphasis that is not closed": ["**open and *half", "<p>**open and *half</p>"],
  "code spans": ["`a*b*` and ``x`y`` and ` open", "<p><code>a*b*</code> and <code>x`y</code> and ` open</p>"],
  escapes: ["\\*no\\* &lt;b&gt; \\d", "<p>*no* &lt;b> \\d</p>"],
  links: ["[a](https://x.org/b_c) <https://x.org/> https://x.org/d.", '<p><a href="https://x.org/b_c">a</a> <a href="https://x.org/">https://x.org/</a> <a href="https://x.org/d">https://x.org/d</a>.</p>'],
  "links with brackets": ["[a](https://x.org/b_(c)) (https://x.org/d)", '<p><a href="https://x.org/b_(c)">a</a> (<a href="https://x.org/d">https://x.org/d</a>)</p>'],
  "bold link": ["**[a](https://x.org/)**", '<p><strong><a href="https://x.org/">a</a></strong></p>'],
  "addresses that are no links": ["[a](javascript:alert(1)) [b](/etc) [c](data:text/html,x)", "<p>[a](javascript:alert(1)) [b](/etc) [c](data:text/html,x)</p>"],
  images: ["![alt](https://x.org/i.png)", '<p><a href="https://x.org/i.png">alt</a></p>'],
  html: ["<b>x</b><br>y", "<p>&lt;b>x&lt;/b><br></br>y</p>"],
  lists: ["- a\n- b\n  - c\n    - d\n- e", "<ul><li>a</li><li>b<ul><li>c<ul><li>d</li></ul></li></ul></li><li>e</li></ul>"],
  "bullets below a number, indented by two": ["1. a\n  - b\n2. c", "<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol>"],
  "list with another start": ["3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'],
  "loose list": ["- a\n\n- b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>"],
  "list after a paragraph": ["x:\n- a\n1900 was\n\n5. y", '<p>x:</p><ul><li>a<br></br>1900 was</li></ul><ol start="5"><li>y</li></ol>'],
  "code in a list": ["1. a\n   ```js\n   x\n     y\n   ```\n2. b", "<ol><li>a<figure><figcaption><span>js</span><button>Copy</button></figcaption><pre><code>x\n  y</code></pre></figure></li><li>b</li></ol>"],
  tasks: ["- [x] a\n- [ ] b", '<ul><li class="task"><input disabled="" checked=""></input>a</li><li class="task"><input disabled=""></input>b</li></ul>'],
  "rule or list": ["- a\n***\n- - -\n- b", "<ul><li>a</li></ul><hr></hr><hr></hr><ul><li>b</li></ul>"],
  code: ["```rust x\na < b\n\n# c\n```\nd", "<figure><figcaption><span>rust</span><button>Copy</button></figcaption><pre><code>a &lt; b\n\n# c</code></pre></figure><p>d</p>"],
  "code that is not closed": ["~~~\na\n```", "<figure><figcaption><span>text</span><button>Copy</button></figcaption><pre><code>a\n```</code></pre></figure>"],
  quotes: ["> a\nb\n> > c\n\nd", "<blockquote><p>a<br></br>b</p><blockquote><p>c</p></blockquote></blockquote><p>d</p>"],
  table: ["a | b\n:--|--:\n1 | `x\\|y` | z\n2\n\nc", '<div><table><thead><tr><th>a</th><th class="right">b</th></tr></thead><tbody><tr><td>1</td><td class="right"><code>x|y</code></td></tr><tr><td>2</td><td class="right"></td></tr></tbody></table></div><p>c</p>'],
  "table below a paragraph": ["x\n| a |\n|---|\n| 1 |", "<p>x</p><div><table><thead><tr><th>a</th></tr></thead><tbody><tr><td>1</td></tr></tbody></table></div>"],
  "a formula in a line": ["where \\(x_1^2\\) and $\\alpha$", "<p>where <math display=\"inline\" alttext=\"x_1^2\"><msubsup><mi>x</mi><mn>1</mn><mn>2</mn></msubsup></math> and <math display=\"inline\" alttext=\"\\alpha\"><mi>α</mi></math></p>"],
  "prices are no formulas": ["$5 and $10, US$3-$4", "<p>$5 and $10, US$3-$4</p>"],
  "signs of a formula that has no end": ["\\(a and $$b", "<p>\\(a and $$b</p>"],
  "a formula on lines of its own": ["so\n\\[\n- a\n+ b\n\\]\nthen", "<p>so</p><div><math display=\"block\" alttext=\"- a\n+ b\"><mrow><mo>−</mo><mi>a</mi><mo>+</mo><mi>b</mi></mrow></math></div><p>then</p>"],
  "a formula that a blank line ends": ["\\[\n- a\n\n\\]", "<p>\\[</p><ul><li>a</li></ul><p>\\]</p>"],
  "a formula that is not understood": ["$$\\frobnicate x$$", "<div><code>\\frobnicate x</code></div>"],
  "signs of formulas inside code": ["`$a$ \\(b\\)`", "<p><code>$a$ \\(b\\)</code></p>"],
  "carriage returns": ["# a\r\n\r\n- b\r\n- c\r\n", "<h3>a</h3><ul><li>b</li><li>c</li></ul>"],
};

for (const [name, [text, expected]] of Object.entries(CASES)) {
  test(name, () => assert.equal(render(text), expected));
}

const TEXTS = [...Object.values(CASES).map(([text]) => text), ANSWERS.markdown.answer, ANSWERS.hostile.answer];

test("a stream that is cut anywhere ends in the same DOM", () => {
  for (const text of TEXTS) {
    const whole = render(text);
    for (let cut = 0; cut <= text.length; cut += 1) {
      const root = document.createElement("div");
      const stream = new MarkdownStream(root);
      stream.update(text.slice(0, cut));
      stream.update(text);
      stream.finish();
      assert.equal(root.children.map((child) => html(child)).join(""), whole, `cut at ${cut} of ${JSON.stringify(text)}`);
    }
  }
});

test("a stream of single characters ends in the same DOM and closes each block once", () => {
  for (const text of TEXTS) {
    const root = document.createElement("div");
    const closed = [];
    const stream = new MarkdownStream(root, (node) => closed.push(node));
    for (let end = 1; end <= text.length; end += 1) stream.update(text.slice(0, end));
    stream.finish();
    assert.equal(root.children.map((child) => html(child)).join(""), render(text));
    assert.ok(closed.length === root.children.length && closed.every((node, index) => node === root.children[index]), text);
  }
});

test("mixtures of lines end in the same DOM however they are cut", () => {
  const lines = ["a", "- b", "  - c", "1. d", "> e", "```", "| f | g |", "|---|---|", "", "", "# h", "---", "    i", "* j **k", "~~~", "   ```"];
  let seed = 7;
  const random = (limit) => (seed = (seed * 48271) % 2147483647) % limit;
  for (let round = 0; round < 400; round += 1) {
    const text = Array.from({ length: 3 + random(12) }, () => lines[random(lines.length)]).join("\n");
    const root = document.createElement("div");
    const stream = new MarkdownStream(root);
    for (let end = random(4); end < text.length; end += 1 + random(5)) stream.update(text.slice(0, end));
    stream.update(text);
    stream.finish();
    assert.equal(root.children.map((child) => html(child)).join(""), render(text), JSON.stringify(text));
  }
});

test("blocks that are closed stay the same nodes", () => {
  const root = document.createElement("div");
  const stream = new MarkdownStream(root);
  stream.update("first\n\nsecond\n\nthi");
  const [first, second] = root.children;
  stream.update("first\n\nsecond\n\nthird\n\n```\ncode");
  const code = root.children[3];
  stream.update("first\n\nsecond\n\nthird\n\n```\ncode goes on");
  assert.ok(root.children[0] === first);
  assert.ok(root.children[1] === second);
  assert.ok(root.children[3] === code);
  assert.match(code.textContent, /code goes on/);
});

test("emphasis and code that are not closed yet are shown as if they were", () => {
  const shown = (text) => {
    const root = document.createElement("div");
    new MarkdownStream(root).update(text);
    return root.children.map((child) => html(child)).join("");
  };
  assert.equal(shown("a **bol"), "<p>a <strong>bol</strong></p>");
  assert.equal(shown("a **bold*"), "<p>a <strong>bold</strong></p>");
  assert.equal(shown("- x\n- **a *b"), "<ul><li>x</li><li><strong>a <em>b</em></strong></li></ul>");
  assert.equal(shown("# a `co"), "<h3>a <code>co</code></h3>");
  assert.equal(shown("**a\n\nb"), "<p>**a</p><p>b</p>");
});

test("links open without giving the page away", () => {
  const root = document.createElement("div");
  new MarkdownStream(root).update("[a](https://x.org/)");
  assert.match(html(root, false), /target="_blank" rel="noopener noreferrer"/);
});

test("hostile nesting and repetition neither overflow the stack nor take long", () => {
  const begun = performance.now();
  for (const text of [">".repeat(5000), "- ".repeat(5000), "*a ".repeat(8000), "*a **b ".repeat(4000) + "b** a* ".repeat(4000), "[".repeat(20000), "[a](".repeat(5000), "`".repeat(100) + "a`b``".repeat(4000), "|".repeat(20000), `#${" ".repeat(50000)}x`, "> a\nb\n".repeat(3000), "<".repeat(20000), "_a_".repeat(5000)]) render(text);
  assert.ok(performance.now() - begun < 5000, `took ${performance.now() - begun} ms`);
});
