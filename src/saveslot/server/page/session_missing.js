// @ts-check
/** A session that cannot be shown: deleted, unknown here, or unreadable. */
import { cli } from "./copy.js";
import { plain } from "./format.js";
import { trailTable } from "./trail.js";
import { html } from "./view.js";

/** @param {string} id @param {import("./api.js").Failure} failure @param {import("./trail.js").Trail | null} trail */
export function missingView(id, failure, trail) {
  if (trail) return html`<section class="panel pad missing"><h1>${plain(id)} was deleted</h1><p>Its data cannot be read any more; this is what happened to it.</p>${trailTable(trail)}</section>`;
  if (failure.status === 404) return html`<section class="panel pad missing"><h1>There is no session ${plain(id)} here</h1><p>It may have been deleted or purged, be in another namespace, or the id may be incomplete.</p><p><a href=${`/sessions?text=${encodeURIComponent(id)}`}>Search for it</a> · <code>${cli(["audit", id])}</code> shows what happened to a deleted one.</p></section>`;
  return html`<section class="panel pad missing"><h1>${plain(id)} cannot be shown</h1><p>${failure.message}</p></section>`;
}
