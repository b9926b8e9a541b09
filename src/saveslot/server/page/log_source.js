// @ts-check
/** A session's log headers as far as they are loaded: one run of entries, grown at either end or replaced by another. */
import { get, sessionPath } from "./api.js";
import { signal } from "./view.js";

/** @typedef {import("./entries.js").Header} Header */

const PAGE = 500;
// Entries that stay while the newest ones are followed; those before them are read again where they are wanted.
const KEPT = 2 * PAGE;

/**
 * Known entries with those that came: a step that ended is known by its start, too. Pure.
 * @param {readonly Header[]} known @param {readonly Header[]} came
 */
export function joined(known, came) {
  const ends = new Map(came.filter(({ kind, step }) => step && (kind === "step_finished" || kind === "step_failed")).map((entry) => [stepOf(entry), entry.step?.status]));
  if (!ends.size) return [...known, ...came];
  return [...known, ...came].map((entry) => {
    const status = entry.kind === "step_started" ? ends.get(stepOf(entry)) : undefined;
    return status && entry.step && OPEN.has(entry.step.status) ? { ...entry, step: { ...entry.step, status } } : entry;
  });
}
const OPEN = new Set(["running", "unknown", "retrying"]);
const stepOf = (/** @type {Header} */ { name, step }) => `${name}\n${step?.key ?? ""}`;

/** @param {string} id */
export function logSource(id) {
  /** @type {{value: readonly Header[], peek: () => readonly Header[]}} */
  const entries = signal(/** @type {readonly Header[]} */ ([]));
  const total = signal(0);
  const sealed = signal(false);
  /** @type {Promise<unknown>} */
  let busy = Promise.resolve();

  /** @param {Record<string, number>} where */
  async function page(where) {
    const answer = await get(`${sessionPath(id)}/log`, { ...where, limit: PAGE, changed: true });
    total.value = answer.entries;
    sealed.value = answer.sealed;
    return /** @type {Header[]} */ (answer.items);
  }

  /** Entries after a number: at least so many, or all. @param {number} seq @param {number} [least] */
  async function after(seq, least = Infinity) {
    /** @type {Header[]} */
    const all = [];
    for (let last = seq; ; ) {
      const came = await page({ after: last });
      all.push(...came);
      last = came[came.length - 1]?.seq ?? total.peek();
      if (last >= total.peek() || all.length >= least) return all;
    }
  }

  /** One request at a time: each begins where the one before ended. @template T @param {() => Promise<T>} load @returns {Promise<T>} */
  function queued(load) {
    const mine = busy.catch(() => {}).then(load);
    busy = mine;
    return mine;
  }

  return {
    entries,
    total,
    sealed,
    /** The entries around a number, or the newest ones. @param {number} [seq] */
    jump: (seq) => queued(async () => { entries.value = await page(seq ? { around: seq } : {}); }),
    /** Entries that came since; none where others lie between them and the loaded ones. @param {boolean} newest only these are looked at @returns {Promise<readonly Header[]>} */
    later: (newest) => queued(async () => {
      const known = entries.peek();
      const last = known[known.length - 1]?.seq ?? 0;
      if (last < total.peek()) {
        await page({ after: total.peek() });
        return [];
      }
      const came = await after(last);
      const all = came.length ? joined(known, came) : known;
      entries.value = newest && all.length > KEPT ? all.slice(-PAGE) : all;
      return came;
    }),
    /** The loaded entries anew: what is pinned or thinned changes without a new number. */
    again: () => queued(async () => {
      const [first] = entries.peek();
      if (first) entries.value = await after(first.seq - 1, entries.peek().length);
    }),
    /** The page after the loaded ones. */
    further: () => queued(async () => {
      const known = entries.peek();
      const last = known[known.length - 1]?.seq ?? 0;
      if (last < total.peek()) entries.value = joined(known, await page({ after: last }));
    }),
    /** Its state turned out to be damaged as it was read. @param {number} seq @param {string} reason */
    damage(seq, reason) {
      if (entries.peek().some((entry) => entry.seq === seq && !entry.damaged)) entries.value = entries.peek().map((entry) => (entry.seq === seq ? { ...entry, damaged: reason } : entry));
    },
    earlier: () => queued(async () => {
      const known = entries.peek();
      if (known.length && known[0].seq > 1) entries.value = [...(await page({ before: known[0].seq })), ...known];
    }),
  };
}
