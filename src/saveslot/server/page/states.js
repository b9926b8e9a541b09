// @ts-check
/** States and diffs of entries, the last few kept: scrubbing back and forth asks for each once. */
import { get, sessionPath } from "./api.js";

/** @typedef {import("./operations.js").Operation} Operation */

const KEPT = 12;

/**
 * Operations whose paths name the places they lead to: JSON Patch writes the end of a list as "-". Pure.
 * @param {readonly Operation[]} operations @param {any} after the state that they lead to @returns {Operation[]}
 */
export function placed(operations, after) {
  const ends = operations.filter(({ path }) => path.endsWith("/-"));
  /** @type {Map<string, number>} */
  const left = new Map();
  for (const { path } of ends) left.set(path, (left.get(path) ?? 0) + 1);
  return operations.map((operation) => {
    const count = left.get(operation.path);
    if (!count) return operation;
    left.set(operation.path, count - 1);
    const list = operation.path.slice(0, -2);
    const length = list.split("/").slice(1).reduce((value, part) => value?.[part.replaceAll("~1", "/").replaceAll("~0", "~")], after)?.length ?? 0;
    return { ...operation, path: `${list}/${length - count}` };
  });
}

/** @template T @param {(key: string) => Promise<T>} load */
function kept(load) {
  /** @type {Map<string, Promise<T>>} */
  const values = new Map();
  return (/** @type {string} */ key) => {
    const known = values.get(key);
    values.delete(key);
    const value = known ?? load(key);
    values.set(key, value);
    value.catch(() => values.delete(key));
    if (values.size > KEPT) values.delete(values.keys().next().value ?? "");
    return value;
  };
}

/** @param {string} id */
export function stateSource(id) {
  const states = kept(async (seq) => (await get(`${sessionPath(id)}/checkpoints/${seq}`)).data);
  const diffs = kept(async (pair) => {
    const [a, b] = pair.split(" ");
    const { items } = await get(`${sessionPath(id)}/diff`, { a, b, old: true });
    return placed(items, await states(b));
  });
  return {
    /** @param {number} seq an entry with data @returns {Promise<any>} null if it was thinned */
    state: (seq) => states(String(seq)),
    /** @param {number} a @param {number} b */
    diff: (a, b) => diffs(`${a} ${b}`),
  };
}
