// @ts-check
/** The state as JSON, as it was saved. */
import { apiUrl, sessionPath } from "./api.js";
import { copyText } from "./copy.js";
import { plain } from "./format.js";
import { html, memo } from "./view.js";

// Characters that are drawn at once; the export has all.
const MOST = 400_000;

const text = memo((/** @type {any} */ data) => JSON.stringify(data, null, 2));

/** A large state is not drawn, but can be had whole. @param {string} id @param {number} seq */
export const rawLink = (id, seq) => html`<p class="boxed note-box">This state is large. <a href=${apiUrl(`${sessionPath(id)}/checkpoints/${seq}`)} download=${`${id}-${seq}.json`}>Download it as JSON</a>, or open it in parts under State.</p>`;

/** @param {string} id @param {number} seq @param {any} data */
export function raw(id, seq, data) {
  const whole = text(data);
  return html`<div class="raw-head soft mono">${plain(`${id}:${seq}`)} <span class="push"></span><button class="quiet" @click=${() => copyText(whole, "the state as JSON")}>copy JSON</button></div>
    <pre class="mono raw" tabindex="0">${plain(whole.slice(0, MOST))}${whole.length > MOST ? "\n…" : ""}</pre>`;
}
