// @ts-check
/** The tape of a session with what moves its playhead; a window of it, with an overview, where the log is long. */
import { now } from "./clock.js";
import { kindText, title } from "./entries.js";
import { clock, count, plain, span } from "./format.js";
import { icon } from "./icons.js";
import { layout } from "./layout.js";
import { longTape } from "./long_tape.js";
import { place, replace, withQuery } from "./places.js";
import { tape } from "./tape.js";
import { html, memo, signal } from "./view.js";

/** @typedef {import("./entries.js").Header} Header */

// Entries on a tape that is a window of a longer log, and how near to its end the playhead moves it.
const WINDOW = 120;
const EDGE = 8;
// Pixels from which on a tape is a window, and those of an entry, at least.
const WIDEST = 2000;
const LEAST = 12;

// Pixels below which the playhead stands still and a finger scrolls the tape under it.
const NARROW = 640;

// How much wider than its panel a tape can be drawn.
const ZOOMS = [1, 1.5, 2, 3, 4, 6, 8, 12, 16];
// Pixels of a turned wheel that are one step of the zoom.
const NOTCH = 40;

export const even = () => place.value.query.get("scale") === "even";
/** @param {boolean} on */
export const setEven = (on) => replace(withQuery({ scale: on ? "even" : null }));

const zoom = () => ZOOMS.findLast((level) => level <= Number(place.value.query.get("zoom"))) ?? 1;
/** @param {number} by steps: 1 is nearer, -1 farther */
export function zoomBy(by) {
  const level = ZOOMS[ZOOMS.indexOf(zoom()) + by];
  if (level) replace(withQuery({ zoom: level === 1 ? null : String(level) }));
}
let turned = 0;
/** Ctrl and the wheel, which is also what a touchpad sends when two fingers spread. @param {WheelEvent} event */
function onwheel(event) {
  if (!event.ctrlKey) return;
  event.preventDefault();
  turned += event.deltaY;
  if (Math.abs(turned) < NOTCH) return;
  zoomBy(turned < 0 ? 1 : -1);
  turned = 0;
}

// How far two fingers move apart, as a part of their distance, for one step of the zoom.
const PINCH = 1.3;
let apart = 0;
/** @param {TouchEvent} event */
const distance = ({ touches: [a, b] }) => Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
/** Two fingers zoom the tape, not the page. @param {TouchEvent} event */
function pinch(event) {
  if (event.touches.length !== 2) return void (apart = 0);
  if (event.cancelable) event.preventDefault();
  const now = distance(event);
  const share = apart ? now / apart : 0;
  if (share >= PINCH) zoomBy(1);
  else if (share && share <= 1 / PINCH) zoomBy(-1);
  else if (share) return;
  apart = now;
}

/** @param {import("./session_source.js").SessionSource} source @param {import("./playhead.js").Playhead} head */
export function tapePanel(source, head) {
  const width = signal(1300);
  const marksOf = memo((/** @type {import("./entries.js").Story} */ s, /** @type {any} */ view) => layout(s, JSON.parse(view)));
  let from = 0;
  const windowOf = memo((/** @type {readonly Header[]} */ entries, /** @type {number} */ start) => entries.slice(start, start + WINDOW));

  /** The entries on the tape: all, or a window that moves when the playhead comes near its end. */
  function drawn() {
    const entries = source.entries();
    const index = head.index();
    if (entries.length * LEAST <= WIDEST) return entries;
    if (index < from + EDGE || index > from + WINDOW - EDGE) from = Math.max(0, Math.min(entries.length - WINDOW, index - WINDOW / 2));
    return windowOf(entries, from);
  }

  /** @param {HTMLElement} element */
  function measure(element) {
    // It has no width before the styles are there.
    const watch = () => element.clientWidth && (width.value = Math.max(300, Math.floor(element.clientWidth)));
    new ResizeObserver(watch).observe(element);
    watch();
  }

  /** @param {Header} entry */
  const hereView = (entry) => html`<span class="here"><b class="mono">${count(entry.seq)} ${plain(title(entry))}</b> <span class="soft">${kindText(entry.kind)}${entry.step?.key ? ` · key=${plain(entry.step.key)}` : ""} · ${clock(Date.parse(entry.at) / 1000)} · +${span((Date.parse(entry.at) - Date.parse(source.session.value.created_at)) / 1000)}</span></span>`;

  return () => {
    const story = source.storyOf(drawn());
    const { entries } = story;
    const entry = head.current();
    const [here, a] = [entries.indexOf(entry), entries.findIndex(({ seq }) => seq === head.seqA())];
    const { state, created_at: created } = source.session.value;
    const orphaned = source.orphaned();
    const still = width.value < NARROW ? width.value : 0;
    const marks = marksOf(story, JSON.stringify({
      width: width.value * zoom(), even: even(), touch: still > 0, state, orphaned, selected: here,
      now: orphaned || state === "paused" ? Math.floor(now.value) : 0, ...(entries[0].seq > 1 && { first: Date.parse(created) / 1000 }),
    }));
    const newer = source.log.total.value - head.selected.value;
    const overview = source.overview.value;
    return html`<section class="panel tape-panel" aria-label="Tape">
      <div class="tape-head">
        <span class="transport"><button class="icon-button" aria-label="First entry" @click=${() => head.jump(1)}>${icon("first")}</button>
        <button class="icon-button" aria-label="Previous entry" @click=${() => head.step(-1)}>${icon("previous")}</button>
        <button class="icon-button" aria-label="Next entry" @click=${() => head.step(1)}>${icon("next")}</button>
        <button class="icon-button" aria-label="Newest entry" @click=${head.toEnd}>${icon("last")}</button></span>
        ${hereView(entry)}
        ${newer > 0 && !head.following.value ? html`<button @click=${head.toEnd}>${count(newer)} newer →</button>` : null}
        <span class="legend push"><span><i class="k-notch"></i>checkpoint, taller = more bytes</span><span><i class="k-diamond"></i>step</span><span><i class="k-hatch"></i>left behind</span></span>
        <span class="segments zoom"><button aria-label="Zoom out" disabled=${zoom() === ZOOMS[0]} @click=${() => zoomBy(-1)}>−</button><button aria-label="Zoom in" disabled=${zoom() === ZOOMS[ZOOMS.length - 1]} @click=${() => zoomBy(1)}>+</button></span>
        <span class="segments"><button aria-pressed=${String(!even())} @click=${() => setEven(false)}>time, silence folded</button><button aria-pressed=${String(even())} @click=${() => setEven(true)}>even</button></span>
      </div>
      ${overview ? longTape({ overview, width: width.value, from: entries[0].seq, to: entries[entries.length - 1].seq, seq: entry.seq, onjump: head.jump }) : null}
      <div ref=${measure} @wheel=${onwheel} @touchstart=${pinch} @touchmove=${pinch}>${tape({ still, marks, story, index: here, a, onselect: (i) => head.select(source.entries().indexOf(entries[i])), label: `Entries of ${plain(source.id)}` })}</div>
    </section>`;
  };
}
