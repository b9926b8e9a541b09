// @ts-check
/** Entries of all sessions as lines. */
import { CHECKPOINTS, STEPS, kindText } from "./entries.js";
import { clock, count, plain, size } from "./format.js";
import { shapeAt } from "./icons.js";
import { sessionUrl } from "./places.js";
import { each, html, svg } from "./view.js";

/** @typedef {import("./stream.js").Entry} Entry */

/** @param {string} kind */
function mark(kind) {
  if (CHECKPOINTS.has(kind)) return svg`<path class="bar" d="M6 2v8"/>`;
  if (STEPS.has(kind)) return svg`<path class=${`diamond ${kind === "step_failed" ? "failed" : ""}`} d="M6 2l4 4l-4 4l-4 -4z"/>`;
  if (["paused", "completed", "failed"].includes(kind)) return shapeAt(kind);
  return svg`<path class="arrow-mark" d="M2 6h7M6.500 3.500l2.500 2.500l-2.500 2.500"/>`;
}

/** @param {string} timestamp @returns {string} its milliseconds, as .042 */
const fraction = (timestamp) => `.${String(new Date(timestamp).getMilliseconds()).padStart(3, "0")}`;

/** @param {string} kind @param {string} name */
const called = (kind, name) => (CHECKPOINTS.has(kind) || STEPS.has(kind) ? plain(name) : "");

/** Newest first, none twice: what was read may come again as news. Pure. @param {readonly Entry[]} came @param {readonly Entry[]} known @param {number} most */
export function merged(came, known, most) {
  const entries = new Map([...came, ...known].map((entry) => [`${entry.session_id}:${entry.seq}`, entry]));
  return [...entries.values()].slice(0, most);
}

/** @param {Entry} e @param {boolean} brief */
const line = (e, brief) => html`<li>
  <span class="e-time soft">${clock(Date.parse(e.timestamp) / 1000)}${brief ? null : html`<span class="ms">${fraction(e.timestamp)}</span>`}</span><svg class="rail e-mark" width="12" height="12" aria-hidden="true">${mark(e.kind)}</svg>
  ${brief ? null : html`<span class=${e.kind === "step_failed" || e.kind === "failed" ? "e-kind s-failed" : "e-kind soft"}>${kindText(e.kind)}</span>`}
  <a class="e-id" href=${sessionUrl(e.session_id, String(e.seq))}>${plain(e.session_id)}</a>
  ${brief ? null : html`<span class="e-seq soft">${count(e.seq)}</span>`}
  <span class="e-name mono">${brief ? called(e.kind, e.name) || kindText(e.kind) : called(e.kind, e.name) || html`<span class="on-phone soft">${kindText(e.kind)}</span>`}</span>
  ${brief ? null : html`<span class="e-agent soft">${plain(e.agent_type ?? "")}</span><span class="e-owner soft">${plain(e.owner ?? "")}</span><span class="e-bytes soft">${e.bytes === null ? "" : size(e.bytes)}</span>`}</li>`;

/** @type {[WeakMap<Entry, ReturnType<typeof line>>, WeakMap<Entry, ReturnType<typeof line>>]} */
const lines = [new WeakMap(), new WeakMap()];
/** An entry never changes, so its line is made once. @param {Entry} entry @param {boolean} brief */
function lineOf(entry, brief) {
  const known = lines[Number(brief)];
  const drawn = known.get(entry) ?? line(entry, brief);
  known.set(entry, drawn);
  return drawn;
}

/** @param {readonly Entry[]} entries @param {boolean} [brief] */
export const eventRows = (entries, brief = false) => html`<ul class=${brief ? "event-rows brief" : "event-rows"}>${each(entries, (e) => `${e.session_id}:${e.seq}`, (e) => lineOf(e, brief))}</ul>`;
