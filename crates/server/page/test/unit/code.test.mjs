import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./bundle.mjs";
import { html, installDocument } from "./document.mjs";

installDocument();
const { colour } = await load("code/colour.ts");

function shown(language, text) {
  const code = document.createElement("code");
  colour(code, language, text);
  assert.equal(code.textContent, text);
  const span = (node) => (node.attributes ? `[${node.attributes.get("class").slice(5)} ${node.textContent}]` : node.textContent);
  return code.children.map(span).join("");
}

const CASES = {
  python: ["def f(x): # note\n  return 'a' + 1.5", "[keyword def] [name f](x): [comment # note]\n  [keyword return] [string 'a'] + [number 1.5]"],
  rust: ["let x: &'a str = \"b\\\"c\"; /* d\n */ x.return_it(0xff)", "[keyword let] x: &'a [keyword str] = [string \"b\\\"c\"]; [comment /* d\n */] x.[name return_it]([number 0xff])"],
  bash: ["echo \"$A\" ${#B} # c", "[keyword echo] [string \"$A\"] [name ${#B}] [comment # c]"],
  json: ['{"a": "b", "c": true}', '{[name "a"]: [string "b"], [name "c"]: [keyword true]}'],
  SQL: ["SELECT a FROM b -- c", "[keyword SELECT] a [keyword FROM] b [comment -- c]"],
  js: ["`a\nb` // c", "[string `a\nb`] [comment // c]"],
  python3: ['"""a\nb', '[string """a\nb]'],
  unknown: ["if x # y", "if x # y"],
  constructor: ["if", "if"],
};

for (const [language, [text, expected]] of Object.entries(CASES)) {
  test(`colours of ${language}`, () => assert.equal(shown(language, text), expected));
}

test("code that grows ends in the same colours, and keeps the pieces that did not change", () => {
  for (const [language, [text]] of Object.entries(CASES)) {
    const code = document.createElement("code");
    let first = null;
    for (let end = 0; end <= text.length; end += 1) {
      colour(code, language, text.slice(0, end));
      if (end === text.length - 1) first = code.children[0];
    }
    const whole = document.createElement("code");
    colour(whole, language, text);
    assert.equal(html(code, false), html(whole, false));
    if (code.children.length > 2) assert.equal(code.children[0], first);
  }
});

test("long code takes no long time", () => {
  const text = '"'.repeat(20_000) + "/*".repeat(10_000);
  const code = document.createElement("code");
  colour(code, "js", text);
  assert.equal(code.textContent, text);
});
