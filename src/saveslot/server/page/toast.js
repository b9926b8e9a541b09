// @ts-check
/** Results of actions that cannot be seen otherwise, for ten seconds, with their undo. */
import { html, signal } from "./view.js";

/** @typedef {{text: string, undo?: () => Promise<unknown>}} Toast */
const current = signal(/** @type {Toast | null} */ (null));
let timer = 0;

/** @param {string} text @param {() => Promise<unknown>} [undo] */
export function toast(text, undo) {
  current.value = { text, undo };
  clearTimeout(timer);
  timer = setTimeout(() => (current.value = null), undo ? 10_000 : 4000);
}

/** Do what the toast offers, if it offers anything. */
export async function undo() {
  const { undo } = current.peek() ?? {};
  if (!undo) return;
  current.value = null;
  try {
    await undo();
    toast("Undone.");
  } catch (error) {
    toast(`Not undone: ${/** @type {Error} */ (error).message}`);
  }
}

export const toastView = () => html`<div class="toast-place" role="status" aria-live="polite">${current.value ? html`<div class="toast">${current.value.text} ${current.value.undo ? html`<button @click=${undo}>Undo <kbd>u</kbd></button>` : null}</div>` : null}</div>`;
