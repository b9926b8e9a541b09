// @ts-check
/** How many sessions need a person, orphans and failures of the last hour; the tab and the title carry it on every screen. */
import { Failure, get, me } from "./api.js";
import { effect, signal } from "./view.js";

// Seconds back that a failure counts, and between two counts; Now counts more often.
export const HOUR = 3600;
const EVERY = 30;

export const needing = signal(0);

/** Failures are counted by reason, however many there are. Pure. @param {{items: readonly {state: string}[], reasons: readonly {sessions: number}[]}} failures as `/v1/failures` sends them */
export const inNeed = ({ items, reasons }) => reasons.reduce((sum, { sessions }) => sum + sessions, 0) + items.filter(({ state }) => state === "orphaned").length;

let timer = 0;
async function look() {
  clearTimeout(timer);
  timer = setTimeout(look, EVERY * 1000);
  if (document.hidden) return;
  try {
    needing.value = inNeed(await get("/failures", { since: HOUR }));
  } catch (error) {
    if (!(error instanceof Failure)) throw error; // counted again later
  }
}
effect(() => {
  if (me.value) look();
});
