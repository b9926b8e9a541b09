// @ts-check
/** How the store, the keeper of this server and the workers are. */
import { count, many, milliseconds, plain, short } from "./format.js";
import { shape } from "./icons.js";
import { html } from "./view.js";

const LOOKS = /** @type {Record<string, [string, string]>} */ ({ healthy: ["completed", "s-active"], slow: ["late", "s-paused"], failing: ["failed", "s-failed"] });

/** @param {any} stats @param {readonly any[] | null} tiers */
export function healthView(stats, tiers) {
  if (!stats || !tiers) return null;
  const silent = stats.workers.filter((/** @type {any} */ worker) => !worker.alive);
  const { keeper } = stats;
  /** @param {string} name @param {string} look @param {string} mark @param {string} word @param {unknown} note */
  const line = (name, look, mark, word, note) => html`<li><b>${name}</b><span class=${`state ${look}`}>${shape(mark)} ${word}</span>${note ? html`<span class="soft">${note}</span>` : null}</li>`;
  return html`<section class="panel" aria-label="Health"><header class="panel-head"><h2>Health</h2><span class="push"></span><a class="quiet-link" href="/storage">storage</a></header><ul class="health">
    ${tiers.map((tier) => line(tier.name, LOOKS[tier.status][1], LOOKS[tier.status][0], tier.status, tier.p99_ms === null ? "" : `p99 ${milliseconds(tier.p99_ms)}${tier.hit_rate === null ? "" : ` · hits ${Math.round(tier.hit_rate * 100)} %`}`))}
    ${line("keeper", keeper.errors ? "s-failed" : keeper.running ? "s-active" : "soft", keeper.errors ? "failed" : keeper.running ? "completed" : "paused", keeper.running ? "running" : "not in this server", keeper.last_error ? plain(keeper.last_error) : keeper.taken_over ? `${many(keeper.taken_over, "takeover")} so far` : "")}
    ${line("workers", silent.length ? "s-failed" : "s-active", silent.length ? "failed" : "completed", silent.length ? `${count(silent.length)} silent` : `${count(stats.workers.length)} alive`, silent.length ? `${plain(silent[0].name)}, ${short(Date.now() / 1000 - Date.parse(silent[0].silent_since) / 1000)}` : stats.held ? `${many(stats.held, "session")} held` : "")}
  </ul></section>`;
}
