// @ts-check
/** What the sessions have in common, with counts under the other filters; and when they were created. */
import { count, moment, plain } from "./format.js";
import { shape } from "./icons.js";
import { each, html, signal, svg } from "./view.js";

const ORDER = ["active", "paused", "completed", "failed"];

/**
 * @param {any} facets as `/v1/sessions/facets` sends them @param {import("./query.js").Filters} filters @param {(name: string, value: string) => void} toggle
 */
export function facetsView(facets, filters, toggle) {
  /** @param {string} name @param {string} value @param {number} number @param {number} most @param {unknown} text */
  const row = (name, value, number, most, text) => html`<li><button class="facet" aria-pressed=${String((filters[name] ?? []).includes(value))} @click=${() => toggle(name, value)}><span>${text}</span><span class="facet-count">${count(number)}</span></button><i class="share" .style=${{ "--share": String(most ? number / most : 0) }}></i></li>`;
  const states = [...ORDER.map((word) => /** @type {[string, number]} */ ([word, facets.by_state[word] ?? 0])), /** @type {[string, number]} */ (["orphaned", facets.orphaned])];
  const most = Math.max(...states.map(([, n]) => n));
  const agents = /** @type {[string, number][]} */ (Object.entries(facets.by_agent_type)).slice(0, 12);
  const labels = /** @type {[string, Record<string, number>][]} */ (Object.entries(facets.by_label));
  const sampled = facets.looked_at.sessions < facets.looked_at.of ? html` <span class="soft">of the newest ${count(facets.looked_at.sessions)}</span>` : null;
  return html`<section><h2>State</h2><ul>${each(states, ([word]) => word, ([word, number]) => row("state", word, number, most, html`<span class=${`state s-${word}`}>${shape(word)} ${word}</span>`))}</ul>${facets.orphaned ? html`<p class="note">Orphaned sessions also count as active or paused.</p>` : null}</section>
    ${agents.length ? html`<section><h2>Agent</h2><ul>${each(agents, ([name]) => name, ([name, number]) => row("agent", name, number, agents[0][1], plain(name)))}</ul></section>` : null}
    ${each(labels, ([name]) => name, ([name, values]) => html`<section><h2>Label ${plain(name)}${sampled}</h2><ul>${Object.entries(values).slice(0, 8).map(([value, number]) => row("label", `${name}=${value}`, number, Math.max(...Object.values(values)), plain(value)))}</ul></section>`)}
    <section><h2>Last heartbeat${sampled}</h2><ul class="plain-facets">${[["under 1 m", "under_1m"], ["1 m to 1 h", "under_1h"], ["older", "older"]].map(([text, name]) => html`<li><span class="facet"><span>${text}</span><span class="facet-count">${count(facets.by_seen[name] ?? 0)}</span></span></li>`)}</ul></section>`;
}

const drag = signal(/** @type {[number, number] | null} */ (null));

/**
 * @param {{bucket_s: number, buckets: {start: string, all: number, failed: number}[]}} created @param {{sessions: number, of: number}} looked @param {(from: string, to: string) => void} narrow
 */
export function histogram({ bucket_s: width, buckets }, looked, narrow) {
  const most = Math.max(1, ...buckets.map(({ all }) => all));
  const step = 1000 / Math.max(24, buckets.length);
  /** @param {PointerEvent} event */
  const at = (event) => {
    const box = /** @type {Element} */ (event.currentTarget).getBoundingClientRect();
    return Math.max(0, Math.min(buckets.length - 1, Math.floor(((event.clientX - box.left) / box.width) * (1000 / step))));
  };
  const end = () => {
    if (!drag.peek()) return;
    const [a, b] = [...(drag.peek() ?? [0, 0])].sort((x, y) => x - y);
    drag.value = null;
    narrow(buckets[a].start, new Date(Date.parse(buckets[b].start) + width * 1000).toISOString());
  };
  const [from, to] = drag.value ? [Math.min(...drag.value), Math.max(...drag.value)] : [0, -1];
  const days = Math.max(1, Math.round((buckets.length * width) / 86400));
  const hours = Math.max(1, Math.round((buckets.length * width) / 3600));
  const span = buckets.length * width < 86400 ? (hours === 1 ? "hour" : `${hours} hours`) : days === 1 ? "day" : `${days} days`;
  const failing = buckets.some(({ failed }) => failed);
  return html`<span class="soft">created in the last ${span}${failing ? ", failed ones in red" : ""}${looked.sessions < looked.of ? `, of the newest ${count(looked.sessions)}` : ""}; drag to narrow</span>
    <svg class="histogram" viewBox="0 0 1000 32" preserveAspectRatio="none" role="img" aria-label=${`Sessions by time of creation, ${buckets.length} columns from ${moment(Date.parse(buckets[0]?.start ?? "") / 1000)}`}
      @pointerdown=${(/** @type {PointerEvent} */ e) => { /** @type {Element} */ (e.currentTarget).setPointerCapture(e.pointerId); drag.value = [at(e), at(e)]; }}
      @pointermove=${(/** @type {PointerEvent} */ e) => { if (drag.peek()) drag.value = [/** @type {[number, number]} */ (drag.peek())[0], at(e)]; }} @pointerup=${end}>
      ${each(buckets, ({ start }) => start, ({ all, failed }, i) => svg`<g><rect class=${i >= from && i <= to ? "bar chosen" : "bar"} x=${i * step} y=${32 - (30 * all) / most} width=${step * 0.86} height=${(30 * all) / most}/>${failed ? svg`<rect class="bar failed" x=${i * step} y=${32 - Math.max(3, (30 * failed) / most)} width=${step * 0.86} height=${Math.max(3, (30 * failed) / most)}/>` : null}</g>`)}
    </svg>`;
}
