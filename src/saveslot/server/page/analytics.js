// @ts-check
/** Many sessions at once: when they save, how far they get, how long it takes, why they fail. */
import { apiUrl, get } from "./api.js";
import { logHistogram, withTable } from "./charts.js";
import { cli, copyHere, copyText, curl } from "./copy.js";
import { clipped, count, many, moment, plain, size, span } from "./format.js";
import { place, replace, withQuery } from "./places.js";
import { effect, each, html, signal } from "./view.js";

// Stages of the funnel that are drawn.
const STAGES = 12;
const DAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const SPANS = /** @type {[string, string, number][]} */ ([["", "all", 0], ["1d", "24 hours", 1], ["7d", "7 days", 7], ["30d", "30 days", 30]]);

export function analyticsScreen() {
  const analytics = signal(/** @type {any} */ (null));
  const agents = signal(/** @type {string[]} */ ([]));
  const trouble = signal("");
  const query = () => place.value.query;

  const wanted = () => {
    const days = SPANS.find(([name]) => name === (query().get("since") ?? ""))?.[2];
    const [first, then] = [query().get("from"), query().get("to")];
    return {
      agent_type: query().get("agent"),
      since: days ? new Date(Date.now() - days * 86_400_000).toISOString() : null,
      ...(first && then && { first, then }),
    };
  };
  let asked = 0;
  function load() {
    const mine = ++asked;
    get("/analytics", wanted()).then((value) => {
      if (mine !== asked || place.peek().path !== "/analytics") return;
      analytics.value = value;
      trouble.value = "";
      // The first pair of names that sessions go through, until one is chosen.
      const [first, ...others] = value.funnel;
      if (!query().get("from") && others.length) replace(withQuery({ from: first.name, to: others[others.length - 1].name }));
    }).catch((error) => (trouble.value = error.message));
  }
  get("/sessions/facets", { level: "cached" }).then((facets) => (agents.value = Object.keys(facets.by_agent_type))).catch(() => {});
  /** Those that can be chosen, and the one that is. */
  const listed = () => [...new Set([query().get("agent") ?? "", ...agents.value])].filter(Boolean);
  const stop = effect(() => {
    wanted();
    load();
  });

  /** @param {string} label @param {string} name @param {string} value @param {[string, string][]} options */
  const choice = (label, name, value, options) => html`<select aria-label=${label} @change=${(/** @type {Event} */ e) => replace(withQuery({ [name]: /** @type {HTMLSelectElement} */ (e.target).value || null }))}>${options.map(([v, text]) => html`<option value=${v} selected=${v === value}>${text}</option>`)}</select>`;

  /** @param {number[][]} hours */
  function heatmap(hours) {
    const most = Math.max(1, ...hours.flat());
    const cells = html`<div class="heatmap" role="img" aria-label="Checkpoints by weekday and hour, UTC">${hours.map((row, day) => html`<span class="soft">${DAYS[day]}</span>${row.map((n, hour) => html`<i title=${`${DAYS[day]} ${String(hour).padStart(2, "0")}:00, ${many(n, "checkpoint")}`} .style=${{ "--heat": String(Math.sqrt(n / most)) }}></i>`)}`)}
      <span></span>${hours[0].map((_, hour) => html`<span class="soft hour">${hour % 3 ? "" : String(hour).padStart(2, "0")}</span>`)}</div>`;
    return withTable("heatmap", cells, [["", ...hours[0].map((_, hour) => hour)], ...hours.map((row, day) => [DAYS[day], ...row])]);
  }

  /** @param {{name: string, reached: number, failed_after: number}[]} funnel */
  function stages(funnel) {
    const top = Math.max(1, ...funnel.map(({ reached }) => reached));
    const chart = html`<ul class="funnel">${each(funnel.slice(0, STAGES), ({ name }) => name, ({ name, reached, failed_after: failed }) => html`<li><span class="mono">${clipped(name, 40)}</span><span class="stage" .style=${{ "--reached": String(reached / top), "--lost": String(failed / top) }}></span><span><b>${count(reached)}</b> <span class="soft">${((100 * reached) / top).toFixed(0)} %</span>${failed ? html` <span class="s-failed">✗ ${count(failed)}</span>` : null}</span></li>`)}</ul><p class="soft">${[funnel.some(({ failed_after: failed }) => failed) ? "✗ failed, with this as their last checkpoint" : "", funnel.length > STAGES ? `${many(funnel.length - STAGES, "more name")} in the table` : ""].filter(Boolean).join("; ")}</p>`;
    return withTable("funnel", chart, [["name", "reached", "failed after it"], ...funnel.map((f) => [plain(f.name), f.reached, f.failed_after])]);
  }

  /** @param {Record<string, number>} reasons */
  function failures(reasons) {
    const rows = Object.entries(reasons).slice(0, 12);
    if (!rows.length) return html`<p class="soft">none failed</p>`;
    return html`<ul class="funnel reasons">${rows.map(([reason, n]) => html`<li><span class="mono">${clipped(reason || "(no reason given)", 60)}</span><span class="stage" .style=${{ "--reached": "0", "--lost": String(n / rows[0][1]) }}></span><b>${count(n)}</b></li>`)}</ul>`;
  }

  /** @param {any} p @param {(value: number) => string} text */
  const percentiles = (p, text) => (p?.count ? html`<span class="push soft">${["p50", "p90", "p99", "max"].map((word) => html`<span class="figure">${word === "max" ? "most" : word} <b>${text(p[word])}</b></span> `)}</span>` : null);

  const shortcuts = () => [{ keys: ["r"], text: "read again", run: load, where: "Analytics" }, { keys: ["y"], text: "copy as CLI", run: () => copyText(command(), "the command"), where: "Analytics" }];
  const command = () => {
    const [agent, since, first, then] = ["agent", "since", "from", "to"].map((name) => query().get(name));
    return cli(["stats", ...(agent ? ["--agent", agent] : []), ...(since ? ["--newer-than", since] : []), ...(first && then ? ["--between", first, then] : [])]);
  };

  function view() {
    const a = analytics.value;
    const head = html`<div class="headline"><h1>Analytics</h1><span class="push"></span>${choice("Agent", "agent", query().get("agent") ?? "", [["", "all agents"], ...listed().map((name) => /** @type {[string, string]} */ ([name, plain(name)]))])}
      ${choice("Created within", "since", query().get("since") ?? "", SPANS.map(([v, text]) => [v, v ? `last ${text}` : "all times"]))}${copyHere({ cli: command(), curl: curl(apiUrl("/analytics", wanted())) })}</div>`;
    if (!a) return html`${head}${trouble.value ? html`<p class="trouble">${trouble.value}</p>` : html`<div class="panel loading"></div>`}`;
    if (!a.sessions) return html`${head}${trouble.value ? html`<p class="trouble">${trouble.value}</p>` : null}<section class="panel pad missing"><h2>Nothing to count</h2><p>No session matches. Choose all agents or a longer time, or save the first session: <a href="/">Now</a> shows how.</p></section>`;
    const { looked_at: looked, between } = a;
    const names = Object.keys(a.by_name).map((name) => /** @type {[string, string]} */ ([name, clipped(name, 40)]));
    return html`${head}${trouble.value ? html`<p class="trouble">${trouble.value}</p>` : null}<p class="sentence">Counts are of all ${many(a.sessions, "matching session")}, the charts of <b>${looked.whole ? `all their ${many(looked.entries, "entry", "entries")}` : looked.sessions === a.sessions ? `their newest ${many(looked.entries, "entry", "entries")}` : `${many(looked.entries, "entry", "entries")} of the newest ${count(looked.sessions)}`}</b>${looked.since ? `, back to ${moment(Date.parse(looked.since) / 1000)}` : ""}.</p>
      <div class="halves"><section class="panel" aria-label="When they save"><header class="panel-head"><h2>When they save</h2><span class="soft">checkpoints by weekday and hour, UTC</span></header><div class="pad">${heatmap(a.heatmap)}</div></section>
        <section class="panel" aria-label="How far they get"><header class="panel-head"><h2>How far they get</h2><span class="soft">sessions that reached each name</span></header><div class="pad">${stages(a.funnel)}</div></section></div>
      <section class="panel" aria-label="Time between"><header class="panel-head"><h2>Time between</h2>${choice("From", "from", query().get("from") ?? "", names)} → ${choice("To", "to", query().get("to") ?? "", names)}<span class="soft">${between ? many(between.count, "pair") : ""}</span>${percentiles(between, span)}</header>
        <div class="pad">${a.histograms.between?.length ? logHistogram(a.histograms.between, between, span, "time between") : html`<p class="soft">no session went from one to the other</p>`}</div></section>
      <div class="thirds"><section class="panel" aria-label="Until completed"><header class="panel-head"><h2>Until completed</h2><span class="soft">${many(a.durations.completed.count, "session")}</span></header><div class="pad">${logHistogram(a.histograms.until_completed, a.durations.completed, span, "until completed")}</div></section>
        <section class="panel" aria-label="Bytes a session"><header class="panel-head"><h2>Bytes a session</h2><span class="soft">as stored</span></header><div class="pad">${logHistogram(a.histograms.bytes_per_session, a.bytes.per_session, (v) => size(Math.round(v)), "bytes a session")}</div></section>
        <section class="panel" aria-label="Why they fail"><header class="panel-head"><h2>Why they fail</h2><span class="soft">${many(a.failures.read, "failure")} read</span></header><div class="pad">${failures(a.failures.reasons)}</div></section></div>`;
  }

  return { title: "Analytics", view, shortcuts, dispose: stop };
}
