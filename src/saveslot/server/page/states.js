// @ts-check
/** States and diffs of entries, the last few kept: scrubbing back and forth asks for each once. */
import { get, sessionPath } from "./api.js";
import { folded } from "./values.js";

/** @typedef {import("./operations.js").Operation} Operation */

/** @typedef {{value: any, size: number, start: number, next: number | null}} Part what is at a path: the first of its children, or those from `start` on */

/** @typedef {{digest: string, state_bytes: number, stored_bytes: number, frames: {seq: number, kind: "keyframe" | "long" | "short", bytes: number}[]}} Recipe */

const KEPT = 12;
/** Bytes of a state from which on it is read in parts: two levels first, then what is opened. */
export const LARGE = 4_000_000;
const LEVELS = 2;

const unescaped = (/** @type {string} */ part) => part.replaceAll("~1", "/").replaceAll("~0", "~");
/** @param {any} data @param {string} path a JSON pointer @returns {any} undefined if it names nothing that was read */
export const at = (data, path) => path.split("/").slice(1).reduce((value, part) => (value && Object.hasOwn(value, unescaped(part)) ? value[unescaped(part)] : undefined), data);

/** The data with a part in its place; those that were read before it stay. Pure. @param {any} data @param {string} path @param {Part} part @returns {any} */
export function withPart(data, path, { value, start }) {
  if (!path) return start ? (Array.isArray(data) ? [...data, ...value] : { ...data, ...value }) : value;
  const [, first, rest] = /** @type {RegExpMatchArray} */ (path.match(/^\/([^/]*)(.*)$/));
  const copy = Array.isArray(data) ? [...data] : { ...data };
  copy[unescaped(first)] = withPart(copy[unescaped(first)], rest, /** @type {Part} */ ({ value, start }));
  return copy;
}

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
    const value = at(after, list);
    const length = folded(value)?.size ?? value?.length;
    return length === undefined ? operation : { ...operation, path: `${list}/${length - count}` };
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
  /** @param {number} seq @param {string} path @param {number} start @returns {Promise<Part>} */
  const part = (seq, path, start) => get(`${sessionPath(id)}/checkpoints/${seq}`, { path, start, depth: LEVELS });
  const recipes = kept(async (seq) => (await get(`${sessionPath(id)}/checkpoints/${seq}`, { recipe: true })).recipe);
  const outlines = kept((seq) => part(Number(seq), "", 0));
  const diffs = kept(async (pair) => {
    const [a, b, large] = pair.split(" ");
    const { items } = await get(`${sessionPath(id)}/diff`, { a, b, old: true });
    return placed(items, large ? (await outlines(b)).value : await states(b));
  });
  return {
    /** @param {number} seq an entry with data @returns {Promise<any>} null if it was thinned */
    state: (seq) => states(String(seq)),
    /** The first two levels. @param {number} seq */
    outline: (seq) => outlines(String(seq)),
    part,
    /** What a state is rebuilt from. @param {number} seq @returns {Promise<Recipe>} */
    recipe: (seq) => recipes(String(seq)),
    /** @param {number} a @param {number} b @param {boolean} large */
    diff: (a, b, large) => diffs(`${a} ${b}${large ? " large" : ""}`),
  };
}
