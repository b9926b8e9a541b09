// @ts-check
/** Where everything on a tape stands: a story in, marks out. Pure; `tape.js` draws the marks. */
import { CHECKPOINTS, COLORS, STEPS, title } from "./entries.js";
import { clock, count, span } from "./format.js";

/** @typedef {import("./entries.js").Story} Story */
/** @typedef {import("./entries.js").Header} Header */

// Vertical places in pixels, from the top: ruler, arcs, clips (header and body), two rows of names, effects, forks.
export const RULER = 20;
export const CLIP = 58;
export const HEADER = 15;
export const BODY = 33;
export const CLIP_END = CLIP + HEADER + BODY;
export const MIDDLE = CLIP + HEADER + BODY / 2;
const NAMES = CLIP_END + 14;
const NAME_ROW = 12;
export const EFFECTS = CLIP_END + 43;
export const LANE = 22;
const HEIGHT = 176;
export const EDGE = 14;

// Seconds between two entries that are drawn to scale; longer ones are folded to the width of `FOLDED` seconds.
const TO_SCALE = 16;
const FOLDED = 19;
// Pixels of one character of the names (mono, 11 px) and of other texts.
const MONO = 6.65;
const SANS = 6;
// Minimal pixels between labels on the ruler, and between one and the playhead.
const RULER_GAP = 84;
// Pixels of a gap that its length fits in.
const LEAST_LABEL = 44;
export const PLAYHEAD_GAP = 44;
// And between two marks of damaged entries with a word.
const DAMAGED = 76;

/** @typedef {{x: number, text: string}} Label */
/**
 * @typedef {object} Marks
 * @property {number} width
 * @property {number} height
 * @property {number[]} xs of each entry
 * @property {Label[]} ruler
 * @property {{x: number, to: number, level: number, label: string}[]} arcs
 * @property {{x: number, width: number, color: number, label: string, end: import("./entries.js").Clip["end"]}[]} clips
 * @property {{x: number, width: number}[]} hatched
 * @property {{x: number, width: number}[]} dotted without an owner
 * @property {{x: number, shape: string, height: number, faint: boolean, pinned: boolean, thinned: boolean, damaged: string, index: number}[]} notches `damaged`: what is written there, a word if there is room
 * @property {{x: number, word: "died" | "orphaned" | "paused" | "silent", length: number, narrow?: boolean}[]} gaps `narrow`: there is no room for the length
 * @property {(Label & {index: number, y: number, faint: boolean})[]} names
 * @property {{x: number, from: number, status: string, label: string, index: number}[]} effects
 * @property {{x: number, y: number, end: number, notches: number[], id: string, state: string, label: string, before: boolean}[]} forks `before`: there is no room for the label after the line
 * @property {number} nowX right end of what a worker is at; 0 if none is
 */

/** How much changed, as the height of a notch. @param {number} bytes */
export const notchHeight = (bytes) => Math.min(30, 3 + 2.9 * Math.log2(1 + Math.max(0, bytes) / 30));

/**
 * @param {readonly number[]} gaps seconds between neighbours
 * @param {number} width to be filled
 * @param {number} least pixels for a gap
 * @param {boolean} even
 * @returns {number[]} their pixels
 */
export function spread(gaps, width, least, even) {
  if (even || gaps.length * least >= width) {
    const step = gaps.length ? Math.max(least, width / gaps.length) : 0;
    return gaps.map(() => step);
  }
  const units = gaps.map((gap) => (gap > TO_SCALE ? FOLDED : Math.max(0, gap)));
  // The scale at which the gaps fill the width, as short ones keep `least`: found by halving.
  let [low, high] = [0, width / Math.max(1e-3, Math.max(...units, 0))];
  for (let i = 0; i < 40; i++) {
    const scale = (low + high) / 2;
    if (units.reduce((sum, unit) => sum + Math.max(least, unit * scale), 0) > width) high = scale;
    else low = scale;
  }
  const pixels = units.map((unit) => Math.max(least, unit * low));
  const rest = width - pixels.reduce((sum, p) => sum + p, 0);
  return pixels.map((p) => p + rest / pixels.length);
}

/** A worker's name cut to what fits: whole, its host, or nothing. @param {string} worker @param {number} width */
export function ownerLabel(worker, width) {
  if (width > 110 || worker.length * 6.2 + 10 < width) return worker;
  const host = worker.split(":")[0];
  return width > 60 || host.length * 6.2 + 10 < width ? host : "";
}

/**
 * @param {Story} story
 * @param {{width: number, even?: boolean, touch?: boolean, now?: number, state: string, orphaned?: boolean, selected?: number, first?: number}} view
 * `selected` is an index; `first` the session's first moment, for a window of a long log
 * @returns {Marks}
 */
export function layout(story, { width, even = false, touch = false, now = 0, state, orphaned = false, selected = -1, first }) {
  const { entries, clips, behind } = story;
  const times = entries.map((entry) => Date.parse(entry.at) / 1000);
  const origin = first ?? times[0];
  const live = state === "active" || state === "paused";
  const least = touch ? 24 : 12;
  const gaps = times.slice(1).map((t, i) => t - times[i]);
  // What is going on after the last entry has a stretch of its own.
  const tail = live ? (orphaned ? 104 : state === "paused" ? 90 : 44) : 24;
  const usable = Math.max(80, width - 2 * EDGE - tail);
  const xs = [EDGE];
  for (const step of spread(gaps, usable, least, even)) xs.push(xs[xs.length - 1] + step);
  const lastX = xs[xs.length - 1];
  const end = lastX + tail;
  const total = Math.max(width, end + EDGE);

  /** @type {Marks} */
  const marks = { width: total, height: HEIGHT, xs, ruler: [], arcs: [], clips: [], hatched: [], dotted: [], notches: [], gaps: [], names: [], effects: [], forks: [], nowX: state === "active" && clips[clips.length - 1]?.end === "held" ? end : 0 };

  let reach = -Infinity;
  xs.forEach((x, i) => {
    if (x - reach < RULER_GAP || (i && x > end - 60)) return;
    const text = i ? `+${span(times[i] - origin)}` : first === undefined ? clock(times[0]) : `+${span(times[0] - origin)}`;
    marks.ruler.push({ x, text });
    // The first one begins at its tick; the others stand over theirs.
    reach = i ? x : x + (text.length * SANS) / 2;
  });

  // From the seventh owner on, whose colour is another one's too, the name is always there.
  const order = [...story.colors.keys()];
  const edges = clips.map((clip) => clipEdges(clip, xs, end));
  clips.forEach((clip, k) => {
    const { left, right } = edges[k];
    marks.clips.push({ x: left, width: right - left, color: clip.color, label: ownerLabel(clip.worker, right - left) || (order.indexOf(clip.worker) < COLORS ? "" : clip.worker.split(":")[0]), end: clip.end });
    const after = k + 1 < clips.length ? edges[k + 1].left : end;
    if (clip.end === "died" && after - right > 30) {
      const until = times[clips[k + 1].first];
      const since = Number.isNaN(clip.silentSince) ? times[clip.last] : clip.silentSince;
      marks.gaps.push({ x: (right + after) / 2, word: "died", length: until - since });
    }
    behindRuns(story, clip.first, clip.last).forEach(([from, to]) => {
      const x = xs[from] - (from > clip.first ? (xs[from] - xs[from - 1]) / 2 : xs[from] - left);
      marks.hatched.push({ x, width: Math.min(right, to < clip.last ? xs[to + 1] : right) - x });
    });
  });
  if (orphaned) {
    const last = clips[clips.length - 1];
    const since = last && !Number.isNaN(last.silentSince) ? last.silentSince : times[times.length - 1];
    marks.gaps.push({ x: end - 36, word: "orphaned", length: now - since });
  }
  let free = EDGE;
  for (const { left, right } of edges) {
    if (left > free) marks.dotted.push({ x: free, width: left - free });
    free = Math.max(free, right);
  }
  if (end > free) marks.dotted.push({ x: free, width: end - free });
  for (const { start, end: until } of story.pauses) {
    const open = until >= entries.length;
    const [a, b] = [xs[start], open ? end : xs[until]];
    marks.gaps.push({ x: (a + b) / 2, word: "paused", length: (open ? now : times[until]) - times[start], narrow: b - a < LEAST_LABEL });
  }
  gaps.forEach((gap, i) => {
    if (gap <= TO_SCALE || even || xs[i + 1] - xs[i] < 56) return;
    const taken = marks.gaps.some((other) => other.x > xs[i] - 8 && other.x < xs[i + 1] + 8);
    if (!taken) marks.gaps.push({ x: (xs[i] + xs[i + 1]) / 2, word: "silent", length: gap });
  });

  for (const { from, to } of story.rollbacks) {
    const inside = marks.arcs.filter((arc) => arc.x < xs[from] && arc.x > xs[to]);
    const level = Math.min(2, Math.max(-1, ...inside.map((arc) => arc.level)) + 1);
    marks.arcs.push({ x: xs[from], to: xs[to], level, label: `↩ rolled back to ${count(entries[to].seq)} ${entries[to].name}` });
  }

  let worded = -Infinity;
  /** @param {number} i */
  function damageMark(i) {
    if (!entries[i].damaged) return "";
    if (xs[i] - worded < DAMAGED) return "!";
    worded = xs[i];
    return "! damaged";
  }
  entries.forEach((entry, i) => {
    const faint = behind.has(entry.seq);
    const shape = CHECKPOINTS.has(entry.kind) ? entry.kind : ["created", "completed", "failed", "paused", "resumed", "recovered", "cancelled", "tombstone"].includes(entry.kind) ? entry.kind : "";
    if (shape || entry.damaged) {
      marks.notches.push({
        x: xs[i],
        shape: shape || "other",
        height: notchHeight(entry.bytes),
        faint,
        pinned: Boolean(entry.pinned),
        thinned: Boolean(entry.thinned),
        damaged: damageMark(i),
        index: i,
      });
    }
    const { step } = entry;
    // A step that began and ended is one effect, where it ended.
    if (step && STEPS.has(entry.kind) && !(entry.kind === "step_started" && step.status !== "running" && step.status !== "unknown")) {
      const start = story.started.get(i);
      const from = start !== undefined ? xs[start] : step.started_at ? place(Date.parse(step.started_at) / 1000, times, xs) : xs[i];
      const named = ["failed", "unknown"].includes(step.status);
      marks.effects.push({ x: xs[i], from, status: step.status, label: named ? `${entry.name} ${step.key ?? ""}`.trim() : "", index: i });
    }
  });
  marks.names = names(entries, xs, behind, selected, total);

  const forked = entries.flatMap((entry, i) => (entry.forks ?? []).map((fork) => ({ fork, entry, x: xs[i] })));
  // Later forks have the upper lanes: then no line crosses another one's label.
  forked.reverse().forEach(({ fork, entry, x }, lane) => {
    const label = `${fork.state} · fork at ${entry.seq} · ${count(fork.entries)} ${fork.entries === 1 ? "entry" : "entries"}`;
    const room = total - x - EDGE - 40 - (fork.id.length + label.length) * SANS;
    const before = room < 24;
    const length = before ? 24 : Math.min(260, Math.max(24, 18 * Math.min(fork.entries, 16)), room);
    const step = length / Math.min(16, Math.max(2, fork.entries + 1));
    const notches = [];
    for (let at = step; at < length - 2; at += step) notches.push(x + 12 + at);
    marks.forks.push({ x, y: EFFECTS + 26 + lane * LANE, end: x + 12 + length, notches, id: fork.id, state: fork.state, label, before });
  });
  marks.height = HEIGHT + (forked.length ? forked.length * LANE : 0);
  return marks;
}

/** @param {import("./entries.js").Clip} clip @param {number[]} xs @param {number} end */
function clipEdges({ first, last, end: ending }, xs, end) {
  const left = xs[first];
  const next = xs[last + 1] ?? end;
  if (ending === "held") return { left, right: end };
  // A dead worker's last entry is not its end: the tear stands a little after it.
  const right = ending === "died" || ending === "orphaned" ? xs[last] + Math.min(24, Math.max(6, (next - xs[last]) / 2)) : Math.max(xs[last], left + 3);
  return { left, right };
}

/** @param {Story} story @param {number} first @param {number} last @returns {[number, number][]} runs of entries left behind */
function behindRuns({ entries, behind }, first, last) {
  /** @type {[number, number][]} */
  const runs = [];
  for (let i = first; i <= last; i++) {
    if (!behind.has(entries[i].seq)) continue;
    const run = runs[runs.length - 1];
    if (run && run[1] === i - 1) run[1] = i;
    else runs.push([i, i]);
  }
  return runs;
}

/** The x of a moment between entries. @param {number} t @param {number[]} times @param {number[]} xs */
export function place(t, times, xs) {
  let i = times.findIndex((other) => other >= t);
  if (i === 0) return xs[0];
  if (i < 0) return xs[xs.length - 1];
  const share = times[i] > times[i - 1] ? (t - times[i - 1]) / (times[i] - times[i - 1]) : 1;
  return xs[i - 1] + share * (xs[i] - xs[i - 1]);
}

/** @param {readonly Header[]} entries @param {number[]} xs @param {Set<number>} behind @param {number} selected @param {number} width */
function names(entries, xs, behind, selected, width) {
  /** @type {Marks["names"]} */
  const placed = [];
  const order = entries.map((_, i) => i).filter((i) => CHECKPOINTS.has(entries[i].kind));
  if (order.includes(selected)) order.unshift(selected);
  const done = new Set();
  for (const index of order) {
    if (done.has(index)) continue;
    done.add(index);
    const full = title(entries[index]);
    const text = full.length > 24 ? `${full.slice(0, 23)}…` : full;
    const half = (text.length * MONO) / 2;
    const x = Math.min(Math.max(xs[index], half + 2), width - half - 2);
    for (const y of [NAMES, NAMES + NAME_ROW]) {
      if (placed.some((other) => other.y === y && Math.abs(other.x - x) < (other.text.length * MONO) / 2 + half + 7)) continue;
      placed.push({ x, y, text, index, faint: behind.has(entries[index].seq) });
      break;
    }
  }
  return placed;
}
