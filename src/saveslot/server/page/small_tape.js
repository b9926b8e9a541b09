// @ts-check
/** A session as a strip 20 pixels high, for lists; on its own scale, or on one that several share. */
import { COLORS } from "./entries.js";
import { plain } from "./format.js";
import { shapeAt } from "./icons.js";
import { spread } from "./layout.js";
import { torn } from "./tape.js";
import { each, html, svg } from "./view.js";

/**
 * @typedef {object} Shape as `/v1/shapes` sends it
 * @property {string} id
 * @property {string} state
 * @property {boolean} orphaned
 * @property {string[]} owners
 * @property {[number, string, number | null, number, number | null][]} marks offset in seconds, kind, owner, bytes, to
 * @property {number} from_seq the first entry that is drawn
 * @property {number} stored_bytes of the entries from there on
 * @property {number} ends_s
 * @property {number} now_s
 * @property {number | null} silent_s
 */

const TOP = 5;
const HEIGHT = 12;

/** Where each moment stands: folded like the large tape. @param {Shape} shape @param {number} width */
function folded({ marks, ends_s: end }, width) {
  const times = [...new Set([...marks.map(([at]) => at), end])].sort((a, b) => a - b);
  const steps = spread(times.slice(1).map((t, i) => t - times[i]), width, 2, false);
  const xs = [0];
  for (const step of steps) xs.push(xs[xs.length - 1] + step);
  return (/** @type {number} */ t) => {
    let i = times.findIndex((other) => other >= t);
    if (i < 0) i = times.length - 1;
    if (i === 0) return xs[0];
    const part = (t - times[i - 1]) / (times[i] - times[i - 1] || 1);
    return xs[i - 1] + Math.min(1, Math.max(0, part)) * (xs[i] - xs[i - 1]);
  };
}

/** Pure: clips and notches of a shape. @param {Shape} shape @param {(t: number) => number} x */
export function smallMarks(shape, x) {
  /** @type {{from: number, to: number, color: number, died: boolean}[]} */
  const clips = [];
  /** @type {(typeof clips)[number] | null} */
  let open = null;
  const notches = [];
  const arcs = [];
  const failed = [];
  for (const [at, kind, owner, , to] of shape.marks) {
    const here = x(at);
    if (kind === "claimed" || kind === "taken") {
      if (open) {
        open.died = kind === "claimed";
        if (open.died && to !== null && to !== undefined) open.to = Math.max(open.to, x(to));
      }
      open = { from: here, to: here, color: (owner ?? 0) % COLORS, died: false };
      clips.push(open);
    } else if (open === null && owner !== null) {
      open = { from: here, to: here, color: owner % COLORS, died: false };
      clips.push(open);
    }
    if (open) open.to = Math.max(open.to, here);
    if (kind === "released" || kind === "completed" || kind === "failed" || kind === "tombstone") open = null;
    if (kind === "checkpoint") notches.push(here);
    if (kind === "rollback") arcs.push({ from: here, to: x(to ?? 0) });
    if (kind === "step_failed") failed.push(here);
  }
  if (open && shape.orphaned) open.died = true;
  return { clips, notches, arcs, failed };
}

/** A phone has room for the host alone. @param {string} worker */
function hostAndPort(worker) {
  const colon = worker.lastIndexOf(":");
  return colon > 0 ? html`${plain(worker.slice(0, colon))}<span class="port">${plain(worker.slice(colon))}</span>` : plain(worker);
}

/** A worker's name with the colour of its clips. @param {string} worker @param {Shape | undefined} shape */
export function ownerName(worker, shape) {
  const place = shape?.owners.indexOf(worker) ?? -1;
  return html`${place < 0 ? null : html`<i class=${`swatch o${place % COLORS}-head-bg`}></i>`}${hostAndPort(worker)}`;
}

/** @param {Shape} shape @param {{width?: number, from?: number, to?: number, ends?: boolean, at?: number}} [view] `from` and `to`: seconds since the session was created, for a common axis; `at`: the same, of a playhead */
export function smallTape(shape, { width = 140, from, to, ends = true, at } = {}) {
  const inner = width - (ends ? 18 : 2);
  const scaled = from === undefined || to === undefined ? folded(shape, inner) : (/** @type {number} */ t) => Math.min(inner, Math.max(0, ((t - from) / (to - from)) * inner));
  const { clips, notches, arcs, failed } = smallMarks(shape, scaled);
  const last = clips[clips.length - 1];
  const held = shape.state === "active" && !shape.orphaned && shape.silent_s !== null;
  if (held && last) last.to = from === undefined ? inner : scaled(shape.now_s);
  return html`<svg class="small-tape" width=${width} height="22" viewBox=${`0 0 ${width} 22`} preserveAspectRatio="none" aria-hidden="true">
    <path class="unowned" d=${`M0 ${TOP + HEIGHT / 2}H${inner}`}/>
    ${each(clips, (_, i) => i, (clip) => svg`<g><rect class=${`o${clip.color}-head`} x=${clip.from} y=${TOP} width=${Math.max(2, clip.to - clip.from)} height=${HEIGHT}/>${clip.died ? svg`<path class="torn died" d=${torn(Math.max(clip.from + 2, clip.to), TOP - 1, TOP + HEIGHT + 1)}/>` : null}</g>`)}
    <path class="small-notches" d=${notches.map((x) => `M${x.toFixed(1)} ${TOP + 2}v${HEIGHT - 4}`).join("")}/>
    ${each(arcs, (_, i) => i, (arc) => svg`<path class="small-arc" d=${`M${arc.to} ${TOP}Q${arc.to} 1 ${arc.to + 4} 1H${Math.max(arc.to + 4, arc.from - 4)}Q${arc.from} 1 ${arc.from} ${TOP}`}/>`)}
    ${each(failed, (_, i) => i, (x) => svg`<circle class="s-failed fill" cx=${x} cy=${TOP + HEIGHT + 3} r="2"/>`)}
    ${at === undefined ? null : svg`<path class="small-playhead" d=${`M${scaled(at)} 0v22`}/>`}
    ${ends ? shapeAt(shape.orphaned ? "orphaned" : shape.state, width - 8, TOP + HEIGHT / 2) : null}</svg>`;
}
