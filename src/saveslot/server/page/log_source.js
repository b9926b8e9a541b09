// @ts-check
/** A session's log headers as far as they are loaded: one run of entries, grown at either end or replaced by another. */
import { get, sessionPath } from "./api.js";
import { signal } from "./view.js";

/** @typedef {import("./entries.js").Header} Header */

const PAGE = 500;

/** @param {string} id */
export function logSource(id) {
  /** @type {{value: readonly Header[], peek: () => readonly Header[]}} */
  const entries = signal(/** @type {readonly Header[]} */ ([]));
  const total = signal(0);
  const sealed = signal(false);
  let busy = Promise.resolve();

  /** @param {Record<string, number>} where */
  async function page(where) {
    const answer = await get(`${sessionPath(id)}/log`, { ...where, limit: PAGE, changed: true });
    total.value = answer.entries;
    sealed.value = answer.sealed;
    return /** @type {Header[]} */ (answer.items);
  }

  /** One request at a time: each begins where the one before ended. @param {() => Promise<void>} load */
  const queued = (load) => (busy = busy.catch(() => {}).then(load));

  return {
    entries,
    total,
    sealed,
    /** The entries around a number, or the newest ones. @param {number} [seq] */
    jump: (seq) => queued(async () => { entries.value = await page(seq ? { around: seq } : {}); }),
    /** Entries that came since. */
    later: () => queued(async () => {
      const known = entries.peek();
      const last = known[known.length - 1]?.seq ?? 0;
      const came = await page({ after: last });
      // What came may have ended a step, pinned a checkpoint or left entries behind: the page before is read again.
      if (came.length) entries.value = [...known, ...came];
    }),
    /** The loaded entries anew: what is pinned or thinned changes without a new number. */
    again: () => queued(async () => {
      const known = entries.peek();
      const around = known[Math.floor(known.length / 2)]?.seq;
      entries.value = known.length > PAGE && around ? await page({ around }) : await page(total.peek() > PAGE && around ? { around } : {});
    }),
    earlier: () => queued(async () => {
      const known = entries.peek();
      if (known.length && known[0].seq > 1) entries.value = [...(await page({ before: known[0].seq })), ...known];
    }),
  };
}
