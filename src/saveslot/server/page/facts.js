// @ts-check
/** What is known of a session beside its log. */
import { now } from "./clock.js";
import { count, many, moment, plain, short, size, span } from "./format.js";
import { leaf } from "./values.js";
import { html } from "./view.js";

/**
 * @param {any} session @param {readonly import("./entries.js").Header[]} entries those that are loaded @param {number} total @param {boolean} sealed
 * @param {import("./long_tape.js").Overview | null} overview of the whole log, if not all of it is loaded
 */
export function factsView(session, entries, total, sealed, overview) {
  const { owner, orphaned, created_at: created, context, metadata, locked } = session;
  const all = entries.length === total;
  const known = !all && overview?.from_seq === 1 ? overview.items : entries;
  const stored = known.reduce((sum, { bytes }) => sum + bytes, 0);
  const newest = [...entries].reverse().find(({ state_bytes: bytes }) => bytes);
  const whole = entries.reduce((sum, { state_bytes: bytes }) => sum + (bytes ?? 0), 0);
  const pinned = entries.filter((entry) => entry.pinned).map(({ seq }) => seq);
  const { forked_from: forkedFrom, ...rest } = metadata ?? {};
  /** @type {[string, unknown][]} */
  const facts = [
    ["Owner", owner?.worker ? html`${orphaned ? html`<s>${plain(owner.worker)}</s> silent` : plain(owner.worker)}` : "none"],
    ...(owner ? [/** @type {[string, unknown]} */ (["Lease", `fence ${owner.fence}${orphaned ? ", ran out" : `, good for ${span(owner.left)}`}`])] : []),
    ["Created", `${moment(Date.parse(created) / 1000)}, ${short(now.value - Date.parse(created) / 1000)} ago`],
    ["Stored", `${size(stored)} in ${all || known !== entries ? many(total, "entry", "entries") : `the ${count(entries.length)} entries loaded, of ${count(total)}`}`],
    ...(newest && all ? [/** @type {[string, unknown]} */ (["State", `${size(newest.state_bytes ?? 0)}; whole copies would be ${size(whole)}`])] : []),
    ...(pinned.length ? [/** @type {[string, unknown]} */ (["Pinned", pinned.join(", ")])] : []),
    ...(forkedFrom ? [/** @type {[string, unknown]} */ (["Fork of", html`<a href=${`/sessions/${encodeURIComponent(String(forkedFrom).replace(/:\d+$/, ""))}?at=${String(forkedFrom).match(/\d+$/)?.[0] ?? ""}`}>${plain(forkedFrom)}</a>`])] : []),
    ...(sealed || locked ? [/** @type {[string, unknown]} */ (["Sealed", "this server does not have its key"])] : []),
  ];
  return html`<section class="panel" aria-label="Facts"><header class="panel-head"><h2>Facts</h2></header>
    <dl class="facts">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    ${pairs("Context", context)}${pairs("Metadata", rest)}</section>`;
}

/** @param {string} title @param {Record<string, any> | null | undefined} values */
const pairs = (title, values) => values && Object.keys(values).length
  ? html`<h3 class="facts-title">${title}</h3><dl class="facts mono">${Object.entries(values).slice(0, 50).map(([name, value]) => html`<div><dt>${plain(name)}</dt><dd>${leaf(value)}</dd></div>`)}</dl>` : null;
