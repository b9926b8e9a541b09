// @ts-check
/** Where one stands in a session's log: at an entry, with A at another one. The URL holds both. */
import { CHECKPOINTS } from "./entries.js";
import { place, replace, withQuery } from "./places.js";
import { memo, signal } from "./view.js";

/** @typedef {import("./entries.js").Header} Header */
/** @typedef {ReturnType<typeof playhead>} Playhead */

// Entries between the playhead and an end of the loaded ones at which those beyond it are read.
const NEAR = 20;
// Safari and Chromium refuse more than 100 changes of the URL in 10 s: milliseconds that the playhead rests before one.
const REST = 120;

/** The index of an entry; where it is not there, of the one after it, or the last one. @param {readonly Header[]} list oldest first @param {number} seq */
function indexIn(list, seq) {
  let [low, high] = [0, list.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle].seq < seq) low = middle + 1;
    else high = middle;
  }
  return high;
}

/** @param {ReturnType<typeof import("./log_source.js").logSource>} log @param {(index: number) => void} onmove */
export function playhead(log, onmove) {
  const selected = signal(0);
  /** At the newest entry it stays at the newest one. */
  const following = signal(true);
  /** The newest entry was stood at because it came, not because a person went there. */
  let led = false;
  let timer = 0;

  const entries = () => log.entries.value;
  const indexOf = memo(indexIn);
  const index = () => indexOf(entries(), selected.value);
  const current = () => entries()[index()];
  /** @param {number} seq @returns {Header | null} null unless it is loaded */
  function entryAt(seq) {
    const entry = entries()[indexIn(entries(), seq)];
    return entry?.seq === seq ? entry : null;
  }
  /** The entry with data that the playhead stands at or after. */
  const target = () => entryAt(current().data_seq ?? 0);

  const seqA = () => Number(place.value.query.get("from")) || 0;
  const setA = () => replace(withQuery({ from: seqA() ? null : String(selected.peek()) }));
  /** The entry whose data the diff starts from: A, or the data before. @param {Header} entry */
  function baseOf(entry) {
    const a = seqA();
    const list = entries();
    if (a) return entryAt(a)?.data_seq ?? a;
    const dataSeq = entry.data_seq ?? 0;
    const data = indexIn(list, dataSeq);
    if (list[data]?.seq !== dataSeq) return 0;
    // A thinned entry has no data to start from: the one before it has.
    let before = list[data - 1]?.data_seq ?? 0;
    while (list[indexIn(list, before)]?.thinned) before = list[indexIn(list, before) - 1]?.data_seq ?? 0;
    return before;
  }

  /** Stand at an entry without a step in the URL. @param {number} seq @param {boolean} follow */
  function begin(seq, follow) {
    selected.value = seq;
    following.value = follow;
  }

  /** @param {number} i an index; beyond either end it is that end @param {boolean} [news] */
  function select(i, news = false) {
    led = news;
    const list = log.entries.peek();
    const bounded = Math.max(0, Math.min(list.length - 1, i));
    const { seq } = list[bounded];
    following.value = bounded === list.length - 1 && seq >= log.total.peek();
    if (i < NEAR && list[0].seq > 1) log.earlier();
    if (i >= list.length - NEAR && list[list.length - 1].seq < log.total.peek()) log.further();
    if (seq === selected.peek()) return;
    selected.value = seq;
    onmove(bounded);
    clearTimeout(timer);
    timer = setTimeout(() => replace(withQuery({ at: following.peek() ? null : String(seq) })), REST);
  }

  /** Go to an entry, loaded or not. @param {number} seq */
  async function jump(seq) {
    const known = log.entries.peek();
    if (seq < known[0].seq || seq > known[known.length - 1].seq) await log.jump(seq);
    select(indexIn(log.entries.peek(), seq));
  }
  const toLast = (news = false) => select(log.entries.peek().length - 1, news);
  async function toEnd() {
    const known = log.entries.peek();
    if (known[known.length - 1].seq < log.total.peek()) await log.jump();
    toLast();
  }
  /** @param {number} direction */
  function stepCheckpoint(direction) {
    const list = entries();
    let i = index() + direction;
    while (i > 0 && i < list.length - 1 && !CHECKPOINTS.has(list[i].kind)) i += direction;
    select(i);
  }
  const step = (/** @type {number} */ by) => select(index() + by);

  return { selected, following, led: () => led, entries, entryAt, index, current, target, seqA, setA, baseOf, begin, select, jump, toLast, toEnd, step, stepCheckpoint, stop: () => clearTimeout(timer) };
}
