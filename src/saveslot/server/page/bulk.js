// @ts-check
/** One verb on many sessions, as a job of the server: who was refused, and why, stands in the dialog. */
import { apiUrl, freshKey, get, missing, send } from "./api.js";
import { curl, copyButtons } from "./copy.js";
import { ask } from "./dialog.js";
import { count, many, plain } from "./format.js";
import { each, html, signal } from "./view.js";

/** @typedef {{ids?: string[], filter?: Record<string, any>, of: number, states: Record<string, number> | null}} Choice `states` counts the chosen ones, if they are all known */
/** @typedef {{job_id: string, state: string, of: number, done: number, refused: {id: string, code: string, message: string}[], refused_count: number}} Job */

const VERBS = /** @type {[string, string, string][]} */ ([["pause", "Pause", "active"], ["resume", "Resume", "paused"], ["recover", "Recover", "failed"]]);
// Milliseconds between two looks at a job.
const LOOK = 400;

/** @param {Choice} choice */
const target = ({ ids, filter }) => (ids ? { ids } : { filter });

/** @param {Choice} choice @param {string} verb @param {string} name @param {number} number @param {() => void} done */
function confirm(choice, verb, name, number, done) {
  const body = { verb, ...target(choice) };
  const deleting = verb === "delete";
  const key = freshKey();
  ask({
    title: `${name} ${many(number, "session")}?`,
    body: () => html`<p class="lead">It runs as a job of the server. Each session is done or refused by itself${deleting ? "; deleted ones go for good when gc purges them" : ""}.</p>`,
    copy: () => copyButtons({ curl: curl(apiUrl("/bulk"), { method: "POST", body }) }),
    verb: `${name} ${many(number, "session")}`,
    danger: deleting,
    ...(deleting && { typed: String(number) }),
    act: async () => follow(await send("POST", "/bulk", { body, key }), name, done),
  });
}

/** One label of all of them. @param {Choice} choice @param {() => void} done */
function label(choice, done) {
  const [name, value, key] = [signal(""), signal(""), freshKey()];
  const body = () => ({ verb: "label", labels: { [name.value.trim()]: value.value || null }, ...target(choice) });
  const field = (/** @type {{value: string}} */ s) => (/** @type {Event} */ e) => (s.value = /** @type {HTMLInputElement} */ (e.target).value);
  ask({
    title: `Label ${many(choice.of, "session")}?`,
    body: () => html`<p class="lead">Sets one label of each; its other labels stay. It runs as a job of the server.</p>
      <label class="field">Name <input required maxlength="200" autofocus .value=${name.value} @input=${field(name)}></label>
      <label class="field">Value, empty to remove the label <input .value=${value.value} @input=${field(value)}></label>`,
    copy: () => (name.value.trim() ? copyButtons({ curl: curl(apiUrl("/bulk"), { method: "POST", body: body() }) }) : null),
    verb: `Label ${many(choice.of, "session")}`,
    act: async () => follow(await send("POST", "/bulk", { body: body(), key }), "Label", done),
  });
}

/** Show how far a job is, until it has ended. @param {Job} begun @param {string} name @param {() => void} done */
function follow(begun, name, done) {
  const job = signal(begun);
  const look = async () => {
    job.value = await get(`/jobs/${encodeURIComponent(begun.job_id)}`);
    if (job.peek().state === "running") setTimeout(look, LOOK);
    else done();
  };
  setTimeout(look, LOOK);
  ask({
    title: `${name} ${many(begun.of, "session")}`,
    body: () => html`<p class="lead" role="status">${job.value.state === "running" ? "Running: " : job.value.state === "interrupted" ? "Interrupted, its server ended: " : "Finished: "}<b>${count(job.value.done)} done</b>, <b>${count(job.value.refused_count)} refused</b> of ${count(job.value.of)}.</p>
      ${job.value.refused.length ? html`<ul class="boxed scrolled refusals" tabindex="0">${each(job.value.refused, ({ id }) => id, ({ id, message }) => html`<li><b>${plain(id)}</b> ${plain(message)}</li>`)}</ul>` : null}`,
  });
}

/** @param {Choice} choice @param {{total: number, whole: boolean, all: () => void, none: () => void, done: () => void}} list */
export function bulkBar(choice, { total, whole, all, none, done }) {
  if (!choice.of) return null;
  const why = missing("write");
  return html`<div class="bulk-bar" role="region" aria-label="Selected sessions"><b>${count(choice.of)} selected</b>
    ${whole || total <= choice.of ? null : html`<button class="link" @click=${all}>select all ${count(total)} that match</button>`}
    ${VERBS.map(([verb, name, state]) => {
      const number = choice.states ? (choice.states[state] ?? 0) : choice.of;
      return html`<button disabled=${Boolean(why) || !number} title=${why || null} @click=${() => confirm(choice, verb, name, number, done)}>${name}${choice.states ? ` ${count(number)}` : ""}</button>`;
    })}
    <button disabled=${Boolean(why)} title=${why || null} @click=${() => label(choice, done)}>Label…</button>
    <button disabled=${Boolean(why)} title=${why || null} @click=${() => confirm(choice, "delete", "Delete", choice.of, done)}>Delete…</button>
    ${why ? html`<span>${why}</span>` : null}<button @click=${none} aria-label="Select none">Esc</button></div>`;
}
