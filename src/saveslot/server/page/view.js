// @ts-check
/**
 * The view layer: signals, and tagged templates that update only what changed.
 *
 * html`<p class=${c}>${text}</p>` is a value; `render(value, element)` makes it the element's content. Rendering the
 * same template again touches only the parts whose values differ, and a part that gets the identical template value
 * is skipped whole: that is what `memo` is for. Values become text and attributes, never markup.
 *
 * In a tag: `name=${v}` sets an attribute (null, undefined and false remove it, true sets it empty), `.name=${v}` a
 * property, `@name=${f}` a listener, `.style=${{left: "3px"}}` properties of the style (the CSP forbids the attribute),
 * `ref=${f}` calls f once with the new element. Names are lower case.
 */

/** @typedef {{strings: TemplateStringsArray, values: unknown[], svg: boolean}} Template */
/** @typedef {{items: readonly any[], key: (item: any, index: number) => unknown, row: (item: any, index: number) => Template}} Each */

// --- signals ---------------------------------------------------------------------------------------------------------

/** @typedef {{run: () => void, sources: Set<Set<Effect>>}} Effect */
/** @type {Effect | null} */
let running = null;
/** @type {Set<Effect>} */
const waiting = new Set();

/** Run what waits for changed signals, now. */
export function flush() {
  for (const effect of waiting) {
    waiting.delete(effect);
    effect.run();
  }
}

/**
 * A value whose readers run again when it changes.
 * @template T
 * @param {T} initial
 * @returns {{value: T, peek: () => T}}
 */
export function signal(initial) {
  /** @type {Set<Effect>} */
  const readers = new Set();
  let current = initial;
  return {
    get value() {
      if (running) {
        readers.add(running);
        running.sources.add(readers);
      }
      return current;
    },
    set value(next) {
      if (Object.is(next, current)) return;
      current = next;
      if (!waiting.size && readers.size) queueMicrotask(flush);
      for (const reader of readers) waiting.add(reader);
    },
    peek: () => current,
  };
}

/**
 * Run `body` now, and again after any signal that it read has changed; the returned function ends that.
 * @param {() => void} body
 */
export function effect(body) {
  /** @type {Effect} */
  const self = {
    sources: new Set(),
    run() {
      forget(self);
      const outer = running;
      running = self;
      try {
        body();
      } finally {
        running = outer;
      }
    },
  };
  self.run();
  return () => {
    waiting.delete(self);
    forget(self);
  };
}

/** @param {Effect} effect */
function forget(effect) {
  for (const readers of effect.sources) readers.delete(effect);
  effect.sources.clear();
}

/**
 * Return the last result again while the arguments are the same.
 * @template {any[]} A
 * @template R
 * @param {(...args: A) => R} compute
 * @returns {(...args: A) => R}
 */
export function memo(compute) {
  /** @type {A | null} */
  let last = null;
  /** @type {R} */
  let result;
  return (...args) => {
    if (!last || last.length !== args.length || args.some((arg, i) => !Object.is(arg, /** @type {A} */ (last)[i]))) {
      result = compute(...args);
      last = args;
    }
    return result;
  };
}

// --- templates -------------------------------------------------------------------------------------------------------

/** @param {TemplateStringsArray} strings @param {unknown[]} values @returns {Template} */
export const html = (strings, ...values) => ({ strings, values, svg: false });
/** @param {TemplateStringsArray} strings @param {unknown[]} values @returns {Template} */
export const svg = (strings, ...values) => ({ strings, values, svg: true });

/**
 * A list whose rows keep their elements as long as their keys stay.
 * @template T
 * @param {readonly T[]} items
 * @param {(item: T, index: number) => unknown} key
 * @param {(item: T, index: number) => Template} row
 * @returns {Each}
 */
export const each = (items, key, row) => ({ items, key, row });

/** @param {unknown} value @param {Element} element */
export function render(value, element) {
  const holder = /** @type {any} */ (element);
  holder.viewSlot ??= new Slot(element.appendChild(document.createComment("")));
  holder.viewSlot.set(value);
}

// A hole in an attribute reads "§3§" in the parsed template, a hole between tags is a comment "§3".
const HOLE = /§(\d+)§/;
/** @type {WeakMap<TemplateStringsArray, {content: DocumentFragment, holes: Hole[]}>} */
const compiled = new WeakMap();
/** @typedef {{path: number[], first: number, name: string, texts: string[]}} Hole */

/** @param {Template} template */
function compile({ strings, svg: drawing }) {
  const known = compiled.get(strings);
  if (known) return known;
  let source = strings[0];
  for (let i = 1; i < strings.length; i++) {
    const inTag = source.lastIndexOf("<") > source.lastIndexOf(">");
    const hole = inTag ? `§${i - 1}§` : `<!--§${i - 1}-->`;
    source += (inTag && source.endsWith("=") ? `"${hole}"` : hole) + strings[i];
  }
  const parsed = document.createElement("template");
  parsed.innerHTML = drawing ? `<svg>${source}</svg>` : source;
  const { content } = parsed;
  if (drawing) content.replaceChildren(.../** @type {Element} */ (content.firstChild).childNodes);
  /** @type {Hole[]} */
  const holes = [];
  collect(content, [], holes);
  const result = { content, holes };
  compiled.set(strings, result);
  return result;
}

/** @param {Node} parent @param {number[]} path @param {Hole[]} holes */
function collect(parent, path, holes) {
  parent.childNodes.forEach((node, index) => {
    const here = [...path, index];
    if (node instanceof Comment && node.data.startsWith("§")) {
      holes.push({ path: here, first: Number(node.data.slice(1)), name: "", texts: [] });
    } else if (node instanceof Element) {
      for (const name of node.getAttributeNames()) {
        const texts = /** @type {string} */ (node.getAttribute(name)).split(HOLE);
        if (texts.length === 1) continue;
        node.removeAttribute(name);
        holes.push({ path: here, first: Number(texts[1]), name, texts: texts.filter((_, i) => i % 2 === 0) });
      }
      collect(node, here, holes);
    }
  });
}

/** One copy of a template in the document. */
class Instance {
  /** @param {Template} template */
  constructor(template) {
    const { content, holes } = compile(template);
    this.strings = template.strings;
    this.fragment = /** @type {DocumentFragment} */ (document.importNode(content, true));
    this.nodes = [...this.fragment.childNodes];
    const targets = holes.map(({ path }) => path.reduce((node, i) => node.childNodes[i], /** @type {Node} */ (this.fragment)));
    this.parts = holes.map((hole, i) =>
      hole.name ? new Attribute(/** @type {Element} */ (targets[i]), hole) : new Slot(/** @type {Comment} */ (targets[i]), hole.first),
    );
    this.update(template.values);
  }

  /** @param {unknown[]} values */
  update(values) {
    for (const part of this.parts) part.take(values);
  }
}

class Attribute {
  /** @param {Element} element @param {Hole} hole */
  constructor(element, { name, first, texts }) {
    this.element = /** @type {any} */ (element);
    this.name = name;
    this.first = first;
    this.texts = texts;
    /** @type {unknown} */
    this.old = undefined;
    if (name[0] === "@") element.addEventListener(name.slice(1), (event) => this.old && /** @type {Function} */ (this.old)(event));
  }

  /** @param {unknown[]} values */
  take(values) {
    const { name, texts, first, element } = this;
    let value = values[first];
    if (texts.length > 2 || texts[0] || texts[1]) value = texts.reduce((text, next, i) => `${text}${values[first + i - 1] ?? ""}${next}`);
    if (Object.is(value, this.old) && name !== ".value" && name !== ".checked") return;
    const before = this.old;
    this.old = value;
    if (name[0] === "@") return;
    if (name === "ref") {
      if (!before) queueMicrotask(() => /** @type {Function} */ (value)(element));
    } else if (name === ".style") {
      for (const key in /** @type {object} */ (before ?? {})) if (!(key in /** @type {any} */ (value))) element.style.removeProperty(key);
      for (const [key, text] of Object.entries(/** @type {object} */ (value))) element.style.setProperty(key, text);
    } else if (name[0] === ".") {
      if (element[name.slice(1)] !== value) element[name.slice(1)] = value;
    } else if (value === null || value === undefined || value === false) element.removeAttribute(name);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
}

/** A place between tags: text, a template, a keyed list, or an array of any of these. Its content ends before `end`. */
class Slot {
  /** @param {Comment} end @param {number} first */
  constructor(end, first = 0) {
    this.end = end;
    this.first = first;
    /** @type {unknown} */
    this.old = undefined;
    /** @type {Text | null} */
    this.text = null;
    /** @type {Instance | null} */
    this.instance = null;
    /** @type {Map<unknown, Slot>} */
    this.rows = new Map();
  }

  /** @param {unknown[]} values */
  take(values) {
    this.set(values[this.first]);
  }

  /** @param {unknown} value */
  set(value) {
    if (Object.is(value, this.old)) return;
    this.old = value;
    const kind = /** @type {any} */ (value);
    if (kind === null || kind === undefined || kind === false || kind === "") this.clear();
    else if (kind.strings) this.setTemplate(kind);
    else if (Array.isArray(kind)) this.setRows(kind, (_, i) => i, (item) => item);
    else if (kind.items) this.setRows(kind.items, kind.key, kind.row);
    else this.setText(String(value));
  }

  /** @param {string} text */
  setText(text) {
    if (!this.text) {
      this.clear();
      this.text = document.createTextNode("");
      this.end.before(this.text);
    }
    this.text.data = text;
  }

  /** @param {Template} template */
  setTemplate(template) {
    if (this.instance?.strings === template.strings) return this.instance.update(template.values);
    this.clear();
    this.instance = new Instance(template);
    this.end.before(this.instance.fragment);
  }

  /** @param {readonly any[]} items @param {Each["key"]} key @param {(item: any, i: number) => unknown} row */
  setRows(items, key, row) {
    if (this.text || this.instance) this.clear();
    const gone = this.rows;
    /** @type {typeof gone} */
    const rows = new Map();
    const keys = items.map(key);
    for (const k of keys) {
      const kept = gone.get(k);
      if (kept) rows.set(k, kept);
      gone.delete(k);
    }
    for (const slot of gone.values()) slot.remove();
    // From the last row to the first: each stands before the one after it.
    /** @type {ChildNode} */
    let next = this.end;
    for (let i = items.length - 1; i >= 0; i--) {
      let kept = rows.get(keys[i]);
      if (!kept) {
        const end = document.createComment("");
        next.before(end);
        kept = new Slot(end);
        rows.set(keys[i], kept);
      } else if (kept.end.nextSibling !== next) next.before(...kept.nodes());
      kept.set(row(items[i], i));
      next = kept.nodes()[0];
    }
    this.rows = new Map(keys.map((k) => [k, /** @type {Slot} */ (rows.get(k))]));
  }

  /** @returns {ChildNode[]} its content and its end, in order */
  nodes() {
    const nodes = [];
    if (this.text) nodes.push(this.text);
    if (this.instance) for (const node of this.instance.nodes) nodes.push(...this.expand(node));
    for (const slot of this.rows.values()) nodes.push(...slot.nodes());
    return [...nodes, this.end];
  }

  /** @param {ChildNode} node @returns {ChildNode[]} a hole at the top of a template stands for its content */
  expand(node) {
    const hole = this.instance?.parts.find((part) => part instanceof Slot && part.end === node);
    return hole ? /** @type {Slot} */ (hole).nodes() : [node];
  }

  clear() {
    for (const node of this.nodes().slice(0, -1)) node.remove();
    this.text = this.instance = null;
    this.rows = new Map();
  }

  remove() {
    this.clear();
    this.end.remove();
  }
}
