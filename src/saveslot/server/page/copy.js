// @ts-check
/** What is seen here, for a shell: the same as a command and as a request. Neither holds a token. */
import { namespace } from "./api.js";
import { toast } from "./toast.js";
import { html } from "./view.js";

/** @param {string} text one word of a shell */
export const quoted = (text) => (/^[\w@%+=:,./~-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

/** @param {string[]} words after `saveslot` */
export function cli(words) {
  const space = namespace();
  return ["saveslot", ...words, ...(space === "default" ? [] : ["--namespace", space])].map(quoted).join(" ");
}

/** @param {string} url below this server @param {{method?: string, ifMatch?: string, body?: unknown}} [request] */
export function curl(url, { method = "GET", ifMatch, body } = {}) {
  const parts = ["curl", "-sS", ...(method === "GET" ? [] : ["-X", method])].map(quoted);
  parts.push("-H", '"Authorization: Bearer $SAVESLOT_TOKEN"');
  if (ifMatch) parts.push("-H", quoted(`If-Match: ${ifMatch}`));
  if (body !== undefined) parts.push("-H", quoted("Content-Type: application/json"), "--data", quoted(JSON.stringify(body)));
  return [...parts, quoted(location.origin + url)].join(" ");
}

/** @param {string} text @param {string} what */
export async function copyText(text, what) {
  await navigator.clipboard.writeText(text);
  toast(`Copied: ${text.length > 120 ? what : text}`);
}

/** @param {{cli?: string, curl?: string}} texts */
export const copyButtons = ({ cli, curl }) => html`${cli ? html`<button class="quiet" @click=${() => copyText(cli, "the command")}>copy as CLI</button>` : null}${curl ? html`<button class="quiet" @click=${() => copyText(curl, "the request")}>copy as curl</button>` : null}`;
