// @ts-check
/** The token is typed once, and becomes a cookie that scripts cannot read. */
import { Failure, get, me, namespace, send, signedOut } from "./api.js";
import { signedIn } from "./dialog.js";
import { plain } from "./format.js";
import { replace, withQuery } from "./places.js";
import { gaps } from "./stream.js";
import { html, signal } from "./view.js";

const trouble = signal("");

/** Read who this is; whether that is allowed. */
export async function identify() {
  try {
    const mine = await get("/me");
    // A token of other namespaces than the default one begins in one of its own.
    if (mine.namespaces?.length && !mine.namespaces.includes(namespace()) && !new URLSearchParams(location.search).has("ns")) replace(withQuery({ ns: mine.namespaces[0] }));
    me.value = mine;
    return true;
  } catch (error) {
    if (error instanceof Failure && error.status === 401) return false;
    throw error;
  }
}

/** @param {SubmitEvent} event */
async function submit(event) {
  event.preventDefault();
  const form = /** @type {HTMLFormElement} */ (event.target);
  const field = /** @type {HTMLInputElement} */ (form.elements.namedItem("token"));
  trouble.value = "";
  try {
    await send("POST", "/me", { headers: { Authorization: `Bearer ${field.value.trim()}` } });
    form.reset();
    await identify();
    gaps.value++;
    signedIn();
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    trouble.value = error.status === 401 ? "The server does not accept this token: it is wrong, expired or revoked." : error.message;
  }
}

export const signInView = () => signedOut.value ? html`<dialog class="dialog sign-in" aria-labelledby="sign-in-title" ref=${(/** @type {HTMLDialogElement} */ d) => d.showModal()} @cancel=${(/** @type {Event} */ e) => e.preventDefault()}>
  <form @submit=${submit}><h2 id="sign-in-title">${me.value?.name ? "Sign in again" : "Sign in"}</h2>
    <div class="dialog-body">${me.value?.name ? html`<p>The token <b>${plain(me.value.name)}</b> has expired or was revoked. With another one you go on where you are.</p>` : null}<p>This server asks for a token. <code>saveslot token create NAME --scope read</code> prints one.</p>
      <label>Token <input name="token" type="password" autocomplete="off" required autofocus></label>
      ${trouble.value ? html`<p class="trouble" role="alert">${trouble.value}</p>` : null}
      <p class="soft">It becomes a cookie that scripts cannot read.</p></div>
    <footer><span class="push"></span><button class="main">Sign in</button></footer></form></dialog>` : null;
