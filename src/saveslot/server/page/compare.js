// @ts-check
/** Two states side by side: of one session, or of two. */
import { Failure, apiUrl, get, sessionPath } from "./api.js";
import { cli, copyHere, copyText, curl } from "./copy.js";
import { dotted, many, moment, plain, size } from "./format.js";
import { icon, stateWord } from "./icons.js";
import { SIGNS, change, words } from "./operations.js";
import { place, replace, sessionUrl, withQuery } from "./places.js";
import { smallTape } from "./small_tape.js";
import { placed } from "./states.js";
import { leaf, shown } from "./values.js";
import { effect, each, html, signal } from "./view.js";

/** @typedef {import("./operations.js").Operation} Operation */
/** @typedef {{id: string, ref: string}} Side */
/** @typedef {{path: string, a?: Operation, b?: Operation}} Row */

// Operations that are drawn one by one; more are grouped by their first key, and opened on demand.
const MOST = 2000;

/** `id@ref`, split at the last @. Pure. @param {string} text @returns {Side} */
export function parseSide(text) {
  const at = text.lastIndexOf("@");
  return at > 0 ? { id: text.slice(0, at), ref: text.slice(at + 1) } : { id: text, ref: "latest" };
}

/** Rows of the table: what went and what came in one list stand side by side. Pure. @param {readonly Operation[]} operations @returns {Row[]} */
export function rowsOf(operations) {
  /** @type {Map<string, {gone: Operation[], come: Operation[]}>} */
  const lists = new Map();
  const inList = (/** @type {Operation} */ { op, path }) => (op === "add" || op === "remove") && /\/\d+$/.test(path);
  const listOf = (/** @type {Operation} */ { path }) => path.slice(0, path.lastIndexOf("/"));
  for (const operation of operations.filter(inList)) {
    const list = lists.get(listOf(operation)) ?? { gone: [], come: [] };
    (operation.op === "remove" ? list.gone : list.come).push(operation);
    lists.set(listOf(operation), list);
  }
  return operations.flatMap((operation) => {
    if (!inList(operation)) return [{ path: operation.path, ...(operation.op === "remove" ? { a: operation } : operation.op === "add" ? { b: operation } : { a: operation, b: operation }) }];
    const list = lists.get(listOf(operation));
    lists.delete(listOf(operation));
    if (!list) return [];
    return Array.from({ length: Math.max(list.gone.length, list.come.length) }, (_, i) => ({ path: (list.come[i] ?? list.gone[i]).path, a: list.gone[i], b: list.come[i] }));
  });
}

export function compareScreen() {
  /** @typedef {{side: Side, session: any, seq: number, name: string, at: string, shape: any}} Loaded */
  const loaded = signal(/** @type {{a: Loaded, b: Loaded, operations: Operation[], summary: any, truncated: boolean} | null} */ (null));
  const trouble = signal("");
  const opened = signal(/** @type {ReadonlySet<string>} */ (new Set()));

  const query = () => place.value.query;
  const inline = () => (query().get("view") ?? (innerWidth < 700 ? "inline" : "side")) === "inline";

  /** @param {Side} side @returns {Promise<Loaded>} */
  async function read(side) {
    const path = sessionPath(side.id);
    const [session, checkpoint, { items }] = await Promise.all([get(path), get(`${path}/checkpoints/${encodeURIComponent(side.ref)}`), get("/shapes", { ids: side.id })]);
    return { side, session, seq: checkpoint.seq, name: checkpoint.name, at: checkpoint.timestamp, shape: items[0] };
  }

  let asked = 0;
  const stop = effect(() => {
    const [a, b] = ["a", "b"].map((name) => query().get(name) ?? "");
    const mine = ++asked;
    loaded.value = null;
    trouble.value = "";
    if (a && b) load(parseSide(a), parseSide(b), mine);
  });

  /** @param {Side} a @param {Side} b @param {number} mine */
  async function load(a, b, mine) {
    try {
      const [one, two] = await Promise.all([read(a), read(b)]);
      const [diff, { data }] = await Promise.all([
        get(`${sessionPath(a.id)}/diff`, { a: one.seq, b: two.seq, session_b: a.id === b.id ? null : b.id, old: true }),
        get(`${sessionPath(b.id)}/checkpoints/${two.seq}`),
      ]);
      if (mine === asked) loaded.value = { a: one, b: two, operations: placed(diff.items, data), summary: diff.summary, truncated: diff.truncated };
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      if (mine === asked) trouble.value = error.message;
    }
  }

  const swap = () => replace(withQuery({ a: query().get("b"), b: query().get("a") }));
  const shortcuts = () => [
    { keys: ["x"], text: "swap A and B", run: swap, where: "Compare" },
    { keys: ["y"], text: "copy as CLI", run: () => copyText(command(), "the command"), where: "Compare" },
  ];
  const command = () => cli(["diff", query().get("a") ?? "", query().get("b") ?? ""]);

  /** @param {"A" | "B"} letter @param {Loaded} one */
  const card = (letter, { session, seq, name, at, shape }) => html`<section class="panel pad side-card"><div class="side-line"><span class=${`letter ${letter}`}>${letter}</span><a href=${sessionUrl(session.session_id, String(seq))}><b>${plain(session.session_id)}</b></a> <span class="mono">${seq} ${plain(name)}</span><span class="push"></span>${stateWord(session.orphaned ? "orphaned" : session.state)}</div>
    <div class="soft">${moment(Date.parse(at) / 1000)}</div>${shape ? smallTape(shape, { width: 640, at: (Date.parse(at) - Date.parse(shape.created_at)) / 1000 }) : null}</section>`;

  /** @param {Row} row */
  function sideRow({ path, a, b }) {
    const long = a === b && typeof a?.value === "string" && typeof a?.old === "string";
    return html`<tr><th scope="row" class="mono">${dotted(path)}</th>
      <td class=${`mono ${a ? (a === b ? "" : "removed") : "nothing"}`}>${a ? (a === b ? long ? words(a.old, a.value, "new") : html`<del>${leafOr(a.old)}</del>` : shown(a.old)) : null}</td>
      <td class=${`mono ${b ? (a === b ? "" : "added") : "nothing"}`}>${b ? (a === b ? long ? words(b.old, b.value, "old") : html`<ins>${leafOr(b.value)}</ins>` : shown(b.value)) : null}</td></tr>`;
  }
  const leafOr = (/** @type {any} */ value) => (value !== null && typeof value === "object" ? shown(value) : leaf(value));

  /** @param {NonNullable<typeof loaded.value>} two */
  function table({ a, b, operations }) {
    if (!operations.length) return html`<p class="soft pending">Both have the same data.</p>`;
    if (inline()) return html`<ul class="operations">${each(operations, (_, i) => i, (op) => html`<li><span class=${`sign-box ${SIGNS[op.op]?.[1]}`}>${SIGNS[op.op]?.[0]}</span><span class="path mono">${dotted(op.path)}</span><span class="value mono">${change(op)}</span></li>`)}</ul>`;
    return html`<div class="compare-scroll" tabindex="0"><table class="compare"><thead><tr><th>Path</th><th>A · <span class="mono">${a.seq} ${plain(a.name)}</span></th><th>B · <span class="mono">${b.seq} ${plain(b.name)}</span></th></tr></thead><tbody>${each(rowsOf(operations), (_, i) => i, sideRow)}</tbody></table></div>`;
  }

  /** More operations than are drawn: by first key, each opened on demand. @param {NonNullable<typeof loaded.value>} two */
  function groups(two) {
    return html`${Object.entries(two.summary.by_key).map(([key, number]) => {
      const here = two.operations.filter(({ path }) => path.split("/")[1] === key.replaceAll("~", "~0").replaceAll("/", "~1"));
      const open = opened.value.has(key);
      const toggle = () => { const next = new Set(opened.peek()); if (!next.delete(key)) next.add(key); opened.value = next; };
      return html`<div class="group"><button class="quiet" aria-expanded=${String(open)} @click=${toggle}>${open ? "▾" : "▸"} <b class="mono">${plain(key)}</b> ${many(Number(number), "change")}</button>${open ? table({ ...two, operations: here }) : null}</div>`;
    })}`;
  }

  function view() {
    const two = loaded.value;
    const head = html`<div class="headline"><a class="icon-button" aria-label="Back" href=${two ? sessionUrl(two.b.side.id) : "/sessions"}>${icon("back")}</a><h1>Compare</h1><span class="soft">${two ? relation(two.a, two.b) : ""}</span><span class="push"></span>
      ${two ? copyHere({ cli: command(), curl: curl(apiUrl(`${sessionPath(two.a.side.id)}/diff`, { a: two.a.seq, b: two.b.seq, session_b: two.a.side.id === two.b.side.id ? null : two.b.side.id })) }) : null}${query().get("a") && query().get("b") ? html`<button @click=${swap}>Swap<kbd aria-hidden="true">x</kbd></button>` : null}</div>`;
    if (!query().get("a") || !query().get("b")) return html`${head}${bareView()}`;
    if (!two) return html`${head}<section class="panel pad">${trouble.value || html`<div class="grey-bars"><i></i><i></i></div>`}</section>`;
    const { summary } = two;
    return html`${head}<div class="sides">${card("A", two.a)}${card("B", two.b)}</div>
      <section class="panel" aria-label="Differences"><div class="sum-line">${[["+", "added", summary.added], ["−", "removed", summary.removed], ["~", "changed", summary.changed]].map(([sign, word, n]) => (n ? html`<b class=${`sum ${word}-text`}>${sign} ${many(n, word, word)}</b>` : null))}
        <span class="soft">${size(summary.bytes.a)} → ${size(summary.bytes.b)}</span>${summary.equal_keys.length ? html`<span class="soft">${many(summary.equal_keys.length, "key")} equal: <span class="mono">${plain(summary.equal_keys.slice(0, 8).join(", "))}${summary.equal_keys.length > 8 ? " …" : ""}</span></span>` : null}
        <span class="push"></span><span class="segments"><button aria-pressed=${String(!inline())} @click=${() => replace(withQuery({ view: "side" }))}>side by side</button><button aria-pressed=${String(inline())} @click=${() => replace(withQuery({ view: "inline" }))}>inline</button></span></div>
      ${two.truncated || two.operations.length > MOST ? groups(two) : table(two)}</section>`;
  }

  return { title: "Compare", view, shortcuts, dispose: stop };
}

/** Without two places to compare: how to choose them. */
const bareView = () => html`<section class="panel pad missing"><h2>Choose two checkpoints</h2>
  <p>Open a <a href="/sessions">session</a>, choose <b>set A here</b> at the first checkpoint, move to the second one, and choose <b>compare</b>.</p>
  <p>For two sessions, write both into the address: <code>/compare?a=SESSION@REF&amp;b=SESSION@REF</code>. A REF is a checkpoint's name or number, or <code>latest</code>.</p></section>`;

/** @param {{session: any, seq: number}} a @param {{session: any, seq: number}} b */
function relation({ session: a }, { session: b }) {
  if (a.session_id === b.session_id) return "two checkpoints of one session";
  const origin = (/** @type {any} */ session) => String(session.metadata?.forked_from ?? "");
  if (origin(b).startsWith(`${a.session_id}:`)) return `B is a fork of A, at ${origin(b).split(":").pop()}`;
  if (origin(a).startsWith(`${b.session_id}:`)) return `A is a fork of B, at ${origin(a).split(":").pop()}`;
  return origin(a) && origin(a) === origin(b) ? `both are forks at ${plain(origin(a))}` : "two sessions";
}
