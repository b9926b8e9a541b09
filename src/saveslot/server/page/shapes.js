// @ts-check
/** Small tapes of the sessions in sight, asked for together. */
import { get } from "./api.js";
import { signal } from "./view.js";

/** @typedef {import("./small_tape.js").Shape} Shape */

// Sessions in one call, and shapes kept.
const MOST = 100;
const KEPT = 1000;

export function shapeSource() {
  /** @type {Map<string, Shape>} */
  const known = new Map();
  /** @type {Set<string>} */
  const waiting = new Set();
  const version = signal(0);
  let timer = 0;

  async function load() {
    const ids = [...waiting].slice(0, MOST);
    ids.forEach((id) => waiting.delete(id));
    const { items } = await get("/shapes", { ids });
    for (const shape of items) {
      known.delete(shape.id);
      known.set(shape.id, shape);
    }
    while (known.size > KEPT) known.delete(known.keys().next().value ?? "");
    version.value++;
    // The list may have moved on meanwhile, and its timer runs already.
    clearTimeout(timer);
    if (waiting.size) timer = setTimeout(load, 50);
  }

  return {
    /** @param {string} id @returns {Shape | undefined} read as a signal: a later one draws again */
    of: (id) => (version.value, known.get(id)),
    /** Ask for those that are not known, once the list rests. @param {string[]} ids @param {boolean} [anew] */
    want(ids, anew = false) {
      for (const id of ids) if (anew || !known.has(id)) waiting.add(id);
      clearTimeout(timer);
      if (waiting.size) timer = setTimeout(load, anew ? 1000 : 300);
    },
    stop: () => clearTimeout(timer),
  };
}
