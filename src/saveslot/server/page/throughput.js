// @ts-check
/** Checkpoints and bytes: of the last minute from the stream, of an hour or a day from the store. */
import { get } from "./api.js";
import { now } from "./clock.js";
import { count, size } from "./format.js";
import { place, replace, withQuery } from "./places.js";
import { effect, html, signal } from "./view.js";

const SECONDS = 60;
/** Seconds of a window, and of one of its points. */
const WINDOWS = /** @type {Record<string, [number, number]>} */ ({ "1h": [3600, 60], "24h": [86400, 1440] });
const [WIDTH, HEIGHT] = [330, 64];

/** Without the one that is still being filled: it would look like a fall. @param {readonly any[]} buckets @param {number} width seconds of each */
const whole = (buckets, width) => buckets.filter(({ start }) => Date.parse(start) / 1000 + width <= now.peek());

export function throughput() {
  const seconds = signal(/** @type {readonly {checkpoints: number, bytes: number}[]} */ (Array(SECONDS).fill({ checkpoints: 0, bytes: 0 })));
  let current = 0;
  // What was written before this page was opened, a second each.
  get("/stats/buckets", { since: SECONDS, bucket: 1 }).then(({ items }) => {
    const known = new Map(items.map((/** @type {any} */ { start, checkpoints }) => [Math.floor(now.peek() - Date.parse(start) / 1000), checkpoints]));
    seconds.value = seconds.peek().map(({ checkpoints, bytes }, i, { length }) => ({ checkpoints: checkpoints || (known.get(length - 1 - i) ?? 0), bytes }));
  }).catch(() => {});
  const timer = setInterval(() => {
    seconds.value = [...seconds.peek().slice(1), { checkpoints: current, bytes: 0 }];
    current = 0;
  }, 1000);
  const stored = signal(/** @type {readonly {checkpoints: number, bytes: number}[] | null} */ (null));
  let again = 0;
  const stop = effect(() => {
    const window = WINDOWS[place.value.query.get("window") ?? ""];
    stored.value = null;
    clearTimeout(again);
    if (!window) return;
    const load = () => get("/stats/buckets", { since: window[0], bucket: window[1] }).then(({ items }) => (stored.value = whole(items, window[1]).map((item) => ({ checkpoints: item.checkpoints / window[1], bytes: item.bytes / window[1] })))).catch(() => {}).finally(() => (again = setTimeout(load, 15_000)));
    load();
  });
  return {
    seconds,
    stored,
    /** @param {import("./stream.js").Digest} digest */
    take: ({ counts_by_kind: counts }) => (current += counts.checkpoint ?? 0),
    stop() {
      clearInterval(timer);
      clearTimeout(again);
      stop();
    },
  };
}

/** @param {number} n */
const perSecondText = (n) => (n && n < 10 ? n.toFixed(n < 0.1 ? 3 : 1) : count(Math.round(n)));

/** @param {ReturnType<typeof throughput>} rate @param {number | undefined} bytes a second, over the last minute: digests do not count them */
export function throughputView({ seconds, stored }, bytes) {
  const chosen = WINDOWS[place.value.query.get("window") ?? ""] ? place.value.query.get("window") : "60s";
  const values = (chosen === "60s" ? seconds.value : stored.value) ?? [{ checkpoints: 0, bytes: 0 }, { checkpoints: 0, bytes: 0 }];
  const peak = Math.max(...values.map(({ checkpoints }) => checkpoints));
  const most = Math.max(chosen === "60s" ? 4 : 0.01, peak);
  const last = chosen === "60s" ? values.slice(-10) : values;
  const mean = (/** @type {"checkpoints" | "bytes"} */ what) => last.reduce((sum, second) => sum + second[what], 0) / last.length;
  const step = WIDTH / (values.length - 1);
  const line = values.map(({ checkpoints }, i) => `${i ? "L" : "M"}${(i * step).toFixed(1)} ${(HEIGHT - (checkpoints / most) * (HEIGHT - 4)).toFixed(1)}`).join("");
  const perSecond = mean("checkpoints");
  const written = chosen === "60s" ? bytes : mean("bytes");
  return html`<section class="panel" aria-label="Throughput"><header class="panel-head"><h2>Throughput</h2><span class="push segments">${["60s", "1h", "24h"].map((name) => html`<button aria-pressed=${String(name === chosen)} @click=${() => replace(withQuery({ window: name === "60s" ? null : name }))}>${name.replace(/(\d)([a-z])/, "$1 $2")}</button>`)}</span></header>
    <div class="pad"><div class="figures"><span><b>${perSecondText(perSecond)}</b> checkpoints/s</span>${written === undefined ? null : html`<span><b>${size(Math.round(written))}</b>/s</span>`}</div>
    <p class="most soft">at most ${perSecondText(peak)}/s</p><svg class="throughput" preserveAspectRatio="none" viewBox=${`0 0 ${WIDTH} ${HEIGHT + 2}`} role="img" aria-label=${`${perSecond.toFixed(1)} checkpoints a second; at most ${peak.toFixed(1)}, over ${chosen}`}><path class="area" d=${`${line}V${HEIGHT}H0z`}/><path class="line" d=${line}/></svg></div></section>`;
}
