// @ts-check
/** What thinning and gc would remove: always a dry run first, and applied only with the number that it showed. */
import { apiUrl, freshKey, get, missing, send, sessionPath } from "./api.js";
import { cli, copyButtons, copyHere, curl } from "./copy.js";
import { ask } from "./dialog.js";
import { story } from "./entries.js";
import { clock, count, many, plain, size, span } from "./format.js";
import { layout } from "./layout.js";
import { sessionUrl } from "./places.js";
import { exampleTape } from "./tape.js";
import { toast } from "./toast.js";
import { each, html, memo, signal } from "./view.js";

/** @typedef {import("./entries.js").Header} Header */
/** @typedef {{sessions: string[], tombstones: string[], count: number, bytes: number}} Purge */
/** @typedef {{keep_first?: number, keep_last?: number, keep_latest_per_name?: boolean, compress_after?: number, max_checkpoints?: number, max_age?: number, max_bytes?: number, after_end?: number}} Rule what differs from a rule that keeps all; times in seconds */
/** @typedef {{sessions: number, checkpoints: number, bytes: number, pinned: number, sample: {id: string, agent_type: string, drop: number[]}[], rules: Record<string, Rule>, looked_at: number, as_of: string | null}} Thin */

const DAY = 86400;
const AGES = [1, 7, 30, 90];
const CELLS = ["sessions", "checkpoints", "frees"];
// Sessions that are named.
const NAMED = 12;

/** What a rule keeps, in words. Pure. @param {Rule} rule */
export function keeps({ keep_first: first = 1, keep_last: last, keep_latest_per_name: named = true, compress_after: over = 0, max_checkpoints: most, max_age: age, max_bytes: bytes }) {
  const some = [first === 1 ? "the first" : first ? `the first ${count(first)}` : "", last === undefined ? "" : last === 1 ? "the last" : `the last ${count(last)}`, named ? "the newest of each name" : ""].filter(Boolean).join(", ");
  const chosen = last === undefined ? "" : `${over ? `all up to ${count(over)}; over that ` : ""}${some || "the newest"}`;
  const limits = [most === undefined ? "" : `at most ${count(most)}`, age === undefined ? "" : `none older than ${span(age)}`, bytes === undefined ? "" : `at most ${size(bytes)}`].filter(Boolean);
  return [chosen, ...limits].filter(Boolean).join("; ") || "all";
}

// The rule that the command line has for sessions without one of their own; a server may have others.
const COMMANDS = JSON.stringify({ "*": { keep_last: 20, compress_after: 50, max_checkpoints: 100, after_end: 30 * DAY } });
/** Whether `saveslot thin` goes by these rules, too. Pure. @param {Record<string, Rule>} rules */
export const knownRules = (rules) => JSON.stringify(rules) === COMMANDS;

/** When a rule counts. Pure. @param {Rule} rule */
export const when = (rule) => (keeps(rule) === "all" ? "–" : rule.after_end === undefined ? "always" : `${rule.after_end % DAY ? span(rule.after_end) : many(rule.after_end / DAY, "day")} after the end`);

/** @param {() => void} changed called after something went */
export function retention(changed) {
  const days = signal(30);
  const purge = signal(/** @type {Purge | null} */ (null));
  const thin = signal(/** @type {Thin | null} */ (null));
  const example = signal(/** @type {{id: string, entries: readonly Header[], drop: ReadonlySet<number>} | null} */ (null));
  const trouble = signal("");

  const gcBody = () => ({ older_than: days.peek() * DAY });
  async function run() {
    trouble.value = "";
    try {
      const [thinned, purged] = await Promise.all([get("/thin"), missing("admin") ? null : send("POST", "/gc", { body: { ...gcBody(), dry_run: true } })]);
      thin.value = thinned;
      purge.value = purged;
      const [first] = thinned.sample;
      example.value = first ? { id: first.id, entries: (await get(`${sessionPath(first.id)}/log`, { limit: 500 })).items, drop: new Set(first.drop) } : null;
    } catch (error) {
      trouble.value = /** @type {Error} */ (error).message;
    }
  }
  run();

  /** @param {Purge} shown */
  const applyGc = (shown, key = freshKey()) => ask({
    title: `Purge ${many(shown.count, "session")}?`,
    body: () => html`<p class="lead">Removes ${many(shown.sessions.length, "session")} that ended at least ${many(days.peek(), "day")} ago and ${many(shown.tombstones.length, "deleted session")}, ${size(shown.bytes)} in all. There is no undo. If it is another number by then, nothing is done.</p>`,
    copy: () => copyButtons({ cli: cli(["gc", "--older-than", `${days.peek()}d`, "--apply"]), curl: curl(apiUrl("/gc"), { method: "POST", body: { ...gcBody(), dry_run: false, count: shown.count } }) }),
    verb: `Purge ${many(shown.count, "session")}`,
    danger: true,
    typed: String(shown.count),
    act: async () => {
      const done = await send("POST", "/gc", { body: { ...gcBody(), dry_run: false, count: shown.count }, key });
      toast(`Purged ${many(done.count, "session")}.`);
      run();
      changed();
    },
  });

  /** @param {Thin} shown */
  const applyThin = (shown, key = freshKey()) => ask({
    title: `Thin ${many(shown.sessions, "session")}?`,
    body: () => html`<p class="lead">Drops ${many(shown.checkpoints, "checkpoint")}: their entries stay, their data goes, ${size(shown.bytes)} in all, and there is no undo. A keeper frees the bytes ten minutes later. What a worker holds is left as it is; if it is another number of sessions by then, nothing is done.</p>`,
    copy: () => copyButtons({ ...(knownRules(shown.rules) && { cli: cli(["thin", "--all", "--apply"]) }), curl: curl(apiUrl("/thin"), { method: "POST", body: { dry_run: false, count: shown.sessions } }) }),
    verb: `Thin ${many(shown.sessions, "session")}`,
    danger: true,
    typed: String(shown.sessions),
    act: async () => {
      const done = await send("POST", "/thin", { body: { dry_run: false, count: shown.sessions }, key });
      toast(`Thinned ${many(done.count, "session")}${done.refused.length ? `; ${many(done.refused.length, "session")} left as ${done.refused.length === 1 ? "it is" : "they are"}: ${plain(done.refused[0].message)}` : ""}.`);
      run();
      changed();
    },
  });

  const marks = memo((/** @type {readonly Header[]} */ entries, /** @type {ReadonlySet<number>} */ drop) => layout(story(entries.map((entry) => ({ ...entry, thinned: entry.thinned || drop.has(entry.seq) }))), { width: innerWidth > 900 ? Math.min(620, innerWidth / 2 - 60) : innerWidth - 52, even: true, state: "completed" }));

  function exampleView() {
    const shown = example.value;
    if (!shown || !thin.value) return html`<p class="soft">No session has checkpoints to thin.</p>`;
    const { id, entries, drop } = shown;
    const saved = entries.filter(({ kind }) => kind === "checkpoint" || kind === "rollback").length;
    return html`<p>For example <a href=${sessionUrl(id)}>${plain(id)}</a>: <b>${count(drop.size)} of ${many(saved, "checkpoint")}</b> would go; pinned ones and the newest stay.</p>
      ${exampleTape(marks(entries, drop))}<ul class="marks"><li><i class="k-notch"></i>stays</li><li><i class="k-notch thinned"></i>would go</li></ul>
      <p class="soft">This one alone: <code>${cli(["thin", id])}</code></p>${knownRules(thin.value.rules) ? html`<p class="soft thin-all">All of them: <code>${cli(["thin", "--all"])}</code> ${copyButtons({ cli: cli(["thin", "--all"]), curl: curl(apiUrl("/thin")) })}</p>` : null}`;
  }

  /** @param {string} name @param {unknown} what @param {[unknown, unknown, unknown]} cells @param {unknown} [action] */
  const row = (name, what, cells, action) => html`<tr><td><b>${name}</b> <span class="soft">${what}</span></td>${cells.map((cell, i) => html`<td class="c-number" data-of=${CELLS[i]}>${cell}</td>`)}<td class="c-number">${action}</td></tr>`;

  /** @param {string} why */
  function table(why) {
    const [t, g] = [thin.value, purge.value];
    if (!t) return html`<p class="pad soft">${trouble.value ? "" : "counting …"}</p>`;
    const ages = html`<select aria-label="Ended at least" disabled=${Boolean(why)} @change=${(/** @type {Event} */ e) => { days.value = Number(/** @type {HTMLSelectElement} */ (e.target).value); run(); }}>${AGES.map((n) => html`<option value=${n} selected=${n === days.peek()}>ended ${many(n, "day")} ago</option>`)}</select>`;
    return html`<div class="table-wrap" tabindex="0"><table class="plain-table wide cards"><thead><tr><th>Rule</th><th class="c-number">Sessions</th><th class="c-number">Checkpoints</th><th class="c-number">Frees</th><th><span class="hidden">Action</span></th></tr></thead><tbody>
      ${row("thin", t.looked_at >= 1000 ? `of the newest ${many(t.looked_at, "session")}` : "by the rules below", [count(t.sessions), count(t.checkpoints), size(t.bytes)], html`<button class="danger" disabled=${Boolean(why) || !t.sessions} title=${why || null} @click=${() => applyThin(t)}>Thin…</button>`)}
      ${row("gc", ages, [g ? count(g.sessions.length) : "–", "all", g ? size(g.bytes) : "–"], html`<button class="danger" disabled=${Boolean(why) || !g?.count} title=${why || null} @click=${() => g && applyGc(g)}>Purge…</button>`)}
      ${row("purge", "deleted over 7 days ago; goes with gc", [g ? count(g.tombstones.length) : "–", "all", "–"])}
      ${row("kept anyway", "pinned", ["", count(t.pinned), "–"])}</tbody></table></div>
      ${g?.sessions.length ? html`<p class="pad soft">gc: ${each(g.sessions.slice(0, NAMED), (id) => id, (id) => html`<a class="gone-id" href=${sessionUrl(id)}>${plain(id)}</a> `)}${g.sessions.length > NAMED ? `and ${many(g.sessions.length - NAMED, "more", "more")}` : ""}</p>` : null}`;
  }

  /** @param {Record<string, Rule>} rules */
  const rulesView = (rules) => html`<section class="panel" aria-label="Rules"><header class="panel-head"><h2>Rules</h2><span class="soft">of this server; a session's own rule counts first</span></header><div class="table-wrap" tabindex="0"><table class="plain-table wide cards"><thead><tr><th>Agent</th><th>Keeps</th><th>When</th></tr></thead><tbody>
    ${each(Object.entries(rules).sort(([a], [b]) => Number(a === "*") - Number(b === "*")), ([name]) => name, ([name, rule]) => html`<tr><td><b>${name === "*" ? "all others" : plain(name)}</b></td><td class="c-block">${keeps(rule)}</td><td class="c-block soft">${when(rule)}</td></tr>`)}</tbody></table></div></section>`;

  return () => {
    const why = missing("admin");
    const asOf = thin.value?.as_of;
    return html`<section class="panel" aria-label="What would go"><header class="panel-head"><h2>What would go</h2><span class="soft">a dry run${asOf ? ` of ${clock(Date.parse(asOf) / 1000)}` : ""}; nothing is changed</span><span class="push"></span>
        ${copyHere({ cli: cli(["gc", "--older-than", `${days.value}d`]), curl: curl(apiUrl("/gc"), { method: "POST", body: { ...gcBody(), dry_run: true } }) })}<button @click=${run}>Run again</button></header>
      ${why ? html`<p class="pad soft">To apply it: ${why}.</p>` : null}${trouble.value ? html`<p class="pad trouble">${trouble.value}</p>` : null}
      <div class="halves going-halves"><div>${table(why)}</div><div class="pad">${exampleView()}</div></div></section>
      ${thin.value ? rulesView(thin.value.rules) : null}`;
  };
}
