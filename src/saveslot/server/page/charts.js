// @ts-check
/** Small charts; each can also be read as a table. */
import { each, html, signal, svg } from "./view.js";

const tables = signal(/** @type {ReadonlySet<string>} */ (new Set()));

/** @param {string} name @param {unknown} chart @param {readonly (readonly unknown[])[]} rows the first is the heading */
export function withTable(name, chart, rows) {
  const open = tables.value.has(name);
  const toggle = () => {
    const next = new Set(tables.peek());
    if (!next.delete(name)) next.add(name);
    tables.value = next;
  };
  const [head, ...body] = rows;
  return html`${open ? html`<div class="table-wrap chart-table" tabindex="0"><table><thead><tr>${head.map((cell) => html`<th>${cell}</th>`)}</tr></thead><tbody>${body.map((row) => html`<tr>${row.map((cell) => html`<td>${cell}</td>`)}</tr>`)}</tbody></table></div>` : chart}
    <button class="quiet as-table" aria-pressed=${String(open)} @click=${toggle}>as ${open ? "chart" : "table"}</button>`;
}

/** @param {readonly number[]} values @param {{width?: number, height?: number, label: string, look?: string}} view */
export function bars(values, { width = 600, height = 120, label, look = "" }) {
  const most = Math.max(1, ...values);
  const step = width / Math.max(1, values.length);
  return html`<svg class=${`bars ${look}`} viewBox=${`0 0 ${width} ${height}`} preserveAspectRatio="none" role="img" aria-label=${label}><path class="base" d=${`M0 ${height - 0.5}H${width}`}/>
    ${each(values, (_, i) => i, (value, i) => svg`<rect x=${i * step} y=${height - Math.max(value ? 1.5 : 0, (value / most) * (height - 2))} width=${Math.max(0.5, step * 0.92)} height=${Math.max(value ? 1.5 : 0, (value / most) * (height - 2))}/>`)}</svg>`;
}

/** A curve of 90 by 26 pixels. @param {readonly number[]} values @param {string} word a state, for its colour */
export function spark(values, word) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const step = 90 / Math.max(1, values.length - 1);
  const line = values.map((value, i) => `${i ? "L" : "M"}${(i * step).toFixed(1)} ${(high === low ? 14 : 24 - ((value - low) / (high - low)) * 21).toFixed(1)}`).join("");
  return html`<svg class=${`spark s-${word}`} width="90" height="26" aria-hidden="true"><path class="area" d=${`${line}V26H0z`}/><path class="line" d=${line}/></svg>`;
}

// Share of a chart's width that a label takes at most, on a phone.
const LABEL = 0.36;

/** On which side of its line a label stands, and in which row, so that no two overlap. Pure. @param {readonly number[]} xs shares of the width */
export function labelPlaces(xs) {
  /** @type {{row: number, left: boolean, from: number, to: number}[]} */
  const placed = [];
  for (const x of xs) {
    const left = x > 1 - LABEL;
    const [from, to] = left ? [x - LABEL, x] : [x, x + LABEL];
    const taken = placed.filter((other) => other.from < to && from < other.to).map(({ row }) => row);
    placed.push({ row: taken.includes(0) ? 1 : 0, left, from, to });
  }
  return placed;
}

/** A histogram with log buckets, which says so. @param {readonly {from: number, to: number, count: number}[]} buckets @param {{p50: number | null, p99: number | null}} at @param {(value: number) => string} text @param {string} name */
export function logHistogram(buckets, at, text, name) {
  if (!buckets.length) return html`<p class="soft">none yet</p>`;
  const [low, high] = [Math.log(buckets[0].from), Math.log(buckets[buckets.length - 1].to)];
  const share = (/** @type {number} */ value) => Math.min(1, Math.max(0, (Math.log(Math.max(value, 1e-9)) - low) / (high - low || 1)));
  const marks = /** @type {[string, number | null][]} */ ([["p50", at.p50], ["p99", at.p99]]).flatMap(([word, value]) => (value === null ? [] : [{ word, x: share(value), text: `${word} ${text(value)}` }]));
  const chart = html`<div class="log-histogram">${labelPlaces(marks.map(({ x }) => x)).map(({ row, left }, i) => html`<span class=${`percentile row-${row}${left ? " left" : ""}`} .style=${{ left: `${(100 * marks[i].x).toFixed(1)}%` }}>${marks[i].text}</span>`)}
    ${bars(buckets.map(({ count }) => count), { height: 90, label: `${name}, log scale` })}<div class="chart-axis soft"><span>${text(buckets[0].from)}</span><span>log scale</span><span>${text(buckets[buckets.length - 1].to)}</span></div></div>`;
  return withTable(name, chart, [["from", "to", "sessions"], ...buckets.map(({ from, to, count }) => [text(from), text(to), count])]);
}
