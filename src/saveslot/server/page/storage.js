// @ts-check
/** Where the bytes are. */
import { apiUrl, get } from "./api.js";
import { bars, withTable } from "./charts.js";
import { cli, copyHere, copyText, curl } from "./copy.js";
import { count, many, milliseconds, plain, size } from "./format.js";
import { shape } from "./icons.js";
import { retention } from "./retention.js";
import { each, html, signal } from "./view.js";

const SORTS = /** @type {[string, string][]} */ ([["patches", "patches"], ["keyframes", "keyframes"], ["steps", "step results"], ["rows", "other entries"]]);
const STATUS = /** @type {Record<string, string>} */ ({ healthy: "completed", slow: "late", failing: "failed" });

/** What figures rest on. @param {{sessions: number, entries: number, whole: boolean}} looked @param {number} sessions all there are */
export function ofWhat(looked, sessions) {
  if (looked.whole) return `of all ${many(sessions, "session")}`;
  return looked.sessions === sessions ? `of the newest ${many(looked.entries, "entry", "entries")} of all ${many(sessions, "session")}` : `of the newest ${many(looked.sessions, "session")}, ${many(looked.entries, "entry", "entries")}`;
}

export function storageScreen() {
  const storage = signal(/** @type {any} */ (null));
  const trouble = signal("");
  const load = () => get("/storage").then((value) => (storage.value = value)).catch((error) => (trouble.value = error.message));
  load();
  const purging = retention(load);

  /** @param {any} s */
  function figures(s) {
    /** @type {[string, string][]} */
    const values = [
      ...(s.entries ? [/** @type {[string, string]} */ ([size(s.stored_bytes), `the whole store: ${many(s.entries, "entry", "entries")} of all namespaces`])] : []),
      ...(s.ratio === null ? [] : [/** @type {[string, string]} */ ([size(s.checkpoint_bytes), `in checkpoints ${ofWhat(s.looked_at, s.sessions)}`]), /** @type {[string, string]} */ ([size(s.whole_bytes), `if each were a whole copy: ${s.ratio.toFixed(1)} times as much`])]),
      ...(s.bytes_per_checkpoint === null ? [] : [/** @type {[string, string]} */ ([size(Math.round(s.bytes_per_checkpoint)), `a checkpoint, for ${size(Math.round(s.state_bytes))} of state`])]),
      [count(s.sessions), "sessions in this namespace"],
    ];
    return html`<section class="panel counters figures-of" aria-label="Totals">${values.map(([value, text]) => html`<div class="counter"><b>${value}</b><span class="soft">${text}</span></div>`)}</section>`;
  }

  /** @param {any} s */
  function sorts(s) {
    const total = SORTS.reduce((sum, [name]) => sum + s.by_sort[name], 0) || 1;
    const bar = html`<div class="sort-bar" role="img" aria-label=${SORTS.map(([name, text]) => `${text} ${size(s.by_sort[name])}`).join(", ")}>${SORTS.map(([name]) => html`<i class=${`sort-${name}`} .style=${{ width: `${(100 * s.by_sort[name]) / total}%` }}></i>`)}</div>
      <p class="sort-legend">${SORTS.map(([name, text]) => html`<span><i class=${`sort-${name}`}></i>${text} ${size(s.by_sort[name])}</span>`)}</p>`;
    return html`<section class="panel" aria-label="Where the bytes are"><header class="panel-head"><h2>Where the bytes are</h2><span class="soft">${ofWhat(s.looked_at, s.sessions)}</span></header><div class="pad">${s.sessions ? html`${bar}
      <div class="table-wrap" tabindex="0"><table class="plain-table"><thead><tr><th>Agent</th><th class="c-number">Sessions</th><th class="c-number">Stored</th><th class="c-number c-wide">A session, p50 · p99</th><th class="c-number">Ratio</th></tr></thead><tbody>
      ${each(s.by_agent_type, (/** @type {any} */ a) => a.agent_type, (a) => html`<tr><td><b>${plain(a.agent_type)}</b></td><td class="c-number">${count(a.sessions)}</td><td class="c-number">${size(a.stored_bytes)}</td><td class="c-number c-wide">${size(a.per_session_p50)} · ${size(a.per_session_p99)}</td><td class="c-number">${a.ratio ? `${a.ratio.toFixed(1)} ×` : "–"}</td></tr>`)}</tbody></table></div>` : html`<p class="soft">nothing yet</p>`}</div></section>`;
  }

  /** @param {any} s */
  function written(s) {
    const days = /** @type {{start: string, bytes: number}[]} */ (s.written_per_day);
    const day = (/** @type {{start: string}} */ { start }) => start.slice(0, 10);
    return html`<section class="panel" aria-label="Written"><header class="panel-head"><h2>Written</h2><span class="soft">bytes a day that are still stored, over 30 days</span></header><div class="pad">
      ${days.length ? withTable("written", html`${bars(days.map(({ bytes }) => bytes), { height: 160, label: "bytes written a day", look: "tall" })}<div class="chart-axis soft"><span>${day(days[0])}</span><span>most ${size(Math.max(...days.map(({ bytes }) => bytes)))}</span><span>today</span></div>`, [["day", "bytes"], ...days.map((d) => [day(d), size(d.bytes)])]) : html`<p class="soft">nothing yet</p>`}</div></section>`;
  }

  /** @param {any} s */
  const tiers = (s) => html`<section class="panel" aria-label="Tiers"><header class="panel-head"><h2>Tiers</h2><span class="soft">as this server sees them since it was started</span></header><div class="table-wrap" tabindex="0"><table class="plain-table wide cards"><thead><tr><th>Tier</th><th>State</th><th>Role</th><th class="c-number">Calls</th><th class="c-number">p50</th><th class="c-number">p99</th><th class="c-number">Hits</th></tr></thead><tbody>
    ${each(s.tiers, (/** @type {any} */ tier) => tier.name, (tier) => html`<tr><td><b>${plain(tier.name)}</b></td><td><span class=${`state s-${tier.status === "healthy" ? "active" : tier.status === "slow" ? "paused" : "failed"}`}>${shape(STATUS[tier.status] ?? "late")} ${tier.status}</span></td><td class="soft c-block">${tier.role}</td><td class="c-number" data-of="calls">${count(tier.calls)}</td><td class="c-number" data-of="p50">${milliseconds(tier.p50_ms)}</td><td class="c-number" data-of="p99">${milliseconds(tier.p99_ms)}</td><td class="c-number" data-of="hits">${tier.hit_rate === null ? "–" : `${Math.round(tier.hit_rate * 100)} %`}</td></tr>`)}</tbody></table></div></section>`;

  const shortcuts = () => [{ keys: ["r"], text: "read again", run: load, where: "Storage" }, { keys: ["y"], text: "copy as CLI", run: () => copyText(cli(["stats"]), "the command"), where: "Storage" }];

  function view() {
    const s = storage.value;
    return html`<div class="headline"><h1>Storage and retention</h1><span class="push"></span>${copyHere({ cli: cli(["stats"]), curl: curl(apiUrl("/storage")) })}<button @click=${load}>Read again<kbd aria-hidden="true">r</kbd></button></div>
      ${trouble.value ? html`<p class="trouble">${trouble.value}</p>` : null}
      ${s ? html`${figures(s)}<div class="halves">${sorts(s)}${written(s)}</div>${purging()}${tiers(s)}` : html`<div class="panel loading"></div>`}`;
  }

  return { title: "Storage", view, shortcuts, dispose: () => {} };
}
