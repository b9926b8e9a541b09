// @ts-check
/** What would happen if this session's worker died now: where work goes on, and which steps are open. */
import { now } from "./clock.js";
import { clock, count, many, plain, span } from "./format.js";
import { icon, shape } from "./icons.js";
import { html } from "./view.js";

/** @typedef {{name: string, key: string | null, started_at: string, owner: string, idempotency_key: string}} OpenStep */
/**
 * @typedef {object} Outlook
 * @property {string} state
 * @property {{seq: number, name: string, at: string} | null} goes_on_from
 * @property {{finished: number, failed: number, running: number, retrying: number, unknown: OpenStep[]}} steps
 * @property {{worker: string, left_s: number, silent_since: string | null, late: boolean} | null} owner
 * @property {string | null} orphaned_since
 * @property {{reason: string, at: string} | null} failure
 * @property {number | null} reason_today_count
 * @property {number} attempts
 * @property {string | null} next_attempt_at
 * @property {string[]} allowed
 * @property {Record<string, string>} refused
 */

/** @param {string | null | undefined} at */
const ago = (at) => span(Math.max(0, now.value - Date.parse(at ?? "") / 1000));

/** @param {Outlook} outlook @param {boolean} orphaned */
function opening({ state, owner, orphaned_since, steps, failure }, orphaned) {
  if (orphaned) return html`<b>Orphaned for ${ago(orphaned_since)}.</b> ${owner?.worker ? `${plain(owner.worker)} is silent.` : failure?.reason ? plain(failure.reason) : "Its owner left by an exception."}`;
  if (state === "completed") return html`<b>Completed.</b> It stays as it is; fork it to continue from there.`;
  if (state === "failed") return html`<b>Failed.</b> ${plain(failure?.reason ?? "")}`;
  if (state === "paused") return html`<b>Paused.</b> It waits until it is resumed.`;
  if (!owner) return html`<b>Active, held by no worker.</b>`;
  const open = steps.running + steps.retrying;
  return html`<b>At work, ${open ? `${many(open, "step")} open` : "nothing open"}.</b> If its worker dies now:`;
}

/** @param {Outlook} outlook @param {boolean} orphaned */
export function outlookView(outlook, orphaned) {
  const { goes_on_from: from, steps, state, reason_today_count: today, next_attempt_at: next } = outlook;
  const word = orphaned ? "orphaned" : state;
  const ended = state === "completed";
  return html`<div class=${`outlook tint-${word}`}><p>${opening(outlook, orphaned)}</p><ul>
    ${from && !ended ? html`<li>${icon("events")}<span>work goes on from <b>${count(from.seq)} ${plain(from.name)}</b>, ${ago(from.at)} old</span></li>` : ended ? null : html`<li>${icon("events")}<span>there is no checkpoint yet: work starts over</span></li>`}
    ${steps.finished ? html`<li>${shape("completed")}<span>${many(steps.finished, "finished step")} ${steps.finished === 1 ? "is" : "are"} <b>not</b> repeated</span></li>` : null}
    ${steps.failed ? html`<li>${shape("failed")}<span>${many(steps.failed, "failed step")}: run again only when told to</span></li>` : null}
    ${steps.running ? html`<li>${shape("late")}<span>${many(steps.running, "step")} running: unknown if the worker dies</span></li>` : null}
    ${steps.unknown.map((step) => html`<li>${shape("unknown")}<span><b>${plain(step.name)}</b>${step.key ? html` <span class="mono">${plain(step.key)}</span>` : null} began at ${clock(Date.parse(step.started_at) / 1000)} and no entry tells if it ended. Find out before the work goes on.</span></li>`)}
    ${steps.unknown.length + steps.running + steps.retrying || ended ? null : html`<li>${shape("completed")}<span>no step is open or unknown</span></li>`}
    ${today ? html`<li>${shape("failed")}<span>this reason ${today === 1 ? "once" : `${count(today)} times`} in 24 hours</span></li>` : null}
    ${orphaned && next && Date.parse(next) / 1000 > now.value ? html`<li>${shape("late")}<span>the next attempt waits until ${clock(Date.parse(next) / 1000)}</span></li>` : null}
  </ul></div>`;
}

/** In one line, for a list. @param {Outlook} outlook */
export function outlookLine({ steps, reason_today_count: today, owner }) {
  const [open] = steps.unknown;
  if (open) return html`<span class="s-orphaned">${plain(open.name)} began, end unknown</span>`;
  if (owner?.late && owner.left_s > 0) return `wait: others may claim it in ${span(owner.left_s)}`;
  return `no step is open${today ? `; this reason ${today === 1 ? "once" : `${count(today)} times`} today` : ""}`;
}
