// @ts-check
/** Numbers, times and foreign text as people read them. */

// Formats are made once: a call of toLocaleString takes ten times as long.
const NUMBERS = new Intl.NumberFormat("en-US");
/** @type {Map<string, Intl.DateTimeFormat>} */
const formats = new Map();
/** @param {string} locale @param {Intl.DateTimeFormatOptions} options */
function dateFormat(locale, options) {
  const key = JSON.stringify([locale, options]);
  const known = formats.get(key) ?? new Intl.DateTimeFormat(locale, options);
  formats.set(key, known);
  return known;
}

/** @param {number} n */
export const count = (n) => NUMBERS.format(n);

/** @param {number} n @param {string} one @param {string} [many] */
export const many = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/** @param {number} bytes */
export function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  let value = bytes;
  for (const unit of ["KB", "MB", "GB"]) {
    value /= 1000;
    if (value < 999.95) return `${value < 99.95 ? value.toFixed(1) : value.toFixed(0)} ${unit}`;
  }
  return `${(value / 1000).toFixed(1)} TB`;
}

/** A limit as the docs write it: 16 MB are 16 × 1024 × 1024 bytes. @param {number} bytes */
export const limit = (bytes) => (bytes % 2 ** 20 ? size(bytes) : `${bytes / 2 ** 20} MB`);

/** @param {number} seconds 6.2 s · 48 s · 4 m 19 s · 3 h 02 m · 2 d 4 h */
export function span(seconds) {
  if (seconds < 0.1) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} m ${String(whole % 60).padStart(2, "0")} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} m`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** @param {number} seconds 5s · 8m · 2h · 3d */
export function short(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m`;
  if (whole < 2 * 86400) return `${Math.floor(whole / 3600)}h`;
  return `${Math.floor(whole / 86400)}d`;
}

/** @param {number | null} ms */
export const milliseconds = (ms) => (ms === null ? "–" : ms < 0.1 ? "under 0.1 ms" : `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`);

/** @param {string | null | undefined} text an ISO timestamp @returns {number} seconds since 1970 */
export const seconds = (text) => (text ? Date.parse(text) / 1000 : NaN);

const zone = () => (localTimes() ? undefined : "UTC");
export const zoneName = () => (localTimes() ? "" : "UTC");
const localTimes = () => globalThis.localStorage?.getItem("saveslot.times") === "local";

/** @param {number} at @param {boolean} [fraction] */
export const clock = (at, fraction = false) =>
  dateFormat("en-GB", { timeZone: zone(), ...(fraction && { fractionalSecondDigits: 3 }), hour: "2-digit", minute: "2-digit", second: "2-digit" }).format(at * 1000);

/** @param {number} at the date too, unless it is today */
export function moment(at) {
  const day = (/** @type {Date} */ date) => dateFormat("en-CA", { timeZone: zone() }).format(date);
  const date = new Date(at * 1000);
  const time = `${clock(at)} ${zoneName()}`.trim();
  return day(date) === day(new Date()) ? time : `${day(date)} ${time}`;
}

// Control characters but for tab and newline, bidirectional and zero-width ones, separators, lone surrogates.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]|\udb40[\udc00-\udfff]/g;

/** Foreign text with what cannot be seen spelled out as \uXXXX. @param {unknown} value */
export const plain = (value) =>
  String(value).replace(HIDDEN, (found) => [...found].map((c) => `\\u${(c.codePointAt(0) ?? 0).toString(16).padStart(4, "0")}`).join(""));

/** @param {unknown} value @param {number} [limit] */
export function clipped(value, limit = 2000) {
  const text = String(value);
  return text.length > limit ? `${plain(text.slice(0, limit))}…` : plain(text);
}

/** A JSON Pointer as people write paths: /bookings/1/id is bookings[1].id. @param {string} pointer */
export function dotted(pointer) {
  const parts = pointer.split("/").slice(1).map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"));
  return plain(parts.map((part, i) => (/^(\d+|-)$/.test(part) && i ? `[${part}]` : i ? `.${part}` : part)).join("")) || "(all)";
}

/** @param {string} part */
export const pointerPart = (part) => part.replaceAll("~", "~0").replaceAll("/", "~1");

/** @param {string} at an ISO timestamp */
export const ago = (at) => `${short(Date.now() / 1000 - seconds(at))} ago`;
