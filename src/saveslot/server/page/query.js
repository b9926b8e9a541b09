// @ts-check
/** The search box: free text and tokens like `state:failed label:env=prod`. Pure. */

/** Tokens and the parameters of the URL that they stand for. */
export const TOKENS = /** @type {Record<string, string>} */ ({ state: "state", agent: "agent", user: "user", label: "label", before: "before", after: "after" });
const STATES = new Set(["active", "paused", "completed", "failed", "orphaned"]);
const UNITS = /** @type {Record<string, number>} */ ({ s: 1, m: 60, h: 3600, d: 86_400, w: 604_800 });
const WHEN = "a date (2026-11-18), a time (2026-11-18T12:00) or an age (30m, 12h, 2d)";
/** What a token accepts, where that is not any text. @type {Record<string, {fits: (value: string) => boolean, accepted: string}>} */
const ACCEPTED = {
  state: { fits: (value) => STATES.has(value), accepted: "active, paused, completed, failed or orphaned" },
  label: { fits: (value) => /^[^=]+=/.test(value), accepted: "name=value" },
  before: { fits: (value) => instant(value) !== null, accepted: WHEN },
  after: { fits: (value) => instant(value) !== null, accepted: WHEN },
};

/** @typedef {Record<string, string[]>} Filters by URL parameter; `text` has the free text */

/** The moment that `before:` or `after:` names, as ISO text; UTC where no zone is given. @param {string} text @param {number} [now] milliseconds @returns {string | null} */
export function instant(text, now = Date.now()) {
  const [, number, unit] = text.match(/^(\d{1,9})([smhdw])$/) ?? [];
  const [, day, time = "00:00", zone = "Z"] = text.match(/^(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d(?:\.\d+)?)?)(Z|[+-]\d\d:?\d\d)?)?$/) ?? [];
  const at = new Date(unit ? now - Number(number) * UNITS[unit] * 1000 : day ? `${day}T${time}${zone}` : NaN);
  return Number.isNaN(at.valueOf()) ? null : at.toISOString();
}

/** Sentences about tokens whose values do not fit; they filter nothing. @param {Filters} filters */
export const misfits = (filters) => Object.entries(ACCEPTED).flatMap(([name, { fits, accepted }]) => (filters[name] ?? []).filter((value) => !fits(value)).map((value) => `${name}:${value} is ignored; after ${name}: write ${accepted}.`));

/** @param {Filters} filters @param {string} name */
const fitting = (filters, name) => (filters[name] ?? []).filter((value) => ACCEPTED[name].fits(value));

/** @param {string} text @returns {Filters} */
export function parse(text) {
  /** @type {Filters} */
  const filters = {};
  const words = [];
  for (const [, word] of text.matchAll(/((?:"[^"]*"|\S)+)/g)) {
    const [, name, rest] = word.match(/^(\w+):(.+)$/s) ?? [];
    const value = rest?.replaceAll('"', "");
    if (name && TOKENS[name]) filters[TOKENS[name]] = [...(filters[TOKENS[name]] ?? []), value];
    else words.push(word.replaceAll('"', ""));
  }
  if (words.length) filters.text = [words.join(" ")];
  return filters;
}

/** @param {Filters} filters */
export function print(filters) {
  const quoted = (/** @type {string} */ value) => (/\s/.test(value) ? `"${value}"` : value);
  const tokens = Object.keys(TOKENS).flatMap((name) => (filters[TOKENS[name]] ?? []).map((value) => `${name}:${quoted(value)}`));
  return [...tokens, ...(filters.text ?? [])].join(" ");
}

/** @param {URLSearchParams} query @returns {Filters} */
export function fromUrl(query) {
  /** @type {Filters} */
  const filters = {};
  for (const name of [...Object.values(TOKENS), "text"]) {
    const values = query.getAll(name);
    if (values.length) filters[name] = values;
  }
  return filters;
}

/** What the API calls these. @param {Filters} filters @returns {Record<string, any>} */
export function toApi(filters) {
  const { agent = [], user = [], text = [] } = filters;
  const [state, label, before, after] = ["state", "label", "before", "after"].map((name) => fitting(filters, name));
  return {
    state: state.filter((word) => word !== "orphaned"),
    orphaned: state.includes("orphaned") || undefined,
    agent_type: agent,
    user_id: user[0],
    label,
    text: text[0],
    created_before: before[0] && instant(before[0]),
    created_after: after[0] && instant(after[0]),
  };
}

/** The same moment as an age, which is what the command line takes. @param {string} text */
const age = (text) => (/^\d+[smhdw]$/.test(text) ? text : `${Math.max(0, Math.round((Date.now() - Date.parse(instant(text) ?? "")) / 1000))}s`);

/** The same as options of `saveslot ls`. @param {Filters} filters */
export function toCli(filters) {
  const { agent = [], user = [], text = [] } = filters;
  const [state, label, before, after] = ["state", "label", "before", "after"].map((name) => fitting(filters, name));
  return [
    ...state.filter((word) => word !== "orphaned").flatMap((word) => ["--state", word]),
    ...(state.includes("orphaned") ? ["--orphaned"] : []),
    ...agent.flatMap((name) => ["--agent", name]),
    ...(user[0] ? ["--user", user[0]] : []),
    ...label.flatMap((pair) => ["--label", pair]),
    ...(text[0] ? ["--text", text[0]] : []),
    ...(before[0] ? ["--older-than", age(before[0])] : []),
    ...(after[0] ? ["--newer-than", age(after[0])] : []),
  ];
}
