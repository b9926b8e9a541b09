// @ts-check
/** What can be done to a session: each verb says first what it will do, and never does it twice. */
import { Failure, apiUrl, freshKey, get, missing, send, sessionPath } from "./api.js";
import { curl, cli, copyButtons } from "./copy.js";
import { ask, close } from "./dialog.js";
import { story, title } from "./entries.js";
import { ago, many, plain, size } from "./format.js";
import { icon } from "./icons.js";
import { layout } from "./layout.js";
import { operationRows, summary } from "./operations.js";
import { outlookView } from "./outlook.js";
import { go, sessionUrl } from "./places.js";
import { planned } from "./tape.js";
import { toast } from "./toast.js";
import { html, signal } from "./view.js";

/** @typedef {import("./entries.js").Header} Header */
/** @typedef {import("./outlook.js").Outlook} Outlook */
/**
 * @typedef {object} Subject the session that a verb is about
 * @property {string} id
 * @property {string} state
 * @property {boolean} orphaned
 * @property {boolean} [locked] sealed with a key that this server does not have
 * @property {string} version
 * @property {{worker: string} | null} owner
 * @property {Outlook | null} outlook
 * @property {readonly Header[]} entries
 * @property {boolean} live false while the stream is lost: nothing is done on what may be old
 * @property {() => void} changed called after a write
 */

/** Why a verb cannot be used now, "" if it can. @param {Subject} subject @param {string} verb @param {"write" | "admin"} [scope] */
export function why(subject, verb, scope = "write") {
  if (!subject.live) return "no connection to the server";
  if (subject.locked && verb !== "delete" && verb !== "erase") return "sealed: this server does not have its key";
  return missing(scope) || (subject.outlook?.refused[verb] ? refusal(subject, verb) : "");
}

/** Why the session's state refuses a verb, in the words of this page. @param {Subject} subject @param {string} verb */
function refusal({ state, orphaned, owner, outlook }, verb) {
  const worker = plain(owner?.worker ?? outlook?.owner?.worker ?? "");
  if (verb === "release" || verb === "recover") return outlook?.refused[verb] ?? "";
  if (state === "completed") return "it is completed: fork it to continue from there";
  if (state === "failed") return "it failed: recover it first";
  if (worker) return orphaned ? `${worker} is silent but still holds it: release it first` : `${worker} holds it: wait, or release it first`;
  return outlook?.refused[verb] ?? "";
}

/** @param {string} version */
export const etag = (version) => `"${version}"`;

/** @param {Subject} subject @param {string} verb @param {unknown} [body] */
const post = (subject, verb, body = {}) => send("POST", `${sessionPath(subject.id)}/${verb}`, { body, ifMatch: etag(subject.version), key: freshKey() });

const PAST = /** @type {Record<string, string>} */ ({ pause: "Paused.", resume: "Resumed.", recover: "Recovered.", pin: "Pinned.", unpin: "Unpinned." });

/** Do it at once, and offer the opposite. @param {Subject} subject @param {string} verb @param {string} [opposite] @param {unknown} [body] */
export async function now(subject, verb, opposite, body) {
  try {
    await post(subject, verb, body);
    subject.changed();
    toast(PAST[verb] ?? "Done.", opposite ? async () => { await send("POST", `${sessionPath(subject.id)}/${opposite}`, { body: body ?? {}, key: freshKey() }); subject.changed(); } : undefined);
  } catch (error) {
    toast(`${verb}: ${/** @type {Error} */ (error).message}`);
  }
}

/** @param {Subject} subject @param {Header} target an entry with data */
export async function rollback(subject, target) {
  const { id, entries } = subject;
  const head = entries[entries.length - 1];
  const key = freshKey();
  const after = entries.filter(({ seq }) => seq > target.seq);
  const steps = after.filter(({ kind }) => kind === "step_finished");
  const later = after.filter(({ kind }) => kind === "checkpoint");
  const index = entries.indexOf(target);
  const marks = layout(story(entries.slice(Math.max(0, index - 20)).slice(-160)), { width: Math.min(620, innerWidth - 72), state: "completed" });
  const operations = signal(/** @type {import("./operations.js").Operation[] | null} */ (null));
  const from = head.data_seq ?? head.seq;
  get(`${sessionPath(id)}/diff`, { a: from, b: target.seq, old: true }).then(({ items }) => (operations.value = items)).catch((error) => toast(error.message));
  const body = { to: target.seq };
  const request = { method: "POST", ifMatch: etag(subject.version), body };
  /** @param {string} version @param {string} formerHead */
  const act = async (version, formerHead) => {
    await send("POST", `${sessionPath(id)}/rollback`, { body, ifMatch: etag(version), key: version === subject.version ? key : `${key}-${version}` });
    subject.changed();
    toast(`Rolled back to ${target.seq} ${plain(target.name)}.`, async () => {
      await send("POST", `${sessionPath(id)}/rollback`, { body: { to: Number(formerHead) }, ifMatch: "*", key: freshKey() });
      subject.changed();
    });
  };
  ask({
    title: `Roll ${plain(id)} back to ${target.seq} ${plain(target.name)}?`,
    body: () => html`<p class="lead">Adds an entry with the state of ${target.seq}. Nothing is lost: ${many(later.length, "later checkpoint")} ${later.length === 1 ? "stays" : "stay"} in the log, and undoing is a rollback to ${from}.</p>
      ${index >= Math.max(0, entries.length - 140) ? planned(marks, index - Math.max(0, index - 20), head.seq + 1) : null}
      <div class="boxed"><div class="sum-line">${operations.value ? html`${summary(operations.value)} <span class="soft">from now (${from}) to ${target.seq}</span>` : html`<span class="soft">comparing …</span>`}</div>
      <div class="scrolled" tabindex="0">${operations.value ? operationRows(operations.value) : null}</div></div>
      <ul class="consequences">
        ${steps.length ? html`<li>${icon("events")}<span><b>${many(steps.length, "step")} ${steps.length === 1 ? "is" : "are"} not undone:</b> <span class="mono">${plain(steps.slice(0, 4).map((e) => `${e.name} ${e.step?.key ?? ""}`.trim()).join(", "))}${steps.length > 4 ? " …" : ""}</span>. ${steps.length === 1 ? "It happened; its result stays" : "They happened; their results stay"} in the log.</span></li>` : null}
        ${subject.state === "failed" ? html`<li>${icon("events")}<span>The session becomes <b>active</b> again.</span></li>` : null}
        ${subject.owner && !subject.orphaned ? html`<li>${icon("events")}<span><b>${plain(subject.owner.worker)}</b> holds it: its next checkpoint gets <code>Conflict</code>, and it reads the session again.</span></li>` : null}
      </ul>`,
    copy: () => copyButtons({ cli: cli(["rollback", id, "--to", String(target.seq)]), curl: curl(`/v1${sessionPath(id)}/rollback`, request) }),
    verb: `Roll back to ${target.seq}`,
    act: () => act(subject.version, String(from)),
    refused: (failure) => conflicted(subject, failure, `Going back to ${target.seq} ${plain(target.name)}`, target.seq, head.seq, (version, seq) => ({ verb: `Roll back from ${seq}`, act: () => act(version, String(seq)) })),
  });
}

/**
 * Somebody wrote meanwhile: show what came, and offer the verb on top of it.
 * @param {Subject} subject @param {import("./api.js").Failure} failure @param {string} doing @param {number} target @param {number} seen
 * @param {(version: string, seq: number) => {verb: string, act: () => Promise<unknown>}} again
 */
async function conflicted(subject, failure, doing, target, seen, again) {
  if (failure.status !== 412 && failure.code !== "conflict") return false;
  const path = sessionPath(subject.id);
  const [{ items }, session] = await Promise.all([get(`${path}/log`, { after: seen, limit: 100, changed: true }), get(path)]);
  const came = /** @type {Header[]} */ (items);
  // Whose token wrote each entry: what no worker wrote, a person did.
  const { lines } = await get(`${path}/audit`);
  const tokens = new Map(lines.map((/** @type {{seq: number, token: string}} */ line) => [line.seq, line.token]));
  const last = came[came.length - 1]?.seq ?? seen;
  const { items: operations } = await get(`${path}/diff`, { a: "latest", b: target, old: true });
  const names = came.filter(({ kind }) => kind === "checkpoint").map(({ name }) => name);
  const next = again(session.version, last);
  subject.changed();
  ask({
    title: `Not done: ${many(came.length, "entry", "entries")} came meanwhile`,
    body: () => html`<p class="lead">You looked at entry ${seen}; the session is now at ${last}. Nothing was changed.</p>
      <table class="came boxed"><tbody>${came.slice(-8).map((entry) => html`<tr><td class="seq">${entry.seq}</td><td class="mono"><b>${plain(title(entry))}</b></td><td class="soft">${plain((entry.changed ?? []).join(", "))}</td><td>${plain(entry.owner || tokens.get(entry.seq) || "")}</td><td class="soft">${ago(entry.at)}</td></tr>`)}</tbody></table>
      ${names.length ? html`<p>${doing} would now also leave <b>${plain(names.join(", "))}</b> behind:</p>` : null}
      <div class="boxed scrolled" tabindex="0">${operationRows(operations)}</div>`,
    cancel: "Leave it",
    ...next,
    refused: (again2) => conflicted(subject, again2, doing, target, last, again),
  });
  return true;
}

/** @param {Subject} subject @param {Header} at */
export function fork(subject, at) {
  const name = signal("");
  const key = freshKey();
  const body = () => ({ at: at.seq, ...(name.value && { session_id: name.value }) });
  ask({
    title: `Fork ${plain(subject.id)} at ${at.seq} ${plain(at.name)}?`,
    body: () => html`<p class="lead">A new session begins with the state of ${at.seq}. ${plain(subject.id)} stays as it is.</p>
      <label class="field">Id of the fork <input placeholder="generated" maxlength="200" autofocus .value=${name.value} @input=${(/** @type {Event} */ e) => (name.value = /** @type {HTMLInputElement} */ (e.target).value)}></label>
      <ul class="consequences"><li>${icon("events")}<span>The fork does not know the steps of this session: its agent would run them again under other keys.</span></li></ul>`,
    copy: () => copyButtons({ cli: cli(["fork", subject.id, "--at", String(at.seq), ...(name.value ? ["--as", name.value] : [])]), curl: curl(`/v1${sessionPath(subject.id)}/fork`, { method: "POST", body: body() }) }),
    verb: `Fork at ${at.seq}`,
    act: async () => {
      const made = await send("POST", `${sessionPath(subject.id)}/fork`, { body: body(), key });
      close();
      go(sessionUrl(made.session_id));
    },
  });
}

/**
 * A step began, and no entry tells if it ended: a person finds out, and says so.
 * @param {Subject} subject @param {import("./outlook.js").OpenStep} step
 */
export function decide(subject, step) {
  const { id } = subject;
  const write = freshKey();
  const { name, key, owner, started_at: began, idempotency_key: idempotencyKey } = step;
  const happened = signal("");
  const result = signal("null");
  const path = `${sessionPath(id)}/steps/${encodeURIComponent(name)}${key === null ? "" : `/${encodeURIComponent(key)}`}`;
  const body = () => (happened.value === "yes" ? { result: JSON.parse(result.value || "null") } : { retry: true });
  const called = key === null ? name : `${name}:${key}`;
  const choose = (/** @type {Event} */ e) => (happened.value = /** @type {HTMLInputElement} */ (e.target).value);
  ask({
    title: `Did ${plain(called)} happen?`,
    body: () => html`<p class="lead">It began ${ago(began)} at <b>${plain(owner)}</b>, and no entry tells if it ended. Look where it would have left a trace, by its idempotency key <span class="mono">${plain(idempotencyKey)}</span>.</p>
      <fieldset class="scopes"><legend>What you found</legend>
        <label><input type="radio" name="happened" value="yes" required .checked=${happened.value === "yes"} @change=${choose}> <b>It did</b> <span class="soft">the next owner gets this result:</span></label>
        ${happened.value === "yes" ? html`<label class="field">Result as JSON <input class="mono" .value=${result.value} @input=${(/** @type {Event} */ e) => (result.value = /** @type {HTMLInputElement} */ (e.target).value)}></label>` : null}
        <label><input type="radio" name="happened" value="no" .checked=${happened.value === "no"} @change=${choose}> <b>It did not</b> <span class="soft">the next owner runs it again, by the same idempotency key</span></label></fieldset>`,
    copy: () => (happened.value ? copyButtons({ cli: cli(["steps", id, ...(happened.value === "yes" ? ["--resolve", called, "--result", result.value] : ["--retry", called])]) }) : null),
    verb: "Write it to the log",
    cancel: "Not yet",
    act: async () => {
      await send("POST", path, { body: body(), ifMatch: etag(subject.version), key: write });
      subject.changed();
      toast(happened.value === "yes" ? `${plain(called)} counts as done.` : `${plain(called)} will run again.`);
    },
  });
}

/** @param {Subject} subject */
export function recover(subject) {
  const key = freshKey();
  ask({
    title: `Recover ${plain(subject.id)}?`,
    body: () => html`<p class="lead">It becomes active again, and a worker can hold it. Its state stays as it is.</p>${subject.outlook ? outlookView(subject.outlook, subject.orphaned) : null}`,
    copy: () => copyButtons({ cli: cli(["resume", subject.id, "--failed"]), curl: curl(`/v1${sessionPath(subject.id)}/recover`, { method: "POST", body: {} }) }),
    verb: "Recover it",
    act: async () => {
      await send("POST", `${sessionPath(subject.id)}/recover`, { body: {}, ifMatch: etag(subject.version), key });
      subject.changed();
      toast("Recovered.");
    },
  });
}

/** @param {Subject} subject */
export function cancel(subject) {
  const key = freshKey();
  const { owner, outlook, orphaned } = subject;
  const open = (outlook?.steps.running ?? 0) + (outlook?.steps.unknown.length ?? 0);
  ask({
    title: `Cancel ${plain(subject.id)}?`,
    body: () => html`<p class="lead">${orphaned ? "Its worker is silent. It fails, with the reason cancelled, once a keeper or another worker finds that one dead, or when you release it." : owner ? html`<b>${plain(owner.worker)}</b> is told to stop: its next verb raises <code>Cancelled</code>, unless it completes or fails the session.` : "No worker holds it: it fails at once, with the reason cancelled."}</p>
      <ul class="consequences"><li>${icon("events")}<span>${open ? `${many(open, "step")} may be under way and ${open === 1 ? "is" : "are"} not undone.` : "No step is open."}</span></li></ul>`,
    copy: () => copyButtons({ cli: cli(["cancel", subject.id]), curl: curl(`/v1${sessionPath(subject.id)}/cancel`, { method: "POST", body: {} }) }),
    verb: "Cancel the session",
    cancel: "Leave it",
    danger: true,
    act: async () => {
      await send("POST", `${sessionPath(subject.id)}/cancel`, { body: {}, key });
      subject.changed();
      toast("Cancelled.");
    },
  });
}

/** @param {Subject} subject */
export function release(subject) {
  const key = freshKey();
  ask({
    title: `Take ${plain(subject.id)} away from its owner?`,
    body: () => html`<p class="lead"><b>${plain(subject.owner?.worker ?? "")}</b> loses its lease: its next verb raises <code>LeaseLost</code>, and another worker can claim the session at once.</p>
      ${subject.outlook?.steps.running ? html`<p>${many(subject.outlook.steps.running, "step")} may be under way; whether it ended will be unknown.</p>` : null}`,
    copy: () => copyButtons({ cli: cli(["release", subject.id]), curl: curl(`/v1${sessionPath(subject.id)}/release`, { method: "POST", body: {} }) }),
    verb: "Release the session",
    danger: true,
    act: async () => {
      await send("POST", `${sessionPath(subject.id)}/release`, { body: {}, key });
      subject.changed();
      toast("Released.");
    },
  });
}

/** @param {Subject} subject */
export function remove(subject) {
  const key = freshKey();
  const bytes = subject.entries.reduce((sum, { bytes: b }) => sum + b, 0);
  ask({
    title: `Delete ${plain(subject.id)}?`,
    body: () => html`<p class="lead">${many(subject.entries.length, "entry", "entries")}, ${size(bytes)}. Its id is free again; its forks stay. What it stored goes when gc purges it.</p>`,
    copy: () => copyButtons({ cli: cli(["rm", subject.id, "--yes"]), curl: curl(`/v1${sessionPath(subject.id)}`, { method: "DELETE", ifMatch: etag(subject.version) }) }),
    verb: "Delete the session",
    danger: true,
    typed: subject.id,
    act: async () => {
      // An answer that was lost may have been that it is done: then there is nothing to delete any more.
      await send("DELETE", sessionPath(subject.id), { ifMatch: etag(subject.version), key }).catch((error) => {
        if (!(error instanceof Failure) || error.status !== 404) throw error;
      });
      close();
      go("/sessions");
      toast(`Deleted ${plain(subject.id)}.`);
    },
  });
}

/** For good, unlike deleting. @param {Subject} subject */
export function erase(subject) {
  const { id, owner, orphaned, entries } = subject;
  const key = freshKey();
  const body = { session_id: id, dry_run: false };
  const forks = entries.flatMap((entry) => entry.forks ?? []).map((fork) => fork.id);
  const full = signal(/** @type {number | null} */ (null));
  send("POST", "/erase", { body: { ...body, dry_run: true } }).then((answer) => (full.value = answer.entries)).catch((error) => toast(error.message));
  ask({
    title: `Erase ${plain(id)} for good?`,
    body: () => html`<p class="lead">Destroys what its entries hold, in every tier: states, results of steps, messages${full.value === null ? "" : html`, of <b>${many(full.value, "entry", "entries")}</b>`}. The empty entries stay, so its audit trail does. Neither an undo nor gc brings anything back.</p>
      <ul class="consequences">
        ${forks.length ? html`<li>${icon("fork")}<span><b>${many(forks.length, "fork")} ${forks.length === 1 ? "keeps" : "keep"} what ${forks.length === 1 ? "it" : "they"} took over:</b> <span class="mono">${plain(forks.join(", "))}</span>. Erase ${forks.length === 1 ? "it" : "them"}, too, where that must go.</span></li>` : null}
        ${owner && !orphaned ? html`<li>${icon("events")}<span><b>${plain(owner.worker)}</b> holds it: its next verb raises an error.</span></li>` : null}</ul>`,
    copy: () => copyButtons({ cli: cli(["erase", id, "--apply"]), curl: curl(apiUrl("/erase"), { method: "POST", body }) }),
    verb: "Erase the session",
    danger: true,
    typed: id,
    act: async () => {
      const erased = await send("POST", "/erase", { body, key });
      close();
      go("/sessions");
      toast(`Erased ${plain(id)}: ${many(erased.entries, "entry", "entries")}.`);
    },
  });
}
