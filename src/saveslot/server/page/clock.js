// @ts-check
/** One clock for everything that shows an age: it ticks once a second, and stops while the page is hidden. */
import { signal } from "./view.js";

export const now = signal(Date.now() / 1000);

// The server's clock counts, as ages are of times that it gave.
let offset = 0;

/** @param {string | null} date an HTTP Date header */
export function setServerDate(date) {
  const server = date ? Date.parse(date) : NaN;
  // The header has whole seconds: within two of them the clocks agree.
  if (server && Math.abs(server - Date.now()) > 2000) offset = server - Date.now();
}

setInterval(() => {
  if (!document.hidden) now.value = (Date.now() + offset) / 1000;
}, 1000);
