// @ts-check
/** A button of an action: it says why it cannot be used. */
import { html } from "./view.js";

/** A button that says why it cannot be used, instead of vanishing. @param {string} text @param {string} key @param {string} why @param {() => void} run @param {string} [look] */
export const actionButton = (text, key, why, run, look = "") => html`<button class=${look} disabled=${Boolean(why)} title=${why || null} aria-label=${why ? `${text}: ${why}` : null} @click=${run}>${text}${why.startsWith("needs scope") ? html`<span class="needs">${why}</span>` : key ? html`<kbd aria-hidden="true">${key}</kbd>` : null}</button>`;
