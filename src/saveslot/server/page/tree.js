// @ts-check
/** The state as a tree, with what changed marked in place; what is as before is folded. */
import { count, many, plain, pointerPart, size } from "./format.js";
import { brief, folded, isContainer, leaf, messageText } from "./values.js";
import { each, html } from "./view.js";

/** @typedef {import("./operations.js").Operation} Operation */
/** @typedef {{path: string, depth: number, label: string, value: any, sign: "" | "+" | "−" | "~", old?: any, closed: boolean | null, same?: [number, number], heading: boolean}} TreeRow `closed` is null for a leaf */

// Children of one container that are listed at once, and those that changed wherever they are; the rest waits for a click.
const MOST = 200;

/**
 * Rows of a state; pure.
 * @param {any} state
 * @param {readonly Operation[]} operations that led to it
 * @param {{fold: boolean, toggled: ReadonlySet<string>, opened?: ReadonlySet<string>, rests?: ReadonlyMap<string, number>}} view
 *   `toggled`: containers that stand otherwise than by default; `opened`: those that were read on opening, and of which
 *   `rests` so many children were not read yet
 * @returns {TreeRow[]}
 */
export function treeRows(state, operations, { fold, toggled, opened = new Set(), rests = new Map() }) {
  const changes = new Map(operations.filter(({ op }) => op !== "remove").map((op) => [op.path, op]));
  /** @type {Map<string, Operation[]>} */
  const removed = new Map();
  const touched = new Set();
  for (const op of operations) {
    for (let path = op.path; path; path = path.slice(0, path.lastIndexOf("/"))) touched.add(path);
    if (op.op === "remove") {
      const parent = op.path.slice(0, op.path.lastIndexOf("/"));
      removed.set(parent, [...(removed.get(parent) ?? []), op]);
    }
  }
  /** @type {TreeRow[]} */
  const rows = [];
  /** @param {any} value @param {string} path @param {number} depth @param {string} sign */
  const inside = (value, path, depth, sign) => {
    const list = Array.isArray(value);
    const keys = Object.keys(value);
    const folding = fold && operations.length > 0 && list && !sign && touched.has(path) && !toggled.has(`${path}/…`);
    const most = toggled.has(`${path}…`) ? Infinity : MOST;
    let [run, beyond, hidden] = [-1, 0, rests.get(path) ?? 0];
    const close = (/** @type {number} */ next) => {
      if (run >= 0) rows.push({ path: `${path}/${run}…`, depth, label: "", value: null, sign: "", closed: null, same: [run, next - 1], heading: false });
      run = -1;
    };
    keys.forEach((key, i) => {
      const child = `${path}/${pointerPart(key)}`;
      const changed = touched.has(child);
      if (i >= most && (beyond >= most || !(changed || folding))) {
        close(i);
        hidden++;
      } else if (folding && !changed && i < keys.length - 1) {
        if (run < 0) run = i;
      } else {
        close(i);
        row(value[key], child, key, depth, sign);
        if (i >= most) beyond++;
      }
    });
    close(keys.length);
    if (hidden) rows.push({ path: `${path}…`, depth, label: `… ${count(hidden)} more`, value: null, sign: "", closed: true, heading: true });
    for (const op of removed.get(path) ?? []) {
      rows.push({ path: `${op.path} gone`, depth, label: op.path.slice(path.length + 1), value: op.old, sign: "−", closed: null, heading: false });
    }
  };
  /** @param {any} value @param {string} path @param {string} key @param {number} depth @param {string} outer */
  const row = (value, path, key, depth, outer) => {
    const op = changes.get(path);
    const inner = folded(value) && touched.has(path) ? "~" : "";
    const sign = /** @type {TreeRow["sign"]} */ (outer || (op ? (op.op === "replace" ? "~" : "+") : inner));
    const whole = op?.op === "replace" && isContainer(value);
    const container = isContainer(value) && typeof value.role !== "string";
    const openByDefault = container && !folded(value) && (opened.has(path) || !fold || touched.has(path) || sign === "+" || !operations.length) && Object.keys(value).length > 0;
    const closed = container ? toggled.has(path) === openByDefault : null;
    rows.push({ path, depth, label: key, value, sign, old: op?.op === "replace" ? op.old : undefined, closed, heading: container });
    if (container && !closed && !folded(value)) inside(value, path, depth + 1, sign === "+" || whole ? "+" : "");
  };
  inside(state, "", 0, "");
  return rows;
}

/** @param {TreeRow} row */
function content({ value, old, closed, heading, sign }) {
  if (heading && value === null) return "";
  const lazy = isContainer(value) ? folded(value) : null;
  if (lazy) return html`<span class="soft">${many(lazy.size, lazy.kind === "list" ? "item" : "key")}, ${size(lazy.bytes)}</span>`;
  if (heading) {
    const length = Object.keys(value).length;
    return html`<span class="soft">${many(length, Array.isArray(value) ? "item" : "key")}${closed && length ? ` ${brief(value, 120)}` : ""}</span>`;
  }
  if (value && typeof value === "object" && typeof value.role === "string") return html`<span class="soft">${plain(value.role)}${value.name ? ` ${plain(value.name)}` : ""}</span> ${leaf(messageText(value))}`;
  const now = isContainer(value) ? brief(value) : leaf(value);
  if (old !== undefined) return html`<del>${isContainer(old) ? brief(old) : leaf(old)}</del> → <ins>${now}</ins>`;
  return sign === "−" ? html`<del>${now}</del>` : now;
}

/** @param {readonly TreeRow[]} rows @param {(path: string) => void} ontoggle */
export function tree(rows, ontoggle) {
  return html`<div class="tree mono">${each(rows, (row) => row.path, (row) => {
    const look = { "": "", "+": " added", "−": " removed", "~": " changed" }[row.sign];
    if (row.same) {
      const [from, to] = row.same;
      return html`<button class="tree-row same" .style=${{ "--depth": String(row.depth) }} @click=${() => ontoggle(`${row.path.slice(0, row.path.lastIndexOf("/"))}/…`)}><span class="sign"></span><span class="tree-text">⋯ ${from === to ? from : `${from} to ${to}`} as before</span></button>`;
    }
    return html`<div class=${`tree-row${look}`} .style=${{ "--depth": String(row.depth) }}><span class="sign">${row.sign}</span>
      ${row.closed === null
        ? html`<span class="tree-text"><span class="key">${plain(row.label)}</span> ${content(row)}</span>`
        : html`<button class="tree-text" aria-expanded=${String(!row.closed)} @click=${() => ontoggle(row.path)}><span class="twist" aria-hidden="true">${row.closed ? "▸" : "▾"}</span><span class="key">${plain(row.label)}</span> ${content(row)}</button>`}
    </div>`;
  })}</div>`;
}
