// @ts-check
/** What happened to a session, verified: also after it was deleted or erased. */
import { Failure, get, sessionPath } from "./api.js";
import { kindText } from "./entries.js";
import { count, moment, plain } from "./format.js";
import { html, signal } from "./view.js";

/** @typedef {{state: string, lines: {seq: number, kind: string, name: string, timestamp: string, held_by: string, fence: number, token: string}[], misfit: number | null, wrong: string, unlinked: number, head: string}} Trail */

/** @param {string} id */
export function trailOf(id) {
  const trail = signal(/** @type {Trail | null} */ (null));
  const trouble = signal("");
  const load = async () => {
    try {
      trail.value = await get(`${sessionPath(id)}/audit`);
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      trouble.value = error.message;
    }
  };
  return { trail, trouble, load };
}

/** Whether each entry vouches for those before it. @param {Trail} trail */
export const verdict = ({ misfit, wrong, lines, unlinked }) => misfit !== null
  ? html`<b class="s-failed">✗ entry ${count(misfit)} was changed:</b> ${plain(wrong)}`
  : html`<b class="s-active">✓ whole:</b> each of ${count(lines.length)} entries vouches for those before it${unlinked ? `, but for ${count(unlinked)} that older versions wrote` : ""}`;

/** @param {Trail} trail */
export const trailTable = (trail) => html`<p>${verdict(trail)}</p><div class="table-wrap scrolled" tabindex="0"><table class="plain-table"><thead><tr><th class="c-number">Entry</th><th>Kind</th><th>Name</th><th>Held by</th><th>Token</th><th>Time</th></tr></thead><tbody>${trail.lines.slice(-500).map((line) => html`<tr><td class="c-number">${count(line.seq)}</td><td>${kindText(line.kind)}</td><td class="mono">${plain(line.name)}</td><td>${plain(line.held_by)}</td><td>${plain(line.token)}</td><td class="soft">${moment(Date.parse(line.timestamp) / 1000)}</td></tr>`)}</tbody></table></div>`;
