// @ts-check
/** What is known of one session: read at once, and again as it changes. */
import { Failure, get, sessionPath } from "./api.js";
import { story } from "./entries.js";
import { logSource } from "./log_source.js";
import { replace, sessionUrl } from "./places.js";
import { trailOf } from "./trail.js";
import { memo, signal } from "./view.js";

/** @typedef {import("./entries.js").Header} Header */
/** @typedef {ReturnType<typeof sessionSource>} SessionSource */

// Entries from which on a log has an overview above its tape, and how much it grows before that is read again: by so
// many entries, or by that part.
const LONG = 166;
const GROWN = 50;
const PART = 0.2;
// Entries that tell all that they change of a session.
const PLAIN = new Set(["checkpoint", "step_started", "step_finished", "step_failed", "record"]);
// Entries after which others of the log are no more what they were.
const CHANGING = new Set(["pinned", "unpinned", "marked", "cleared", "claimed"]);
// Milliseconds between two readings of what a session's next owner would meet, while it is at work.
const OUTLOOK = 2000;

/** @param {string} id */
export function sessionSource(id) {
  const path = sessionPath(id);
  const log = logSource(id);
  const audit = trailOf(id);
  const session = signal(/** @type {any} */ (null));
  const outlook = signal(/** @type {import("./outlook.js").Outlook | null} */ (null));
  const overview = signal(/** @type {import("./long_tape.js").Overview | null} */ (null));
  const failure = signal(/** @type {Failure | null} */ (null));

  const entries = () => log.entries.value;
  const orphaned = () => Boolean(session.value?.orphaned);
  const silent = () => (orphaned() ? (outlook.value?.orphaned_since ?? null) : null);

  const storyMemo = () => memo((/** @type {readonly Header[]} */ list, /** @type {boolean} */ isOrphan, /** @type {string | null} */ since) => story(list, { orphaned: isOrphan, silentSince: since }));
  const [wholeStory, windowStory] = [storyMemo(), storyMemo()];
  /** The story of these entries: all that are loaded, or a window of the log. */
  const storyOf = (list = entries()) => (list === entries() ? wholeStory : windowStory)(list, orphaned(), silent());

  /** Read the session and its log around an entry. @param {string | null} at a ref @param {(seq: number) => void} begin called with the entry's number, before the session is there to be drawn */
  async function load(at, begin) {
    try {
      const seq = at && /^\d+$/.test(at) ? Number(at) : at ? Number((await get(`${path}/checkpoints/${encodeURIComponent(at)}`)).id.split(":").pop()) : 0;
      const [value] = await Promise.all([read(), log.jump(seq || undefined)]);
      begin(seq || newest());
      session.value = value;
      failure.value = null;
      loadOutlook();
      loadOverview();
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      await failed(error);
    }
  }

  /** A deleted session still has its trail; otherwise the id may be the beginning of another one. @param {Failure} error */
  async function failed(error) {
    if (error.status === 404) await audit.load();
    if (error.status !== 404 || audit.trail.peek() || !(await resolved())) failure.value = error;
  }

  /** The session; a sealed one without its key as lists have it, without context and metadata. */
  async function read() {
    try {
      return await get(path);
    } catch (error) {
      if (!(error instanceof Failure) || !["key_missing", "wrong_key"].includes(error.code)) throw error;
      const { items } = await get("/sessions", { prefix: id, limit: 100 });
      const row = items.find((/** @type {any} */ item) => item.session_id === id);
      if (!row) throw error;
      return row;
    }
  }

  /** A unique beginning of an id becomes the whole id. */
  async function resolved() {
    const { items } = await get("/sessions", { prefix: id, limit: 2 });
    if (items.length !== 1 || items[0].session_id === id) return false;
    replace(sessionUrl(items[0].session_id) + location.search);
    return true;
  }

  /** Read what this page or another writer changed: of an agent at work that is its new entries, and now and then the outlook. @param {boolean} newest the playhead is at the newest entry */
  async function reload(newest) {
    const came = await log.later(newest);
    const last = came[came.length - 1];
    if (last && came.every(({ kind }) => PLAIN.has(kind))) {
      const main = came.findLast(({ kind }) => kind !== "record");
      session.value = { ...session.peek(), ...(main && { version: main.version }), last_heartbeat: last.at };
      outlookTimer ||= setTimeout(loadOutlook, Math.max(0, outlookAt + OUTLOOK - performance.now()));
    } else {
      const [value] = await Promise.all([read(), came.some(({ kind }) => CHANGING.has(kind)) ? log.again() : null]);
      session.value = value;
      loadOutlook();
    }
    const drawn = overview.peek()?.entries ?? 0;
    if (log.total.peek() - drawn > Math.max(GROWN, drawn * PART)) loadOverview();
  }

  /** The whole log in columns, once it is longer than a tape can be. */
  const loadOverview = () => log.total.peek() > LONG && get(`${path}/buckets`, { n: 240 }).then((value) => (overview.value = value));
  let [outlookTimer, outlookAt] = [0, 0];
  function loadOutlook() {
    clearTimeout(outlookTimer);
    outlookTimer = 0;
    outlookAt = performance.now();
    get(`${path}/outlook`).then((value) => (outlook.value = value)).catch(() => (outlook.value = null));
  }
  const newest = () => {
    const list = log.entries.peek();
    return list[list.length - 1]?.seq ?? 0;
  };

  return { id, path, log, audit, session, outlook, overview, failure, entries, orphaned, silent, storyOf, load, failed, reload, stop: () => clearTimeout(outlookTimer) };
}
