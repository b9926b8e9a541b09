// @ts-check
/** A diff as operations by path, with words in longer texts. */
import { count, dotted } from "./format.js";
import { isContainer, leaf, shown } from "./values.js";
import { each, html } from "./view.js";
import { wordDiff } from "./words.js";

/** @typedef {{op: "add" | "remove" | "replace" | "move" | "copy" | "test", path: string, from?: string, value?: any, old?: any}} Operation */

// Texts at least this long are compared word by word.
const LONG = 24;

/** @param {string} before @param {string} after @param {"old" | "new"} [without] what stands on the other side */
export const words = (before, after, without) => wordDiff(before, after).filter(({ kind }) => kind !== without).map(({ kind, text }) => (kind === "same" ? leaf(text) : kind === "old" ? html`<del>${leaf(text)}</del>` : html`<ins>${leaf(text)}</ins>`));

/** @param {Operation} operation */
export function change({ op, value, old, from }) {
  if (op === "add") return shown(value);
  if (op === "remove") return shown(old);
  if (op === "move" || op === "copy") return html`<span class="soft">from</span> ${dotted(from ?? "")}`;
  if (typeof value === "string" && typeof old === "string" && Math.max(value.length, old.length) >= LONG) return words(old, value);
  return html`<del>${isContainer(old) ? shown(old) : leaf(old)}</del> → <ins>${isContainer(value) ? shown(value) : leaf(value)}</ins>`;
}

export const SIGNS = /** @type {Record<string, [string, string, string]>} */ ({
  add: ["+", "added", "added"],
  remove: ["−", "removed", "removed"],
  replace: ["~", "changed", "changed"],
  move: ["↷", "changed", "moved"],
  copy: ["+", "added", "copied"],
});

const place = (/** @type {Operation} */ { path }) => Number(path.slice(path.lastIndexOf("/") + 1));
const list = (/** @type {Operation} */ { path }) => path.slice(0, path.lastIndexOf("/"));

/** As one reads them: what goes from a list is taken from its end, so its last item comes first. Pure. @param {readonly Operation[]} operations */
export function inReadingOrder(operations) {
  /** @type {Operation[][]} */
  const runs = [];
  for (const operation of operations) {
    const run = runs[runs.length - 1];
    const before = run?.[0];
    if (before && operation.op === "remove" && before.op === "remove" && list(operation) === list(before) && place(operation) === place(before) - 1) run.unshift(operation);
    else runs.push([operation]);
  }
  return runs.flat();
}

/** @param {readonly Operation[]} operations */
export const operationRows = (operations) => html`<ul class="operations">${each(inReadingOrder(operations), (op, i) => `${i} ${op.path}`, (op) => {
  const [sign, look, word] = SIGNS[op.op] ?? ["~", "changed", op.op];
  return html`<li><span class=${`sign-box ${look}`} title=${word}>${sign}</span><span class="path mono">${dotted(op.path)}</span><span class="value mono">${change(op)}</span></li>`;
})}</ul>`;

/** "+ 2 added  ~ 2 changed". @param {readonly Operation[]} operations */
export function summary(operations) {
  const [added, removed, changed] = [["add", "copy"], ["remove"], ["replace", "move"]].map((kinds) => operations.filter(({ op }) => kinds.includes(op)).length);
  return html`${added ? html`<b class="sum added-text">+ ${count(added)} added</b>` : null}${removed ? html`<b class="sum removed-text">− ${count(removed)} removed</b>` : null}${changed ? html`<b class="sum changed-text">~ ${count(changed)} changed</b>` : null}${added + removed + changed ? null : html`<span class="sum soft">nothing changed</span>`}`;
}
