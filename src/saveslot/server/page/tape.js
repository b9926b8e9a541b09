// @ts-check
/** A session drawn as its log, with a playhead that snaps to entries. `layout.js` decides where things stand. */
import { kindText, title } from "./entries.js";
import { clock, count, plain, size, span } from "./format.js";
import { shapeAt } from "./icons.js";
import { BODY, CLIP, CLIP_END, EFFECTS, HEADER, MIDDLE, PLAYHEAD_GAP, RULER } from "./layout.js";
import { go, sessionUrl } from "./places.js";
import { each, html, signal, svg } from "./view.js";

/** @typedef {import("./layout.js").Marks} Marks */
/** @typedef {import("./entries.js").Story} Story */

/** A zigzag along a right edge. @param {number} x @param {number} top @param {number} bottom */
export function torn(x, top, bottom) {
  const step = (bottom - top) / 6;
  return Array.from({ length: 7 }, (_, i) => `${i ? "L" : "M"}${(x + (i % 2 ? 3.5 : 0)).toFixed(1)} ${(top + i * step).toFixed(1)}`).join("");
}

/** @param {Marks["clips"][number]} clip */
const drawClip = ({ x, width, color, label, end }) => svg`<g>
  <rect class=${`o${color}-head`} x=${x} y=${CLIP} width=${width} height=${HEADER}/>
  <rect class=${`o${color}-body`} x=${x} y=${CLIP + HEADER} width=${width} height=${BODY}/>
  <path class="clip-edge" d=${`M${x} ${CLIP}V${CLIP_END}`}/>
  ${end === "died" || end === "orphaned" ? svg`<path class=${`torn ${end}`} d=${torn(x + width, CLIP, CLIP_END)}/>` : null}
  ${end === "held" ? svg`<path class="held pulse" d=${`M${x + width} ${CLIP}V${CLIP_END}`}/>` : null}
  ${label ? svg`<text class="owner-name" x=${x + 5} y=${CLIP + 11}>${plain(label)}</text>` : null}
</g>`;

/** @param {Marks["notches"][number]} notch @param {number} selected */
function drawNotch({ x, shape, height, faint, pinned, thinned, damaged, index }, selected) {
  const look = `notch${faint ? " faint" : ""}${thinned ? " thinned" : ""}${index === selected ? " selected" : ""}`;
  const top = MIDDLE - height / 2;
  const body =
    shape === "checkpoint"
      ? svg`<rect class=${look} x=${x - 1.5} y=${top} width="3" height=${height} rx="1"/>`
      : shape === "rollback"
        ? svg`<circle class=${`ring${index === selected ? " selected" : ""}`} cx=${x} cy=${MIDDLE} r="3.6"/>`
        : shape === "created"
          ? svg`<path class="created" d=${`M${x} ${CLIP}V${CLIP_END}`}/>`
          : shape === "resumed" || shape === "recovered"
            ? svg`<path class="resumed" d=${`M${x} ${CLIP + HEADER - 6}V${CLIP_END - 8}`}/>`
            : shape === "other" || shape === "paused"
              ? null
              : svg`<circle class="disc" cx=${x} cy=${MIDDLE} r="9"/>${shapeAt(shape === "cancelled" || shape === "tombstone" ? "failed" : shape, x, MIDDLE)}`;
  return svg`<g>${body}
    ${pinned ? svg`<path class="pin" d=${`M${x - 3.5} ${CLIP - 3}h7v9l-3.5 -3l-3.5 3z`}/>` : null}
    ${damaged ? svg`<text class="damage halo" x=${x} y=${CLIP - 4}>${damaged}</text>` : null}</g>`;
}

/** @param {Marks["gaps"][number]} gap */
function drawGap({ x, word, length, narrow }) {
  if (word === "silent") return svg`<text class="gap-length" x=${x} y=${CLIP_END - 3}>${span(length)}</text>`;
  const mark = word === "paused" ? svg`<path class="gap-pause" d=${`M${x - 2.5} ${CLIP + 8}v9m5 -9v9`}/>` : svg`<text class=${`gap ${word}`} x=${x} y=${CLIP + 17}>${word === "died" ? "✗ died" : "◌ orphaned"}</text>`;
  return svg`<g>${mark}${narrow ? null : svg`<text class="gap-length" x=${x} y=${CLIP + 40}>${span(length)}</text>`}</g>`;
}

/** @param {Marks["arcs"][number]} arc @param {boolean} [dashed] */
function drawArc({ x, to, level, label }, dashed = false) {
  const y = RULER + 26 - level * 8;
  const radius = Math.min(14, Math.abs(x - to) / 2);
  const middle = (x + to) / 2;
  const room = label.length * 5.5 + 14;
  return svg`<g class=${dashed ? "arc planned" : "arc"}>
    <path d=${`M${x} ${CLIP}V${y + radius}Q${x} ${y} ${x - radius} ${y}H${to + radius}Q${to} ${y} ${to} ${y + radius}V${CLIP - 5}`}/>
    <path class="arrow" d=${`M${to - 4.5} ${CLIP - 9}h9l-4.5 9z`}/>
    ${label && x - to > room + 30 ? svg`<rect class="paper-gap" x=${middle - room / 2} y=${y - 8} width=${room} height="16"/><text class="arc-label" x=${middle} y=${y + 4}>${plain(label)}</text>` : null}
  </g>`;
}

/** @param {Marks["effects"][number]} effect */
function drawEffect({ x, from, status, label }) {
  const look = `effect ${["failed", "unknown", "running"].includes(status) ? status : ""}`;
  return svg`<g class=${look}>
    ${from < x - 5 ? svg`<path class="reach" d=${`M${from} ${EFFECTS}H${x - 5}`}/>` : null}
    <path class="diamond" d=${`M${x} ${EFFECTS - 5.5}l5.5 5.500l-5.500 5.500l-5.500 -5.500z`}/>
    ${status === "failed" ? svg`<path class="cross" d=${`M${x - 1.8} ${EFFECTS - 1.8}l3.600 3.600m0 -3.600l-3.600 3.600`}/>` : null}
    ${status === "unknown" ? svg`<text class="question" x=${x} y=${EFFECTS + 3}>?</text>` : null}
    ${label ? svg`<text class="effect-label halo" x=${x} y=${EFFECTS + 17}>${plain(label)}</text>` : null}
  </g>`;
}

/** @param {Marks["forks"][number]} fork */
const drawFork = ({ x, y, end, notches, id, state, label, before }) => svg`<g class="fork" data-href=${sessionUrl(id)}>
  <circle cx=${x} cy=${CLIP_END} r="2.500"/>
  <path d=${`M${x} ${CLIP_END}V${y - 5}Q${x} ${y} ${x + 5} ${y}H${end}`}/>
  <path d=${notches.map((at, i) => `M${at.toFixed(1)} ${y - (i % 4 ? 3 : 5)}v${i % 4 ? 6 : 10}`).join("")}/>
  ${shapeAt(state, end + 12, y)}
  <text class=${before ? "halo before" : "halo"} x=${before ? x - 8 : end + 22} y=${y + 4}><tspan class="fork-id">${plain(id)}</tspan> ${label}</text>
</g>`;

/** @param {Marks} marks @param {number} x */
const line = ({ height }, x) => svg`<path class="playhead-line" d=${`M${x} ${RULER}V${height - 4}`}/>`;

/** The tape, with a line of the playhead under what is written. @param {Marks} marks @param {number} selected -1 without one @param {number} [a] @param {boolean} [still] the line is drawn elsewhere */
const drawing = (marks, selected, a = -1, still = false) => svg`
  <path class="ruler-line" d=${`M14 ${RULER + 4}H${marks.width - 14}`}/>
  ${each(marks.ruler.filter(({ x }) => [selected, a].every((i) => i < 0 || Math.abs(x - marks.xs[i]) > PLAYHEAD_GAP)), (_, i) => i, ({ x, text }) => svg`<g><path class="tick" d=${`M${x} ${RULER + 1}v6`}/><text class=${x < 20 ? "axis start" : "axis"} x=${x} y="15">${text}</text></g>`)}
  ${marks.nowX ? svg`<text class="axis now-label" x=${marks.nowX + 6} y="15">now</text>` : null}
  ${each(marks.dotted, (_, i) => i, ({ x, width }) => svg`<path class="unowned" d=${`M${x} ${MIDDLE - 7}h${width}`}/>`)}
  ${each(marks.clips, (_, i) => i, drawClip)}
  ${each(marks.hatched, (_, i) => i, ({ x, width }) => svg`<rect class="hatched" x=${x} y=${CLIP + HEADER} width=${Math.max(0, width)} height=${BODY} fill="url(#hatch)"/>`)}
  ${each(marks.arcs, (_, i) => i, (arc) => drawArc(arc))}
  ${selected < 0 || still ? null : line(marks, marks.xs[selected])}
  ${each(marks.forks, ({ id }) => id, drawFork)}
  ${each(marks.effects, ({ index }) => index, drawEffect)}
  ${each(marks.notches, ({ index }) => index, (notch) => drawNotch(notch, selected))}
  ${each(marks.gaps, (_, i) => i, drawGap)}
  ${each(marks.names, ({ index }) => index, ({ x, y, text, index, faint }) => svg`<text class=${`name halo${faint ? " faint" : ""}${index === selected ? " selected" : ""}`} x=${x} y=${y}>${plain(text)}</text>`)}
`;

export const hatch = svg`<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path class="hatch-line" d="M0 0v6"/></pattern></defs>`;

/** @param {number} x @param {number} seq */
function flag(x, seq) {
  const text = String(seq);
  const half = Math.max(14, text.length * 3.8 + 8);
  return svg`<g class="playhead"><path class="flag" d=${`M${x - half} 2h${2 * half}v13l${-half} 6l${-half} -6z`}/><text x=${x} y="14">${text}</text></g>`;
}

/** @param {Marks} marks @param {number} a @param {number} index */
const fromA = ({ xs, height }, a, index) => svg`<g class="from-a">
  <rect x=${Math.min(xs[a], xs[index])} y=${RULER + 2} width=${Math.abs(xs[a] - xs[index])} height=${height - RULER - 6}/>
  <path d=${`M${xs[a]} ${RULER}V${height - 4}`}/>
  <rect class="letter" x=${xs[a] - 8} y="8" width="16" height="15" rx="3"/><text x=${xs[a]} y="20">A</text></g>`;

/** What a screen reader says of an entry. @param {Story} story @param {number} index */
export function valueText({ entries }, index) {
  const entry = entries[index];
  const { added = 0, removed = 0, changed = 0 } = entry.changed_counts ?? {};
  const counts = [added && `${added} added`, removed && `${removed} removed`, changed && `${changed} changed`].filter(Boolean);
  return [`entry ${entry.seq}`, `${kindText(entry.kind)} ${plain(entry.name)}`, entry.owner ? `held by ${plain(entry.owner)}` : "", entry.damaged ? "damaged" : "", ...counts].filter(Boolean).join(", ");
}

/** The nearest entry to an x. @param {number[]} xs @param {number} x */
export function nearest(xs, x) {
  let [low, high] = [0, xs.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] > x) high = middle;
    else low = middle;
  }
  return x - xs[low] > xs[high] - x ? high : low;
}

const hover = signal(-1);

/** @param {Marks} marks @param {Story} story */
function card(marks, { entries }) {
  const entry = entries[hover.value];
  if (!entry) return null;
  const x = Math.min(Math.max(marks.xs[hover.value], 130), marks.width - 130);
  return html`<div class="hover-card" .style=${{ left: `${x}px`, top: `${CLIP_END + 8}px` }}>
    <b>${count(entry.seq)} ${plain(title(entry))}</b> <span class="soft">${kindText(entry.kind)} · ${clock(Date.parse(entry.at) / 1000)} · ${size(entry.bytes)}</span>
    ${entry.changed?.length ? html`<div class="mono">${plain(entry.changed.join(", ")).slice(0, 160)}</div>` : null}${entry.damaged ? html`<div class="s-failed">damaged: ${plain(entry.damaged)}</div>` : null}</div>`;
}

/** A finger first scrolls; what it taps is selected. */
let touched = false;

/**
 * @param {{marks: Marks, story: Story, index: number, a: number, onselect: (index: number) => void, label: string, still?: number}} view
 * `a` is -1 without A; `still`: the playhead stands still, this wide is the tape that scrolls under it
 */
export function tape({ marks, story, index, a, onselect, label, still = 0 }) {
  const { entries } = story;
  /** @param {PointerEvent} event */
  const at = (event) => {
    const drawn = /** @type {Element} */ (event.currentTarget).querySelector("svg");
    return nearest(marks.xs, event.clientX - /** @type {Element} */ (drawn).getBoundingClientRect().left);
  };
  /** @param {PointerEvent} event */
  function choose(event) {
    // The log has the same links for the keyboard: a slider has no children that take focus.
    const fork = /** @type {Element} */ (event.target).closest("[data-href]");
    if (fork) go(/** @type {string} */ (fork.getAttribute("data-href")));
    else onselect(at(event));
  }
  /** @param {PointerEvent} event */
  const down = (event) => {
    if (event.button) return;
    hover.value = -1;
    touched = event.pointerType === "touch";
    if (touched) return;
    /** @type {Element} */ (event.currentTarget).setPointerCapture(event.pointerId);
    choose(event);
  };
  const tap = (/** @type {PointerEvent} */ event) => touched && choose(event);
  /** @param {PointerEvent} event */
  const move = (event) => {
    if (event.pointerType === "touch") return;
    if (event.buttons & 1) onselect(at(event));
    else hover.value = at(event);
  };
  const slider = html`<div class="tape" role="slider" tabindex="0" aria-label=${label} aria-valuemin=${entries[0].seq} aria-valuemax=${entries[entries.length - 1].seq}
      aria-valuenow=${entries[index].seq} aria-valuetext=${valueText(story, index)} data-x=${marks.xs[index]} .style=${{ "padding-inline": `${still / 2}px` }}
      @pointerdown=${down} @pointermove=${move} @click=${tap} @pointerleave=${() => (hover.value = -1)}>
      <svg width=${marks.width} height=${marks.height} aria-hidden="true">${hatch}
        ${a >= 0 ? fromA(marks, a, index) : null}
        ${drawing(marks, index, a, still > 0)}
        ${still ? null : flag(marks.xs[index], entries[index].seq)}
      </svg>
    </div>`;
  if (!still) return html`<div class="tape-scroll" ref=${keepInView}>${slider}${card(marks, story)}</div>`;
  return html`<div class="tape-still"><div class="tape-scroll" ref=${scrollUnder} .view=${{ marks, index, onselect }}>${slider}</div>
    <svg class="playhead-still" width="80" height=${marks.height} aria-hidden="true">${line(marks, 40)}${flag(40, entries[index].seq)}</svg></div>`;
}

// Milliseconds without a scroll after which the tape moves on to the entry next to the playhead.
const RESTS = 140;

/** The playhead stands still in the middle, and the entry under it is selected. @param {any} scroller whose `view` is what is drawn now */
function scrollUnder(scroller) {
  const slider = /** @type {HTMLElement} */ (scroller.querySelector(".tape"));
  // Only a person's scrolling selects: a tape that is laid out anew scrolls by itself, too.
  let [held, scrolling, timer] = [false, false, 0];
  const under = () => nearest(scroller.view.marks.xs, scroller.scrollLeft);
  function snap() {
    if (held) return;
    scrolling = false;
    const { marks, index } = scroller.view;
    if (Math.abs(scroller.scrollLeft - marks.xs[index]) >= 1) scroller.scrollLeft = marks.xs[index];
  }
  function rest() {
    clearTimeout(timer);
    timer = setTimeout(snap, RESTS);
  }
  function scrolled() {
    const { index, onselect } = scroller.view;
    if (scrolling && under() !== index) onselect(under());
    rest();
  }
  function begin() {
    scrolling = true;
    rest();
  }
  const touch = (/** @type {TouchEvent} */ { touches }) => {
    held = touches.length > 0;
    begin();
  };
  for (const kind of ["touchstart", "touchend", "touchcancel"]) scroller.addEventListener(kind, touch, { passive: true });
  scroller.addEventListener("wheel", begin, { passive: true });
  scroller.addEventListener("scroll", scrolled);
  // Another entry, or the same one elsewhere as the tape is zoomed or grows.
  new MutationObserver(() => {
    if (!scrolling || under() !== scroller.view.index) scroller.scrollLeft = scroller.view.marks.xs[scroller.view.index];
  }).observe(slider, { attributeFilter: ["data-x", "aria-valuenow"] });
  snap();
}

/** A tape wider than the screen scrolls so that its playhead stays in sight, and where it is while one zooms. @param {HTMLElement} scroller */
function keepInView(scroller) {
  const slider = /** @type {HTMLElement} */ (scroller.querySelector(".tape"));
  let [before, wide] = [Number(slider.dataset.x), scroller.scrollWidth];
  const follow = () => {
    const x = Number(slider.dataset.x);
    if (scroller.scrollWidth !== wide) scroller.scrollLeft += x - before;
    [before, wide] = [x, scroller.scrollWidth];
    const { scrollLeft, clientWidth } = scroller;
    if (x < scrollLeft + 60 || x > scrollLeft + clientWidth - 60) scroller.scrollLeft = x - clientWidth / 2;
  };
  new MutationObserver(follow).observe(slider, { attributeFilter: ["data-x"] });
  follow();
}

/** What a rollback would look like: a small tape with the dashed arc to its target. @param {Marks} marks @param {number} target @param {number} next */
export function planned(marks, target, next) {
  const x = marks.xs[marks.xs.length - 1] + 10;
  return html`<div class="tape-scroll" tabindex="0"><svg class="planned-tape" width=${marks.width} height="104" viewBox=${`0 ${RULER} ${marks.width} 104`} aria-hidden="true">${hatch}
    ${each(marks.dotted, (_, i) => i, (d) => svg`<path class="unowned" d=${`M${d.x} ${MIDDLE}h${d.width}`}/>`)}
    ${each(marks.clips, (_, i) => i, (clip) => drawClip({ ...clip, label: "" }))}
    <rect class="hatched" x=${marks.xs[target] + 3} y=${CLIP} width=${x - marks.xs[target] - 3} height=${BODY + HEADER} fill="url(#hatch)"/>
    ${each(marks.notches, (n) => n.index, (notch) => drawNotch({ ...notch, faint: notch.index > target, pinned: false }, -1))}
    ${drawArc({ x, to: marks.xs[target], level: 0, label: "" }, true)}
    <circle class="planned-ring" cx=${x} cy=${MIDDLE} r="5"/>
    <text class="planned-label" x=${Math.min(x, marks.width - 20)} y=${CLIP_END + 12}>${next}, new</text></svg></div>`;
}

/** A tape to look at: without a playhead. @param {Marks} marks */
export const exampleTape = (marks) => html`<div class="tape-scroll" tabindex="0"><div class="tape still"><svg width=${marks.width} height=${marks.height} aria-hidden="true">${hatch}${drawing(marks, -1)}</svg></div></div>`;
