// As much of the DOM as the Markdown renderer uses, and its serialisation for comparisons.

class FakeNode {
  parent = null;

  remove() {
    if (!this.parent) return;
    this.parent.children.splice(this.parent.children.indexOf(this), 1);
    this.parent = null;
  }

  replaceWith(node) {
    const { parent } = this;
    parent.children[parent.children.indexOf(this)] = node;
    node.parent = parent;
    this.parent = null;
  }
}

class FakeText extends FakeNode {
  constructor(text) {
    super();
    this.textContent = text;
  }
}

class FakeElement extends FakeNode {
  children = [];
  attributes = new Map();

  constructor(name) {
    super();
    this.name = name;
  }

  set className(value) {
    this.setAttribute("class", value);
  }

  setAttribute(name, value) {
    this.attributes.set(name, value);
  }

  append(...nodes) {
    for (const node of nodes) {
      const child = typeof node === "string" ? new FakeText(node) : node;
      child.remove();
      child.parent = this;
      this.children.push(child);
    }
  }

  get textContent() {
    return this.children.map((child) => child.textContent).join("");
  }

  set textContent(text) {
    this.children = [];
    this.append(text);
  }

  get childNodes() {
    return this.children;
  }

  get lastChild() {
    return this.children.at(-1) ?? null;
  }

  querySelector(name) {
    for (const child of this.children) {
      if (!(child instanceof FakeElement)) continue;
      const found = child.name === name ? child : child.querySelector(name);
      if (found) return found;
    }
    return null;
  }
}

export function installDocument() {
  const createElement = (name) => new FakeElement(name);
  globalThis.document = { createElement, createElementNS: (_, name) => createElement(name) };
}

const LAYOUT = new Set(["class", "tabindex", "role", "aria-label", "target", "rel", "referrerpolicy", "type", "data-action", "scope"]);

/** The node as HTML. `bare` leaves out what is the same for every node of its kind. */
export function html(node, bare = true) {
  if (node instanceof FakeText) return node.textContent.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
  const attributes = [...node.attributes].filter(([name, value]) => !bare || !LAYOUT.has(name) || (name === "class" && /right|center|task/.test(value)));
  const inner = node.children.map((child) => html(child, bare)).join("");
  return `<${node.name}${attributes.map(([name, value]) => ` ${name}="${value}"`).join("")}>${inner}</${node.name}>`;
}
