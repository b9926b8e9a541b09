// @ts-check
/** A log of thousands of entries at a glance: columns of neighbouring entries, and the stretch that is drawn below. */
import { COLORS } from "./entries.js";
import { clock, count, plain, span } from "./format.js";
import { ownerLabel } from "./layout.js";
import { torn } from "./tape.js";
import { each, html, memo, svg } from "./view.js";

/** @typedef {{from_seq: number, to_seq: number, start: string, end: string, entries: number, checkpoints: number, bytes: number, failed_steps: number, owner: string | null}} Piece */
/** @typedef {{items: Piece[], turns: {seq: number, kind: string, at: string, owner: string | null}[], entries: number, from_seq: number}} Overview */

const HEIGHT = 74;
const EDGE = 14;
// Pixels from one time to the next.
const LABEL = 120;

/** Columns of an overview; pure. @param {Overview} overview @param {number} width */
export function columns({ items }, width) {
  const most = Math.max(1, ...items.map(({ bytes }) => bytes));
  const step = (width - 2 * EDGE) / Math.max(1, items.length);
  /** @type {Map<string, number>} */
  const colors = new Map();
  return items.map((piece, i) => {
    if (piece.owner && !colors.has(piece.owner)) colors.set(piece.owner, colors.size % COLORS);
    return { x: EDGE + i * step, width: step, height: 4 + 24 * Math.sqrt(piece.bytes / most), color: piece.owner === null ? -1 : (colors.get(piece.owner) ?? 0), failed: piece.failed_steps > 0, owner: piece.owner };
  });
}

/** The x of an entry. @param {Overview} overview @param {number} width @param {number} seq */
export function placeOf({ items }, width, seq) {
  const first = items[0]?.from_seq ?? 1;
  const last = items[items.length - 1]?.to_seq ?? 1;
  return EDGE + ((Math.min(last, Math.max(first, seq)) - first) / Math.max(1, last - first)) * (width - 2 * EDGE);
}

/** Neighbouring columns of one owner. @param {ReturnType<typeof columns>} cols */
function runs(cols) {
  /** @type {{x: number, width: number, color: number, owner: string}[]} */
  const all = [];
  for (const { x, width, color, owner } of cols) {
    const last = all[all.length - 1];
    if (owner === null) continue;
    if (last?.owner === owner && Math.abs(last.x + last.width - x) < 0.5) last.width = x + width - last.x;
    else all.push({ x, width, color, owner });
  }
  return all;
}

const drawing = memo((/** @type {Overview} */ overview, /** @type {number} */ width) => {
  const cols = columns(overview, width);
  const start = Date.parse(overview.items[0].start) / 1000;
  const every = Math.max(1, Math.ceil((overview.items.length * LABEL) / width));
  const deaths = overview.turns.filter(({ kind }) => kind === "claimed");
  return svg`${each(cols, (_, i) => i, ({ x, width: w, color }) => svg`<rect class=${color < 0 ? "no-owner" : `o${color}-body`} x=${x} y="34" width=${w + 0.5} height="36"/>`)}
    ${each(runs(cols), (_, i) => i, ({ x, width: w, color, owner }) => svg`<g><rect class=${`o${color}-head`} x=${x} y="19" width=${w} height="15"/><text class="owner-name" x=${x + 5} y="30">${plain(ownerLabel(owner, w))}</text></g>`)}
    ${each(cols, (_, i) => i, ({ x, width: w, height, failed }) => svg`<rect class=${failed ? "density failed" : "density"} x=${x} y=${52 - height / 2} width=${Math.max(0.6, w - 0.6)} height=${height}/>`)}
    ${each(deaths, ({ seq }) => seq, ({ seq }) => svg`<path class="torn died" d=${torn(placeOf(overview, width, seq), 19, 70)}/>`)}
    ${each(overview.items.filter(({ from_seq: seq }, i) => i % every === 0 && placeOf(overview, width, seq) < width - LABEL / 2), (_, i) => i, (piece, i) => svg`<text class=${i ? "axis" : "axis start"} x=${placeOf(overview, width, piece.from_seq)} y="13">${i ? `+${span(Date.parse(piece.start) / 1000 - start)}` : clock(start)}</text>`)}`;
});

/** @param {{overview: Overview, width: number, from: number, to: number, seq: number, onjump: (seq: number) => void}} view `from` and `to`: the entries drawn below */
export function longTape({ overview, width, from, to, seq, onjump }) {
  const { items, entries } = overview;
  if (!items.length) return null;
  /** @param {PointerEvent} event */
  const at = (event) => {
    const box = /** @type {Element} */ (event.currentTarget).getBoundingClientRect();
    const share = Math.min(1, Math.max(0, (event.clientX - box.left - EDGE) / (box.width - 2 * EDGE)));
    onjump(Math.round(items[0].from_seq + share * (items[items.length - 1].to_seq - items[0].from_seq)));
  };
  const [left, right, here] = [from, to, seq].map((s) => placeOf(overview, width, s));
  return html`<div class="long-tape"><svg class="tape" width=${width} height=${HEIGHT} role="img" aria-label=${`${count(entries)} entries; ${count(from)} to ${count(to)} are drawn below`} @pointerdown=${at} @pointermove=${(/** @type {PointerEvent} */ e) => e.buttons & 1 && at(e)}>
    ${drawing(overview, width)}<rect class="window" x=${left - 1} y="17" width=${Math.max(6, right - left + 2)} height="55" rx="3"/><path class="window-line" d=${`M${here} 14V${HEIGHT}`}/></svg>
    <p class="soft long-note">each column is about ${count(Math.round(entries / items.length))} entries, taller with more bytes; red: a failed step in it. Below: entries ${count(from)} to ${count(to)}${items[0].from_seq > 1 ? `. The first ${count(items[0].from_seq - 1)} are not drawn` : ""}.</p></div>`;
}
