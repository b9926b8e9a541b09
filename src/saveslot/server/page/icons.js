// @ts-check
/** Shapes of 12 or 16 pixels. Each state has its own, so that none is told by colour alone. */
import { html, svg } from "./view.js";

/** @typedef {"active" | "paused" | "completed" | "failed" | "orphaned" | "late" | "unknown" | "deleted"} StateWord */

/** @param {string} word @param {number} [x] @param {number} [y] the centre */
export function shapeAt(word, x = 6, y = 6) {
  const move = `translate(${x - 6} ${y - 6})`;
  switch (word) {
    case "active":
      return svg`<circle class="s-active fill" transform=${move} cx="6" cy="6" r="4"/>`;
    case "paused":
      return svg`<path class="s-paused stroke" transform=${move} d="M4 2v8M8 2v8"/>`;
    case "completed":
      return svg`<path class="s-completed stroke" transform=${move} d="M2 6.500l2.800 3L10 3"/>`;
    case "failed":
    case "deleted":
      return svg`<path class="s-failed stroke" transform=${move} d="M2.500 2.500l7 7M9.500 2.500l-7 7"/>`;
    case "orphaned":
      return svg`<circle class="s-orphaned stroke dashed" transform=${move} cx="6" cy="6" r="4.200"/>`;
    case "unknown":
      return svg`<path class="s-orphaned stroke" transform=${move} d="M4 4a2 2 0 1 1 2.600 2q-.6.300-.6 1.200M6 9.300v.4"/>`;
    default:
      return svg`<path class="s-paused stroke" transform=${move} d="M6 3v3.500l2 1.200M6 1.200a4.800 4.800 0 1 0 .01 0z"/>`;
  }
}

/** @param {string} word */
export const shape = (word) => html`<svg class="shape" width="12" height="12" viewBox="0 0 12 12" aria-hidden="true">${shapeAt(word)}</svg>`;

/** A state as word, shape and colour. @param {string} word @param {boolean} [chip] */
export const stateWord = (word, chip = false) => html`<span class=${`state s-${word === "late" ? "paused" : word}${chip ? " chip" : ""}`}>${shape(word)} ${word}</span>`;

const PATHS = /** @type {Record<string, string>} */ ({
  search: "M7 2.500a4.500 4.500 0 1 0 .01 0zM10.300 10.300L14 14",
  theme: "M8 2a6 6 0 1 0 .01 0zM8 2v12a6 6 0 0 1 0-12z",
  settings: "M2 5h7M13 5h1M2 11h1M7 11h7M11 3v4M5 9v4",
  now: "M1 8h3l2-5 3 10 2-5h4",
  sessions: "M2 4h12M2 8h12M2 12h12",
  storage: "M2.500 3h11v4h-11zM2.500 9h11v4h-11z",
  analytics: "M3 14V8M8 14V2M13 14V6",
  events: "M3 2v12M6 4h7M6 8h5M6 12h7",
  back: "M10 3L5 8l5 5",
  first: "M4 3v10M13 3L7 8l6 5z",
  previous: "M12 3L5 8l7 5z",
  next: "M4 3l7 5-7 5z",
  last: "M12 3v10M3 3l6 5-6 5z",
  fork: "M4 2v12M4 9c6 0 7-2 7-5M9 4l2-2 2 2",
  close: "M4 4l8 8M12 4l-8 8",
});

/** @param {string} name */
export const icon = (name) => html`<svg class=${`icon i-${name}`} width="16" height="16" viewBox="0 0 16 16" aria-hidden="true"><path d=${PATHS[name]} /></svg>`;

export const brand = html`<svg class="brand-mark" width="26" height="20" viewBox="0 0 26 20" aria-hidden="true"><rect class="ink" y="3" width="16" height="13" rx="3"/><path class="paper" d="M4 6v7M8 7v5M12 8v3"/><path class="ink-line" d="M16 9.500h8"/><path class="cursor-line" d="M20.500 0v20"/></svg>`;
