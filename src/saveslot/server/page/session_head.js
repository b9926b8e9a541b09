// @ts-check
/** Above a session's tape: who it is, what can be done with it, and its story in a sentence. */
import * as actions from "./actions.js";
import { missing } from "./api.js";
import { actionButton } from "./button.js";
import { now } from "./clock.js";
import { copyHere } from "./copy.js";
import { clock, many, plain, span } from "./format.js";
import { icon, stateWord } from "./icons.js";
import { connected } from "./stream.js";
import { html } from "./view.js";

/** @param {number} n */
const times = (n) => (n === 1 ? "once" : n === 2 ? "twice" : `${n} times`);

/** @param {import("./session_source.js").SessionSource} source @param {import("./session.js").Verbs} verbs @param {{cli: string, curl: string}} copies */
export function headline(source, verbs, copies) {
  const { state, agent_type: agent, user_id: user, labels } = source.session.value;
  const subject = verbs.subject();
  const [open] = subject.outlook?.steps.unknown ?? [];
  return html`<div class="headline session-head">
      <a class="icon-button" href="/sessions" aria-label="Sessions">${icon("back")}</a>
      <h1>${plain(source.id)}</h1>${stateWord(source.orphaned() ? "orphaned" : state, true)}
      <span class="soft">${plain(agent)}${user ? ` · ${plain(user)}` : ""}</span>
      ${Object.entries(labels ?? {}).map(([name, value]) => html`<span class="label">${plain(`${name}=${value}`)}</span>`)}
      <span class="push"></span>${copyHere(copies)}
      ${actionButton("Fork here", "f", actions.why(subject, "fork"), verbs.fork)}
      ${actionButton("Roll back here", "r", verbs.rollbackWhy(), verbs.rollback)}
      ${open ? actionButton(`Decide on ${plain(open.name)}…`, "", missing("write") || (connected.value ? "" : "no connection to the server"), () => actions.decide(subject, open), "main") : null}
      ${state === "failed" ? actionButton("Recover…", "", actions.why(subject, "recover"), () => actions.recover(subject), "main") : null}
    </div>${sentence(source)}`;
}

/** What became of it so far. Of a log that is not loaded whole, the overview knows. @param {import("./session_source.js").SessionSource} source */
function sentence(source) {
  const entries = source.entries();
  const total = source.log.total.value;
  const { clips, rollbacks } = source.storyOf();
  const overview = entries.length === total ? null : source.overview.value;
  const whole = entries.length === total;
  const turned = (/** @type {string} */ kind) => overview?.turns.filter((turn) => turn.kind === kind).length ?? 0;
  const ends = overview ? [overview.items[0].start, overview.items[overview.items.length - 1].end] : [entries[0].at, entries[entries.length - 1].at];
  const owners = new Set(overview ? overview.items.flatMap(({ owner }) => owner ?? []) : clips.map(({ worker }) => worker)).size;
  const rolledBack = whole ? rollbacks.length : turned("rollback");
  const died = whole ? clips.filter(({ end }) => end === "died").length : turned("claimed");
  const saved = entries.filter(({ kind }) => kind === "checkpoint").length;
  const forks = entries.reduce((sum, entry) => sum + (entry.forks?.length ?? 0), 0);
  const { owner } = source.session.value;
  return html`<p class="sentence"><b>${whole ? many(saved, "checkpoint") : many(total, "entry", "entries")}</b>${owners ? html` by <b>${many(owners, "owner")}</b>` : null} in ${span((Date.parse(ends[1]) - Date.parse(ends[0])) / 1000)}${died ? html`, taken over <b>${times(died)}</b> after a worker died` : null}${rolledBack ? html`, <b>rolled back ${times(rolledBack)}</b>` : null}${forks ? html`, <b>${many(forks, "fork")}</b>` : null}.
      ${source.orphaned() ? html`<span class="s-orphaned">No worker has held it since ${clock(Date.parse(source.silent() ?? entries[entries.length - 1].at) / 1000)}.</span>` : owner ? html`Held by <b>${plain(owner.worker)}</b>, last entry ${span(Math.max(0, now.value - Date.parse(ends[1]) / 1000))} ago.` : null}</p>`;
}
