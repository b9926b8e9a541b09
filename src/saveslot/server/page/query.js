// @ts-check
/** The search box: free text and tokens like `state:failed label:env=prod`. Pure. */

/** Tokens and the parameters of the URL that they stand for. */
export const TOKENS = /** @type {Record<string, string>} */ ({ state: "state", agent: "agent", user: "user", label: "label", before: "before", after: "after" });
const STATES = new Set(["active", "paused", "completed", "failed", "orphaned"]);

/** @typedef {Record<string, string[]>} Filters by URL parameter; `text` has the free text */

/** @param {string} text @returns {Filters} */
export function parse(text) {
  /** @type {Filters} */
  const filters = {};
  const words = [];
  for (const [, word] of text.matchAll(/((?:"[^"]*"|\S)+)/g)) {
    const [, name, rest] = word.match(/^(\w+):(.+)$/s) ?? [];
    const value = rest?.replaceAll('"', "");
    if (name && TOKENS[name] && (name !== "state" || STATES.has(value))) filters[TOKENS[name]] = [...(filters[TOKENS[name]] ?? []), value];
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
export function toApi({ state = [], agent = [], user = [], label = [], text = [], before = [], after = [] }) {
  return {
    state: state.filter((word) => word !== "orphaned"),
    orphaned: state.includes("orphaned") || undefined,
    agent_type: agent,
    user_id: user[0],
    label,
    text: text[0],
    created_before: before[0],
    created_after: after[0],
  };
}

/** The same as options of `saveslot ls`. @param {Filters} filters */
export function toCli({ state = [], agent = [], user = [], label = [], text = [] }) {
  return [
    ...state.filter((word) => word !== "orphaned").flatMap((word) => ["--state", word]),
    ...(state.includes("orphaned") ? ["--orphaned"] : []),
    ...agent.flatMap((name) => ["--agent", name]),
    ...(user[0] ? ["--user", user[0]] : []),
    ...label.flatMap((pair) => ["--label", pair]),
    ...(text[0] ? ["--text", text[0]] : []),
  ];
}
