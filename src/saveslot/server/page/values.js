// @ts-check
/** What agents saved, as text on one line. Nothing of it is ever markup. */
import { clipped, count, many, plain } from "./format.js";
import { html } from "./view.js";

/** @param {any} value a list of objects with a role, or of texts, is a list of messages @returns {boolean} */
export const isMessages = (value) =>
  Array.isArray(value) && value.length > 0 && (value.every((m) => m && typeof m === "object" && typeof m.role === "string") || value.every((m) => typeof m === "string"));

/** The text of a message, whatever shape its content has. @param {any} message @returns {string} */
export function messageText(message) {
  if (typeof message === "string") return message;
  const content = folded(message.content)?.start ?? message.content;
  if (typeof content === "string") return content;
  if (Array.isArray(content)) return content.map((part) => (typeof part === "string" ? part : (part?.text ?? JSON.stringify(part)))).join("\n");
  const { role, name, ...rest } = message;
  return JSON.stringify(content ?? rest);
}

/** A tagged value of FORMAT.md (a datetime, bytes, a UUID) or null. @param {any} value @returns {string | null} */
export function tagged(value) {
  const tag = value && typeof value === "object" && value.$saveslot;
  return Array.isArray(tag) && Object.keys(value).length === 1 ? `${tag[0]} ${tag[1]}` : null;
}

/** What stands in a large state for a container that was not read, or for a long text, of which it has the `start`. @param {any} value @returns {{kind: string, size: number, bytes: number, start?: string} | null} */
export const folded = (value) => (value && ["object", "list", "text"].includes(value["…"]) && Number.isInteger(value.bytes) ? { kind: value["…"], size: value.size, bytes: value.bytes, start: value.start } : null);

/** @param {any} value @returns {boolean} */
export const isContainer = (value) => value !== null && typeof value === "object" && tagged(value) === null && folded(value)?.kind !== "text";

/** The leaves of a value on one line. @param {any} value @param {number} [limit] */
export function brief(value, limit = 160) {
  if (!isContainer(value)) return leaf(value);
  /** @type {string[]} */
  const leaves = [];
  let length = 0;
  const walk = (/** @type {any} */ v) => {
    if (length > limit) return;
    const lazy = isContainer(v) ? folded(v) : null;
    if (lazy) leaves.push(`(${many(lazy.size, lazy.kind === "list" ? "item" : "key")})`);
    else if (isContainer(v)) for (const inner of Object.values(v)) walk(inner);
    else leaves.push(leaf(v));
    length = leaves.join(", ").length;
  };
  for (const inner of Object.values(value)) walk(inner);
  return clipped(leaves.join(Array.isArray(value) ? " · " : ", "), limit);
}

/** @param {any} value */
export function leaf(value) {
  const special = tagged(value);
  if (special !== null) return plain(special);
  if (value === "") return '""';
  const long = folded(value);
  if (long?.start) return `${plain(long.start)}… ${count(long.size)} characters`;
  return typeof value === "string" ? clipped(value) : JSON.stringify(value);
}

/** A whole value as a diff shows it: messages by role and text, the rest by its leaves. @param {any} value */
export function shown(value) {
  if (value && typeof value === "object" && typeof value.role === "string") {
    return html`<span class="soft">${plain(value.role)}${value.name ? ` ${plain(value.name)}` : ""}</span> ${clipped(messageText(value))}`;
  }
  if (!isContainer(value)) return leaf(value);
  const size = Object.keys(value).length;
  const outer = Object.values(value).some(isContainer);
  return `${outer ? `${many(size, Array.isArray(value) ? "item" : "key")}: ` : ""}${brief(value, 400)}`;
}
