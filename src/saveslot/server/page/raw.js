// @ts-check
/** The state as JSON, as it was saved, and what it is rebuilt from. */
import { apiUrl, sessionPath } from "./api.js";
import { copyText } from "./copy.js";
import { count, many, plain, size } from "./format.js";
import { sessionUrl } from "./places.js";
import { each, html, memo } from "./view.js";

/** @typedef {import("./states.js").Recipe} Recipe */

// Characters that are drawn at once; the export has all.
const MOST = 400_000;
const KINDS = { keyframe: "keyframe", long: "long patch", short: "patch" };

const text = memo((/** @type {any} */ data) => JSON.stringify(data, null, 2));

/** "keyframe 3 and 4 patches, 1.2 KB of 1.5 KB". Pure. @param {Recipe} recipe */
export function recipeText({ frames, stored_bytes: stored, state_bytes: state }) {
  const patches = frames.filter(({ kind }) => kind !== "keyframe").length;
  const keyframe = frames.find(({ kind }) => kind === "keyframe");
  return `${keyframe ? `keyframe ${count(keyframe.seq)}` : "no keyframe"}${patches ? ` and ${many(patches, "patch", "patches")}` : ""}, ${size(stored)} stored for ${size(state)}`;
}

/** The frames that a state is rebuilt from. It was just read, so its digest is right. @param {string} id @param {Recipe | null} recipe */
const recipeView = (id, recipe) => (recipe?.frames.length ? html`<details class="recipe"><summary>${recipeText(recipe)} <span class="soft">· digest <span class="mono">${recipe.digest.slice(0, 8)}…${recipe.digest.slice(-4)}</span> ✓</span></summary>
  <table class="plain-table"><thead><tr><th class="c-number">Entry</th><th>Frame</th><th class="c-number">Bytes</th></tr></thead><tbody>${each(recipe.frames, ({ seq }) => seq, ({ seq, kind, bytes }) => html`<tr><td class="c-number"><a href=${`${sessionUrl(id, String(seq))}&tab=raw`}>${count(seq)}</a></td><td>${KINDS[kind]}</td><td class="c-number">${count(bytes)}</td></tr>`)}</tbody></table>
  <p class="soft">Digest <span class="mono digest">${recipe.digest}</span> of the rebuilt state; it was checked as the state was read.</p></details>` : null);

/** A large state is not drawn, but can be had whole. @param {string} id @param {number} seq @param {Recipe | null} recipe */
export const rawLink = (id, seq, recipe) => html`<p class="boxed note-box">This state is large. <a href=${apiUrl(`${sessionPath(id)}/checkpoints/${seq}`)} download=${`${id}-${seq}.json`}>Download it as JSON</a>, or open it in parts under State.</p>${recipeView(id, recipe)}`;

/** @param {string} id @param {number} seq @param {any} data @param {Recipe | null} recipe */
export function raw(id, seq, data, recipe) {
  const whole = text(data);
  return html`<div class="raw-head soft mono">${plain(`${id}:${seq}`)} <span class="push"></span><button class="quiet" @click=${() => copyText(whole, "the state as JSON")}>copy JSON</button></div>
    ${recipeView(id, recipe)}<pre class="mono raw" tabindex="0">${plain(whole.slice(0, MOST))}${whole.length > MOST ? "\n…" : ""}</pre>`;
}
