// @ts-check
/** Tokens of the server, and what this browser keeps. */
import { apiUrl, freshKey, get, me, missing, send, signedOut } from "./api.js";
import { now } from "./clock.js";
import { cli, copyButtons, copyHere, copyText, curl } from "./copy.js";
import { ask } from "./dialog.js";
import { count, limit, plain, short, size, span } from "./format.js";
import { singleKeys } from "./keys.js";
import { toast } from "./toast.js";
import { each, html, signal } from "./view.js";

/** @typedef {{sessions: number | null, bytes: number | null, checkpoints_per_minute: number | null}} Limits */
/** @typedef {Limits & {namespace: string, used: Limits}} Quota a limit that is null does not count */
/** @typedef {{name: string, scope: string, namespaces: string[] | null, created_at: string, expires_at: string | null, last_used: string | null, expired: boolean}} Token */

const DAY = 86400;
const SCOPES = /** @type {[string, string][]} */ ([["read", "look at everything"], ["write", "and change sessions"], ["admin", "and tokens, gc, erasure"]]);

// What this browser keeps is read where it is used; this only draws the choice anew.
const kept = signal(0);
/** @param {string} name @param {string} value @param {() => void} [apply] */
function keep(name, value, apply) {
  if (value) localStorage.setItem(name, value);
  else localStorage.removeItem(name);
  apply?.();
  kept.value++;
}

export function settingsScreen() {
  const tokens = signal(/** @type {Token[] | null} */ (null));
  const quotas = signal(/** @type {Quota[]} */ ([]));
  const trouble = signal("");
  const load = () => get("/tokens").then(({ items }) => (tokens.value = items)).catch((error) => (trouble.value = error.message));
  if (!missing("admin")) {
    load();
    get("/quotas").then(({ items }) => (quotas.value = items)).catch((error) => (trouble.value = error.message));
  }

  /** Shown once: the server keeps only its hash. @param {string} name @param {string} text */
  const show = (name, text) => ask({
    title: `Token ${plain(name)}`,
    body: () => html`<p class="lead">It is shown this once; the server keeps only its hash.</p><p class="boxed code mono secret">${text}</p><button type="button" @click=${() => copyText(text, "the token")}>Copy</button>`,
  });

  function create() {
    const name = signal("");
    const scope = signal("read");
    const days = signal("30");
    const field = (/** @type {{value: string}} */ s) => (/** @type {Event} */ e) => (s.value = /** @type {HTMLInputElement} */ (e.target).value);
    const first = tokens.peek()?.length === 0;
    const key = freshKey();
    const body = () => ({ name: name.value || "NAME", scope: scope.value, ...(days.value && { expires_at: new Date(Date.now() + Number(days.value) * DAY * 1000).toISOString() }) });
    ask({
      title: "Create a token?",
      body: () => html`${first ? html`<p class="card tint-failed">It is the first one: from then on this server asks everybody for a token, this page too. Make it an admin token, or keep the command line at hand.</p>` : null}
        <label class="field">Name <input required maxlength="200" autofocus .value=${name.value} @input=${field(name)}></label>
        <fieldset class="scopes"><legend>Scope</legend>${SCOPES.map(([word, text]) => html`<label><input type="radio" name="scope" value=${word} .checked=${scope.value === word} @change=${field(scope)}> <b>${word}</b> <span class="soft">${text}</span></label>`)}</fieldset>
        <label class="field">Days until it expires, empty for never <input type="number" min="1" max="3650" .value=${days.value} @input=${field(days)}></label>`,
      copy: () => copyButtons({ curl: curl(apiUrl("/tokens"), { method: "POST", body: body() }) }),
      verb: "Create the token",
      act: async () => {
        const made = await send("POST", "/tokens", { body: body(), key });
        show(made.name, made.token);
        load();
      },
    });
  }

  /** @param {Token} token */
  const rotate = ({ name }) => ask({
    title: `Rotate token ${plain(name)}?`,
    body: () => html`<p class="lead">It gets a new secret; the old one is refused from then on, on every server.</p>`,
    copy: () => copyButtons({ curl: curl(apiUrl(`/tokens/${encodeURIComponent(name)}/rotate`), { method: "POST" }) }),
    verb: "Rotate the token",
    act: async () => show(name, (await send("POST", `/tokens/${encodeURIComponent(name)}/rotate`)).token),
  });

  /** @param {Token} token */
  const revoke = ({ name }) => ask({
    title: `Revoke token ${plain(name)}?`,
    body: () => html`<p class="lead">Whatever uses it is refused from then on. The last admin token cannot be revoked.</p>`,
    copy: () => copyButtons({ curl: curl(apiUrl(`/tokens/${encodeURIComponent(name)}`), { method: "DELETE" }) }),
    verb: "Revoke the token",
    danger: true,
    act: async () => {
      await send("DELETE", `/tokens/${encodeURIComponent(name)}`);
      load();
      toast(`Revoked ${plain(name)}.`);
    },
  });

  async function signOut() {
    await send("DELETE", "/me");
    me.value = null;
    signedOut.value = true;
  }

  /** @param {Token} token */
  function row(token) {
    const { name, scope, namespaces, last_used: used, expires_at: expires, expired } = token;
    const left = expires ? Date.parse(expires) / 1000 - now.value : Infinity;
    return html`<tr><td><b>${plain(name)}</b>${name === me.value?.name ? html` <span class="badge">this page</span>` : null}</td><td class="mono">${scope}</td><td class="c-block">${namespaces ? plain(namespaces.join(", ")) : "all"}<span class="on-phone soft"> ${namespaces?.length === 1 ? "namespace" : "namespaces"}</span></td>
      <td class="c-number" data-of="used">${used ? `${short(now.value - Date.parse(used) / 1000)} ago` : "never"}</td><td data-of="expires" class=${`c-number ${expired ? "s-failed" : left < 7 * DAY ? "s-paused" : ""}`}>${expired ? "expired" : expires ? `in ${short(left)}` : "never"}</td>
      <td class="c-number"><button class="quiet" @click=${() => rotate(token)}>Rotate</button><button class="quiet s-failed" @click=${() => revoke(token)}>Revoke…</button></td></tr>`;
  }

  /** @param {number | null} used @param {number | null} limit @param {(n: number) => string} text */
  const use = (used, limit, text) => (limit === null ? html`<span class="soft">no limit</span>` : html`<span class=${used !== null && used >= limit ? "s-failed" : ""}>${used === null ? "–" : text(used)}</span> <span class="soft">of ${text(limit)}</span>`);
  /** @param {Quota} quota */
  const quotaRow = ({ namespace, used, ...limit }) => html`<tr><td><b>${plain(namespace)}</b></td><td class="c-number" data-of="sessions">${use(used.sessions, limit.sessions, count)}</td><td class="c-number" data-of="bytes">${use(used.bytes, limit.bytes, size)}</td><td class="c-number" data-of="a minute">${use(used.checkpoints_per_minute, limit.checkpoints_per_minute, count)}</td></tr>`;

  /** @param {string} text @param {[string, string][]} choices value and word @param {string} value @param {(value: string) => void} choose */
  const choice = (text, choices, value, choose) => html`<div><dt>${text}</dt><dd><span class="segments">${choices.map(([v, word]) => html`<button aria-pressed=${String(v === value)} @click=${() => choose(v)}>${word}</button>`)}</span></dd></div>`;

  /** @param {import("./api.js").Me} mine @returns {[string, string][]} */
  const serverFacts = ({ version, store, hot, worker_ttl: ttl, streams, limits }) => [
    ["Version", version], ["Store", `${plain(store)}${hot ? ", with a hot tier" : ""}`], ["Workers", `dead after ${span(ttl)} of silence`],
    ["Streams", `${count(streams)} of ${count(limits.streams)} open`], ["Requests", `${count(limits.requests)} at a time, up to ${limit(limits.body_bytes)} each`], ["State", `up to ${limit(limits.state_bytes)}`],
  ];

  function view() {
    void kept.value;
    const mine = me.value;
    const why = missing("admin");
    return html`<h1>Settings</h1><div class="settings"><div class="stack"><section class="panel" aria-label="Tokens"><header class="panel-head"><h2>Tokens</h2><span class="soft">stored hashed; a new one is shown once</span><span class="push"></span>
        <button disabled=${Boolean(why)} title=${why || null} @click=${create}>New token…</button></header>
        ${why ? html`<p class="pad soft">${why}</p>` : trouble.value ? html`<p class="pad trouble">${trouble.value}</p>` : !tokens.value ? null : tokens.value.length
          ? html`<div class="table-wrap" tabindex="0"><table class="tokens cards"><thead><tr><th>Name</th><th>Scope</th><th>Namespaces</th><th class="c-number">Last used</th><th class="c-number">Expires</th><th><span class="hidden">Actions</span></th></tr></thead><tbody>${each(tokens.value, ({ name }) => name, row)}</tbody></table></div>`
          : html`<p class="pad soft">No tokens yet: anybody on this machine may do everything, and requests from elsewhere are refused.</p>`}</section>
      ${quotas.value.length ? html`<section class="panel" aria-label="Quotas"><header class="panel-head"><h2>Quotas</h2><span class="soft">what namespaces have used of theirs</span></header>
        <div class="table-wrap" tabindex="0"><table class="plain-table wide cards"><thead><tr><th>Namespace</th><th class="c-number">Sessions</th><th class="c-number">Bytes</th><th class="c-number">A minute</th></tr></thead><tbody>${each(quotas.value, ({ namespace }) => namespace, quotaRow)}</tbody></table></div></section>` : null}</div>
      <div class="stack"><section class="panel" aria-label="This browser"><header class="panel-head"><h2>This browser</h2></header><dl class="facts">
        ${choice("Theme", [["light", "light"], ["dark", "dark"], ["", "system"]], localStorage.getItem("saveslot.theme") ?? "", (value) => keep("saveslot.theme", value, () => (document.documentElement.dataset.theme = value)))}
        ${choice("Times", [["", "UTC"], ["local", "local"]], localStorage.getItem("saveslot.times") ?? "", (value) => keep("saveslot.times", value))}
        ${choice("Single keys", [["", "on"], ["off", "off"]], singleKeys() ? "" : "off", (value) => keep("saveslot.keys", value))}</dl></section>
      <section class="panel" aria-label="This server"><header class="panel-head"><h2>This server</h2><span class="push"></span>${copyHere({ cli: cli(["doctor"]), curl: curl(apiUrl("/me")) })}</header><dl class="facts">
        <div><dt>You are</dt><dd>${mine?.name ? plain(mine.name) : "someone on this machine"}</dd></div><div><dt>Scope</dt><dd>${mine?.scope}</dd></div><div><dt>Namespaces</dt><dd>${mine?.namespaces ? plain(mine.namespaces.join(", ")) : "all"}</dd></div>
        ${mine ? serverFacts(mine).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`) : null}
        ${mine?.name ? html`<div><dt></dt><dd><button @click=${signOut}>Sign out</button></dd></div>` : null}</dl></section></div></div>`;
  }

  const shortcuts = () => [{ keys: ["y"], text: "copy as CLI", run: () => copyText(cli(["doctor"]), "the command"), where: "Settings" }];

  return { title: "Settings", view, shortcuts, dispose: () => {} };
}
