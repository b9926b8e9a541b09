// @ts-check
/** What gc would purge: always a dry run first, and applied only with the number that it showed. */
import { freshKey, missing, send } from "./api.js";
import { cli, copyButtons, curl } from "./copy.js";
import { ask } from "./dialog.js";
import { many, plain, size } from "./format.js";
import { sessionUrl } from "./places.js";
import { toast } from "./toast.js";
import { each, html, signal } from "./view.js";

/** @typedef {{sessions: string[], tombstones: string[], count: number, bytes: number}} Purge */

const DAY = 86400;
const AGES = [1, 7, 30, 90];
// Sessions that are named.
const NAMED = 12;

/** @param {() => void} changed called after a purge */
export function retention(changed) {
  const days = signal(30);
  const dry = signal(/** @type {Purge | null} */ (null));
  const trouble = signal("");

  const body = () => ({ older_than: days.peek() * DAY });
  async function run() {
    trouble.value = "";
    try {
      dry.value = await send("POST", "/gc", { body: { ...body(), dry_run: true } });
    } catch (error) {
      trouble.value = /** @type {Error} */ (error).message;
    }
  }
  if (!missing("admin")) run();

  const copies = () => copyButtons({ cli: cli(["gc", "--older-than", `${days.value}d`]), curl: curl("/v1/gc", { method: "POST", body: { ...body(), dry_run: true } }) });

  /** @param {Purge} purge */
  const apply = (purge) => ask({
    title: `Purge ${many(purge.count, "session")}?`,
    body: () => html`<p class="lead">Removes ${many(purge.sessions.length, "session")} that ended at least ${many(days.peek(), "day")} ago and ${many(purge.tombstones.length, "deleted session")}, ${size(purge.bytes)} in all. There is no undo. If it is another number by then, nothing is done.</p>`,
    copy: () => copyButtons({ cli: cli(["gc", "--older-than", `${days.peek()}d`, "--apply"]) }),
    verb: `Purge ${many(purge.count, "session")}`,
    danger: true,
    typed: String(purge.count),
    act: async () => {
      const done = await send("POST", "/gc", { body: { ...body(), dry_run: false, count: purge.count }, key: freshKey() });
      toast(`Purged ${many(done.count, "session")}.`);
      run();
      changed();
    },
  });

  return () => {
    const why = missing("admin");
    const purge = dry.value;
    return html`<section class="panel" aria-label="What would go"><header class="panel-head"><h2>What would go</h2><span class="soft">a dry run; nothing is changed</span><span class="push"></span>${copies()}
        <select aria-label="Ended at least" @change=${(/** @type {Event} */ e) => { days.value = Number(/** @type {HTMLSelectElement} */ (e.target).value); run(); }}>${AGES.map((n) => html`<option value=${n} selected=${n === days.peek()}>ended ${many(n, "day")} ago</option>`)}</select>
        <button disabled=${Boolean(why)} title=${why || null} @click=${run}>Run again</button>
        <button class="danger" disabled=${Boolean(why) || !purge?.count} title=${why || null} @click=${() => purge && apply(purge)}>Purge…</button></header>
      ${why ? html`<p class="pad soft">${why}</p>` : trouble.value ? html`<p class="pad trouble">${trouble.value}</p>` : purge
        ? html`<div class="pad"><p>${purge.count ? html`<b>${many(purge.sessions.length, "ended session")}</b> and <b>${many(purge.tombstones.length, "deleted one")}</b> would go, <b>${size(purge.bytes)}</b>.` : "Nothing is old enough to go."}</p>
          ${purge.sessions.length ? html`<p class="soft">${each(purge.sessions.slice(0, NAMED), (id) => id, (id) => html`<a class="gone-id" href=${sessionUrl(id)}>${plain(id)}</a> `)}${purge.sessions.length > NAMED ? `and ${many(purge.sessions.length - NAMED, "more", "more")}` : ""}</p>` : null}</div>`
        : html`<p class="pad soft">counting …</p>`}</section>`;
  };
}
