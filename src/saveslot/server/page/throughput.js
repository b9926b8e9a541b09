// @ts-check
/** Checkpoints and bytes of the last minute, counted from the stream. */
import { count, size } from "./format.js";
import { html, signal } from "./view.js";

const SECONDS = 60;
const [WIDTH, HEIGHT] = [330, 64];

export function throughput() {
  const seconds = signal(/** @type {readonly {checkpoints: number, bytes: number}[]} */ (Array(SECONDS).fill({ checkpoints: 0, bytes: 0 })));
  let current = { checkpoints: 0, bytes: 0 };
  const timer = setInterval(() => {
    seconds.value = [...seconds.peek().slice(1), current];
    current = { checkpoints: 0, bytes: 0 };
  }, 1000);
  return {
    seconds,
    /** @param {import("./stream.js").Entry} entry */
    take({ kind, bytes }) {
      if (kind === "checkpoint") current.checkpoints++;
      current.bytes += bytes ?? 0;
    },
    stop: () => clearInterval(timer),
  };
}

/** @param {ReturnType<typeof throughput>} rate */
export function throughputView({ seconds }) {
  const values = seconds.value;
  const most = Math.max(4, ...values.map(({ checkpoints }) => checkpoints));
  const last = values.slice(-10);
  const mean = (/** @type {"checkpoints" | "bytes"} */ what) => last.reduce((sum, second) => sum + second[what], 0) / last.length;
  const step = WIDTH / (values.length - 1);
  const line = values.map(({ checkpoints }, i) => `${i ? "L" : "M"}${(i * step).toFixed(1)} ${(HEIGHT - (checkpoints / most) * (HEIGHT - 4)).toFixed(1)}`).join("");
  const perSecond = mean("checkpoints");
  return html`<section class="panel" aria-label="Throughput"><header class="panel-head"><h2>Throughput</h2><span class="soft">last 60 s, as this page saw it</span></header>
    <div class="pad"><div class="figures"><span><b>${perSecond < 10 ? perSecond.toFixed(1) : count(Math.round(perSecond))}</b> checkpoints/s</span><span><b>${size(Math.round(mean("bytes")))}</b>/s</span></div>
    <svg class="throughput" viewBox=${`0 0 ${WIDTH} ${HEIGHT + 2}`} role="img" aria-label=${`${perSecond.toFixed(1)} checkpoints a second; at most ${most} in a second of the last minute`}><path class="area" d=${`${line}V${HEIGHT}H0z`}/><path class="line" d=${line}/></svg></div></section>`;
}
