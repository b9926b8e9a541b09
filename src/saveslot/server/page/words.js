// @ts-check
/** Two texts, word by word: what went, what came, what stayed. Pure. */

/** @typedef {{kind: "same" | "old" | "new", text: string}} Piece */

// Beyond this many words a side, only what both begin and end with is taken as the same: the table grows with the square.
const MOST = 400;
// One word of so many has to stay for two texts to be shown as one: a few common words say nothing.
const LIKE = 3;
const WORD = /[\p{L}\p{N}]/u;

/** @param {string} before @param {string} after @returns {Piece[]} */
export function wordDiff(before, after) {
  const [a, b] = [before, after].map((text) => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) ?? []);
  let front = 0;
  while (front < a.length && front < b.length && a[front] === b[front]) front++;
  let back = 0;
  while (back < a.length - front && back < b.length - front && a[a.length - 1 - back] === b[b.length - 1 - back]) back++;
  const [x, y] = [a.slice(front, a.length - back), b.slice(front, b.length - back)];
  const middle = x.length > MOST || y.length > MOST ? [] : aligned(x, y);
  const kept = middle.filter(({ kind, text }) => kind === "same" && WORD.test(text)).length;
  const alike = kept * LIKE >= Math.min(...[x, y].map((words) => words.filter((word) => WORD.test(word)).length));
  const changed = alike && middle.length ? middle : [piece("old", x), piece("new", y)];
  return joined([piece("same", a.slice(0, front)), ...changed, piece("same", a.slice(a.length - back))]);
}

/** @param {Piece["kind"]} kind @param {string[]} words @returns {Piece} */
const piece = (kind, words) => ({ kind, text: words.join("") });

/** Along a longest common subsequence. @param {string[]} x @param {string[]} y @returns {Piece[]} */
function aligned(x, y) {
  const length = Array.from({ length: x.length + 1 }, () => new Uint16Array(y.length + 1));
  for (let i = x.length - 1; i >= 0; i--) {
    for (let j = y.length - 1; j >= 0; j--) length[i][j] = x[i] === y[j] ? length[i + 1][j + 1] + 1 : Math.max(length[i + 1][j], length[i][j + 1]);
  }
  /** @type {Piece[]} */
  const pieces = [];
  let [i, j] = [0, 0];
  while (i < x.length || j < y.length) {
    if (i < x.length && j < y.length && x[i] === y[j]) {
      pieces.push({ kind: "same", text: x[i++] });
      j++;
    } else if (j >= y.length || (i < x.length && length[i + 1][j] >= length[i][j + 1])) pieces.push({ kind: "old", text: x[i++] });
    else pieces.push({ kind: "new", text: y[j++] });
  }
  return pieces;
}

/** @param {Piece[]} pieces */
function joined(pieces) {
  /** @type {Piece[]} */
  const result = [];
  for (const { kind, text } of pieces) {
    const last = result[result.length - 1];
    if (!text) continue;
    if (last?.kind === kind) last.text += text;
    else result.push({ kind, text });
  }
  return result;
}
