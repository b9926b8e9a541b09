// @ts-check
/** The log beside the state: one row an entry, deaths as rows of their own, and the rollback arcs as brackets. */
import { CHECKPOINTS, STEPS, remark, title } from "./entries.js";
import { count, many, plain, short, span } from "./format.js";
import { icon, shapeAt } from "./icons.js";
import { sessionUrl } from "./places.js";
import { each, html, svg } from "./view.js";

/** @typedef {import("./entries.js").Story} Story */
/** @typedef {{key: string, index: number, top: number, height: number, died: number}} Row `died`: seconds of silence, or 0 */

const ROW = 28;
const LINE = 16;
const AHEAD = 400;

/** Rows with their places; pure. @param {Story} story @param {boolean} checkpoints only those @returns {Row[]} */
export function rows({ entries, clips }, checkpoints) {
  const deaths = new Map(clips.filter(({ end }) => end === "died").map((clip) => [clip.last, clip]));
  /** @type {Row[]} */
  const all = [];
  let top = 0;
  entries.forEach((entry, index) => {
    if (checkpoints && !CHECKPOINTS.has(entry.kind)) return;
    const height = ROW + (entry.changed?.length ? LINE : 0) + (entry.forks?.length ?? 0) * LINE;
    all.push({ key: `${entry.seq}`, index, top, height, died: 0 });
    top += height;
    const death = deaths.get(index);
    if (!death || checkpoints) return;
    const next = entries[index + 1];
    const died = Number.isNaN(death.silentSince) || !next ? 1 : Date.parse(next.at) / 1000 - death.silentSince;
    all.push({ key: `${entry.seq}+`, index, top, height: ROW, died });
    top += ROW;
  });
  return all;
}

/** @param {import("./entries.js").Header} entry */
function mark(entry) {
  if (CHECKPOINTS.has(entry.kind)) return entry.kind === "rollback" ? svg`<circle class="ring" cx="6" cy="14" r="4"/>` : svg`<path class="bar" d="M0 14h12"/>`;
  if (STEPS.has(entry.kind)) return svg`<path class=${`diamond ${entry.step?.status ?? ""}`} d="M6 9.500l4.500 4.500l-4.500 4.500l-4.500 -4.500z"/>`;
  if (["paused", "completed", "failed"].includes(entry.kind)) return shapeAt(entry.kind, 6, 14);
  return svg`<circle class="dot" cx="6" cy="14" r="1.800"/>`;
}

/** Where the list is scrolled to, in pixels, and how high it is. @typedef {{top: number, height: number}} Scroll */

/**
 * @param {{story: Story, rows: Row[], index: number, scroll: {value: Scroll}, total: number, checkpoints: boolean, onselect: (index: number) => void, onfilter: (checkpoints: boolean) => void, ref: (element: HTMLElement) => void}} view
 */
export function log({ story, rows, index, scroll, total, checkpoints, onselect, onfilter, ref }) {
  const { entries, clips } = story;
  const height = rows.length ? rows[rows.length - 1].top + rows[rows.length - 1].height : 0;
  const { top, height: seen } = scroll.value;
  const visible = rows.filter((row) => row.top + row.height > top - AHEAD && row.top < top + seen + AHEAD);
  const owner = clipOf(clips);
  return html`<section class="panel log" aria-label="Log">
    <header class="panel-head"><h2>Log</h2> <span class="soft">${many(total, "entry", "entries")}${total > entries.length ? `, ${count(entries.length)} loaded` : ""}</span>
      <span class="segments push">
        <button aria-pressed=${String(!checkpoints)} @click=${() => onfilter(false)}>all</button>
        <button aria-pressed=${String(checkpoints)} @click=${() => onfilter(true)}>checkpoints</button>
      </span></header>
    <div class="log-rows" tabindex="0" role="region" aria-label="Entries" ref=${ref} @scroll=${(/** @type {Event} */ e) => (scroll.value = box(/** @type {HTMLElement} */ (e.currentTarget)))}>
      <ol .style=${{ height: `${height}px` }}>${each(visible, (row) => row.key, (row) => line(story, row, row.index === index && !row.died, owner(row.index), onselect))}</ol>
      ${brackets(story, rows, top - AHEAD, top + seen + AHEAD)}
    </div></section>`;
}

/** @param {HTMLElement} element @returns {Scroll} */
export const box = (element) => ({ top: element.scrollTop, height: element.clientHeight });

/** @param {import("./entries.js").Clip[]} clips @returns {(index: number) => import("./entries.js").Clip | undefined} */
const clipOf = (clips) => (index) => clips.find((clip) => clip.first <= index && index <= clip.last);

/** @param {Story} story @param {Row} row @param {boolean} selected @param {import("./entries.js").Clip | undefined} clip @param {(index: number) => void} onselect */
function line({ entries, behind }, { index, top, height, died }, selected, clip, onselect) {
  const place = { top: `${top}px`, height: `${height}px` };
  if (died) {
    return html`<li class="log-row death" .style=${place}><span class="seq"></span><svg class="rail" width="12" height="28" aria-hidden="true"><path class="torn died" d="M6 0l3 4l-6 5l6 5l-6 5l6 5l-3 4"/></svg>
      <span class="what"><b class="s-failed">✗ died</b>, ${span(died)} silent</span></li>`;
  }
  const entry = entries[index];
  const note = remark(entry);
  const failed = entry.kind === "step_failed" || entry.kind === "failed";
  const unknown = entry.step?.status === "unknown" && entry.kind === "step_started";
  const gap = index ? (Date.parse(entry.at) - Date.parse(entries[index - 1].at)) / 1000 : 0;
  const faint = behind.has(entry.seq);
  return html`<li class=${`log-row${selected ? " selected" : ""}${faint ? " faint" : ""}`} .style=${place} aria-current=${selected ? "true" : null} @click=${() => onselect(index)}>
    <span class="seq">${count(entry.seq)}</span>
    <svg class=${`rail ${clip ? `o${clip.color}-head-bg` : "unowned-rail"}${faint ? " faint" : ""}`} width="12" height=${height} aria-hidden="true">${mark(entry)}</svg>
    <span class="what"><span class="first"><button class=${CHECKPOINTS.has(entry.kind) ? "entry-name strong" : "entry-name"} tabindex="-1">${plain(title(entry))}</button>
      ${unknown ? html`<span class="s-orphaned">began, end unknown</span>` : note ? html`<span class=${failed ? "s-failed" : "soft"}>${plain(note)}</span>` : null}
      ${entry.pinned ? html`<span class="badge">pinned</span>` : null}${entry.thinned ? html`<span class="badge">thinned</span>` : null}
      ${entry.damaged ? html`<span class="badge s-failed">damaged</span>` : null}</span>
      ${entry.changed?.length ? html`<span class="changed">${plain(entry.changed.join(", "))}</span>` : null}
      ${(entry.forks ?? []).map((fork) => html`<a class="fork-link" href=${sessionUrl(fork.id)}>${icon("fork")} ${plain(fork.id)} <span class=${`s-${fork.state}`}>${fork.state}</span></a>`)}
    </span>
    <span class="gap-cell">${gap >= 0.95 ? `+${short(gap)}` : ""}</span></li>`;
}

/** @param {Story} story @param {Row[]} rows @param {number} from @param {number} to */
function brackets({ rollbacks }, rows, from, to) {
  if (!rollbacks.length || !rows.length) return null;
  const at = new Map(rows.filter((row) => !row.died).map((row) => [row.index, row.top + 14]));
  const drawn = rollbacks.flatMap((rollback) => {
    const [start, end] = [at.get(rollback.to), at.get(rollback.from)];
    return start === undefined || end === undefined || end < from || start > to ? [] : [{ start, end }];
  });
  const height = rows[rows.length - 1].top + rows[rows.length - 1].height;
  return html`<svg class="brackets" width="24" height=${height} aria-hidden="true">${each(drawn, (d) => `${d.start}-${d.end}`, ({ start, end }) =>
    svg`<path d=${`M8 ${end}h6q4 0 4 -4V${start + 4}q0 -4 -4 -4h-6`}/><path class="arrow" d=${`M12 ${start - 3.5}v7l-6 -3.500z`}/>`)}</svg>`;
}

/** Scroll so that an entry's row is in sight. @param {HTMLElement} element @param {Row[]} rows @param {number} index */
export function reveal(element, rows, index) {
  const row = rows.find((r) => r.index === index);
  if (!row) return;
  const { scrollTop, clientHeight } = element;
  if (row.top < scrollTop + ROW) element.scrollTop = row.top - 2 * ROW;
  else if (row.top + row.height > scrollTop + clientHeight - ROW) element.scrollTop = row.top + row.height - clientHeight + 2 * ROW;
}
