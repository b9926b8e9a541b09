// @ts-check
/** A dialog asks before something happens: a question, what it would do, and a verb with its object. */
import { Failure, signedOut } from "./api.js";
import { layOver } from "./places.js";
import { each, html, signal } from "./view.js";

/**
 * @typedef {object} Question
 * @property {string} title
 * @property {() => unknown} body
 * @property {string} [verb] without one there is nothing to do but close
 * @property {string} [cancel]
 * @property {boolean} [danger]
 * @property {string} [typed] text to be typed before the verb can be chosen
 * @property {() => unknown} [copy]
 * @property {() => Promise<unknown>} [act] closes the dialog when done
 * @property {(failure: Failure) => Promise<boolean>} [refused] true: this failure has been dealt with
 */

export const question = signal(/** @type {(Question & {id: number}) | null} */ (null));
const busy = signal(false);
const trouble = signal("");
const typed = signal("");
let ids = 0;
/** What had the focus before the first dialog. @type {Element | null} */
let before = null;

let uncovered = () => {};

/** @param {Question} asked */
export function ask(asked) {
  if (!question.peek()) {
    before = document.activeElement;
    uncovered = layOver(close);
  }
  busy.value = false;
  trouble.value = typed.value = "";
  question.value = { ...asked, id: ++ids };
}

export function close() {
  uncovered();
  question.value = null;
  refocus(before);
}

/** Give the focus back once a dialog is gone: a browser does that only for one that it closed itself. @param {Element | null} element */
export const refocus = (element) => requestAnimationFrame(() => {
  if (document.activeElement === document.body && element instanceof HTMLElement && element.isConnected) element.focus();
});

async function act() {
  const asked = question.peek();
  if (!asked?.act || busy.peek() || (asked.typed && typed.peek() !== asked.typed)) return;
  busy.value = true;
  trouble.value = "";
  try {
    await asked.act();
    if (question.peek() === asked) close();
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    // After signing in the same verb goes on, with the same key.
    if (error.status === 401) return resumeAfterSignIn();
    if (asked.refused && (await asked.refused(error))) return;
    trouble.value = error.unsure ? `Unknown whether it was done: ${error.message}. Trying again is safe: it is the same request.` : error.message;
  } finally {
    busy.value = false;
  }
}

let waits = false;
function resumeAfterSignIn() {
  waits = true;
}

/** Called when a token was accepted. */
export function signedIn() {
  signedOut.value = false;
  if (waits) act();
  waits = false;
}

export const dialogView = () => html`${each([question.value].flatMap((q) => q ?? []), (q) => q.id, (q) => html`<dialog class="dialog" aria-labelledby="dialog-title" ref=${(/** @type {HTMLDialogElement} */ d) => d.showModal()}
    @cancel=${(/** @type {Event} */ e) => { e.preventDefault(); close(); }} @click=${(/** @type {Event} */ e) => e.target === e.currentTarget && close()}>
  <form method="dialog" @submit=${(/** @type {Event} */ e) => { e.preventDefault(); act(); }}>
    <h2 id="dialog-title">${q.title}</h2>
    <div class="dialog-body" tabindex="0">${q.body()}
      ${q.typed ? html`<label class="typed">Type <b class="mono">${q.typed}</b> to go on <input autocomplete="off" autofocus .value=${typed.value} @input=${(/** @type {Event} */ e) => (typed.value = /** @type {HTMLInputElement} */ (e.target).value)}></label>` : null}
      ${trouble.value ? html`<p class="trouble" role="alert">${trouble.value}</p>` : null}</div>
    <footer>${q.copy?.()}<span class="push"></span><button type="button" autofocus=${!q.verb} @click=${close}>${q.cancel ?? (q.verb ? "Cancel" : "Close")}</button>
      ${q.verb ? html`<button class=${q.danger ? "main danger" : "main"} autofocus=${!q.typed} disabled=${busy.value || (q.typed ? typed.value !== q.typed : false)}>${q.verb}</button>` : null}</footer>
  </form></dialog>`)}`;
