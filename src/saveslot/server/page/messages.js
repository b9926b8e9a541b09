// @ts-check
/** The agent's messages: who, text, since which entry; those that a rollback took away are struck. */
import { clipped, plain } from "./format.js";
import { inReadingOrder } from "./operations.js";
import { isMessages, messageText } from "./values.js";
import { html } from "./view.js";

/** @typedef {import("./entries.js").Story} Story */

/** The key of the list that holds messages, "" if the data has none. @param {any} data */
export function messageKey(data) {
  if (data === null || typeof data !== "object") return "";
  if (isMessages(data.messages)) return "messages";
  return Object.keys(data).find((key) => isMessages(data[key]) && typeof data[key][0] === "object") ?? "";
}

/**
 * Since which entry each message has been there; pure. The log's `changed` says by how many a list grew, so this walks
 * back from the entry as far as that is told.
 * @param {Story} story @param {number} index @param {string} key @param {number} length
 * @returns {(number | null)[]}
 */
export function since({ entries, rollbacks }, index, key, length) {
  /** @type {(number | null)[]} */
  const seqs = Array(length).fill(null);
  let left = length;
  for (let i = index; i >= 0 && left > 0; i--) {
    const jump = rollbacks.find(({ from }) => from === i);
    if (jump) {
      i = jump.to + 1;
      continue;
    }
    for (const text of entries[i].changed ?? []) {
      if (text === `+${key}`) {
        seqs.fill(entries[i].seq, 0, left);
        return seqs;
      }
      if (text === `~${key}` || text === `-${key}`) return seqs;
      const grown = text.startsWith(`${key} `) ? Number(text.slice(key.length + 1)) : NaN;
      if (Number.isNaN(grown)) continue;
      if (grown < 0) return seqs;
      seqs.fill(entries[i].seq, Math.max(0, left - grown), left);
      left -= grown;
    }
  }
  return seqs;
}

/** @param {{data: any, key: string, story: Story, index: number, operations: readonly import("./operations.js").Operation[], before: number}} view `before`: seq that the operations start from */
export function messages({ data, key, story, index, operations, before }) {
  const list = data[key];
  const seqs = since(story, index, key, list.length);
  const seq = story.entries[index].seq;
  const gone = inReadingOrder(operations).filter(({ op, path }) => op === "remove" && path.startsWith(`/${key}/`) && !path.slice(key.length + 2).includes("/"));
  return html`<ol class="messages">
    ${list.map((/** @type {any} */ message, /** @type {number} */ i) => row(message, seqs[i] === seq ? "new" : "", seqs[i] ? `since ${seqs[i]}` : ""))}
    ${gone.map(({ old }) => row(old, "gone", `gone by ${seq}; still in ${before}`))}
  </ol>`;
}

/** @param {any} message @param {string} look @param {string} note */
function row(message, look, note) {
  const role = typeof message === "string" ? "" : plain(message?.role ?? "");
  const text = clipped(messageText(message ?? ""));
  const tool = role === "tool" || role === "function";
  return html`<li class=${`message ${look} ${role === "user" ? "user" : ""}`}><span class="who">${role}${message?.name ? html`<span class="mono">${plain(message.name)}</span>` : null}</span>
    <div class="said">${tool ? html`<div class="tool mono">${text}</div>` : html`<div class="words">${text}</div>`}<div class="note">${note}</div></div></li>`;
}
