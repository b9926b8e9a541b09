// @ts-check
/** What is seen here, for a shell: the same as a command and as a request. Neither holds a token. */
import { namespace } from "./api.js";
import { ask } from "./dialog.js";
import { toast } from "./toast.js";
import { html } from "./view.js";

/** @param {string} text one word of a shell */
export const quoted = (text) => (/^[\w@%+=:,./~-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

/** For any shell, with this server's address. Not for `token`, which needs the store itself. @param {string[]} words after `saveslot` */
export function cli(words) {
  const space = namespace() === "default" ? [] : ["--namespace", namespace()];
  return ["saveslot", ...words, "--store", location.origin, ...space].map(quoted).join(" ");
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
  if (navigator.clipboard) await navigator.clipboard.writeText(text);
  else copySelected(text);
  toast(`Copied: ${text.length > 120 ? what : text}`);
}

/**
 * Browsers offer the clipboard only to pages on https and on this machine.
 * @param {string} text
 */
function copySelected(text) {
  const area = document.createElement("textarea");
  area.value = text;
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** @typedef {{cli?: string, curl?: string}} Texts */

/** The buttons above a view. A phone has room for one, which opens a sheet with both texts. @param {Texts} texts */
export const copyHere = (texts) => html`${copyButtons(texts)}<button class="copy-here" @click=${() => sheet(texts)}>Copy…</button>`;

/** @param {Texts} texts */
const sheet = ({ cli: command, curl: request }) => ask({
  title: "Copy this view",
  body: () => html`<dl class="copies">${[["As a command", command, "copy as CLI"], ["As a request", request, "copy as curl"]].map(([name, text, button]) => (text ? html`<dt>${name}</dt><dd><code class="boxed code">${text}</code><button type="button" @click=${() => copyText(text, name === "As a request" ? "the request" : "the command")}>${button}</button></dd>` : null))}</dl>`,
});

/** Not for submitting: they stand in forms, too. @param {Texts} texts */
export const copyButtons = ({ cli, curl }) => html`${cli ? html`<button type="button" class="quiet" @click=${() => copyText(cli, "the command")}>copy as CLI</button>` : null}${curl ? html`<button type="button" class="quiet" @click=${() => copyText(curl, "the request")}>copy as curl</button>` : null}`;
