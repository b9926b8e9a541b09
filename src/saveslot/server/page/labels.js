// @ts-check
/** Labels of a session: changed as one write, which can be undone. */
import { etag } from "./actions.js";
import { apiUrl, freshKey, get, send, sessionPath } from "./api.js";
import { cli, copyButtons, curl } from "./copy.js";
import { ask } from "./dialog.js";
import { plain } from "./format.js";
import { toast } from "./toast.js";
import { html, signal } from "./view.js";

/** @typedef {Record<string, string>} Labels */
/** @typedef {{name: string, value: string}} Pair */

/** What makes labels of others; null removes one. Pure. @param {Labels} before @param {Labels} after @returns {Record<string, string | null>} */
export const changesOf = (before, after) => Object.fromEntries([
  ...Object.keys(before).filter((name) => !Object.hasOwn(after, name)).map((name) => /** @type {[string, null]} */ ([name, null])),
  ...Object.entries(after).filter(([name, value]) => !Object.hasOwn(before, name) || before[name] !== value),
]);

/** @param {string} id @param {Record<string, string | null>} changes */
const words = (id, changes) => ["label", id, ...Object.entries(changes).flatMap(([name, value]) => (value === null ? ["--remove", name] : [`${name}=${value}`]))];

/** @param {import("./actions.js").Subject} subject @param {Labels} before @param {readonly Pair[]} [wanted] what was typed before another writer came first */
export function editLabels(subject, before, wanted) {
  const path = `${sessionPath(subject.id)}/labels`;
  const key = freshKey();
  const pairs = signal(/** @type {readonly Pair[]} */ (wanted ?? [...Object.entries(before).map(([name, value]) => ({ name, value })), { name: "", value: "" }]));
  const after = () => Object.fromEntries(pairs.value.filter(({ name }) => name).map(({ name, value }) => [name, value]));
  const changes = () => changesOf(before, after());
  const request = () => ({ method: "PATCH", ifMatch: etag(subject.version), body: changes() });
  /** The last row is always an empty one. @param {number} i @param {Partial<Pair>} change */
  const set = (i, change) => {
    const next = pairs.peek().map((pair, k) => (k === i ? { ...pair, ...change } : pair));
    pairs.value = next[next.length - 1].name ? [...next, { name: "", value: "" }] : next;
  };
  const typed = (/** @type {Event} */ e) => /** @type {HTMLInputElement} */ (e.target).value;
  ask({
    title: `Labels of ${plain(subject.id)}`,
    body: () => html`${wanted ? html`<p class="card tint-failed">Nothing was changed: the session has moved on meanwhile. What you typed stands below, against its labels of now.</p>` : null}
      <div class="label-rows">${pairs.value.map(({ name, value }, i) => html`<div><input aria-label="Name" placeholder="name" maxlength="200" autofocus=${i === pairs.peek().length - 1} .value=${name} @input=${(/** @type {Event} */ e) => set(i, { name: typed(e).trim() })}><span aria-hidden="true">=</span><input aria-label=${name ? `Value of ${plain(name)}` : "Value"} placeholder="value" .value=${value} @input=${(/** @type {Event} */ e) => set(i, { value: typed(e) })}>
        <button type="button" class="quiet" disabled=${!name} aria-label=${`Remove ${plain(name)}`} @click=${() => (pairs.value = pairs.peek().filter((_, k) => k !== i))}>Remove</button></div>`)}</div>
      <p class="soft" role="status">${Object.entries(changes()).map(([name, value]) => (value === null ? `removed ${plain(name)}` : Object.hasOwn(before, name) ? `${plain(name)}: ${plain(before[name])} → ${plain(value)}` : `added ${plain(name)}=${plain(value)}`)).join(", ") || "no change"}</p>`,
    copy: () => (Object.keys(changes()).length ? copyButtons({ cli: cli(words(subject.id, changes())), curl: curl(apiUrl(path), request()) }) : null),
    verb: "Set the labels",
    act: async () => {
      const [body, undone] = [changes(), changesOf(after(), before)];
      if (!Object.keys(body).length) return;
      await send("PATCH", path, { ...request(), key });
      subject.changed();
      toast("Labels set.", async () => {
        await send("PATCH", path, { body: undone, ifMatch: "*", key: freshKey() });
        subject.changed();
      });
    },
    refused: async (failure) => {
      if (failure.status !== 412) return false;
      const session = await get(sessionPath(subject.id));
      subject.changed();
      editLabels({ ...subject, version: session.version }, session.labels, pairs.peek());
      return true;
    },
  });
}
