// @ts-check
/** States and diffs of entries, the last few kept: scrubbing back and forth asks for each once. */
import { get, sessionPath } from "./api.js";

/** @typedef {import("./operations.js").Operation} Operation */

const KEPT = 12;

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
    return /** @type {Operation[]} */ (items);
  });
  return {
    /** @param {number} seq an entry with data @returns {Promise<any>} null if it was thinned */
    state: (seq) => states(String(seq)),
    /** @param {number} a @param {number} b */
    diff: (a, b) => diffs(`${a} ${b}`),
  };
}
