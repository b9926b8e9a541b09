/* What `sight.py` asks of a page: an expression, an object of functions. */
({
  /** Text that is cut off, text over text, and a page wider than its window. */
  blemishes() {
    const wrong = [];
    const wide = document.documentElement.scrollWidth - innerWidth;
    if (wide > 0) wrong.push(`the page is ${wide} px too wide`);
    const common = (a, b) => ({
      left: Math.max(a.left, b.left), top: Math.max(a.top, b.top), right: Math.min(a.right, b.right), bottom: Math.min(a.bottom, b.bottom),
    });
    const name = ({ data, parentElement }) => {
      const holder = parentElement.closest("[class]")?.getAttribute("class") ?? parentElement.tagName;
      return `"${data.trim().slice(0, 40)}" in ${holder}`;
    };
    // Drawn over the rest on purpose, or not drawn at all.
    const aside = ".hidden, option, .toast-place, .bulk-bar, defs, .grey-bars";
    const root = document.querySelector("dialog[open]") ?? document.querySelector("main");
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    const texts = [];
    while (walker.nextNode()) {
      const node = /** @type {Text} */ (walker.currentNode);
      const holder = node.parentElement;
      if (!node.data.trim() || holder.closest(aside)) continue;
      if (!holder.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
      const range = document.createRange();
      range.selectNodeContents(node);
      for (const rect of range.getClientRects()) {
        if (rect.width < 1 || rect.height < 1) continue;
        let seen = { left: rect.left, top: rect.top, right: rect.right, bottom: rect.bottom };
        let shortened = false; // by an ellipsis
        for (let box = holder; box && box !== document.body; box = box.parentElement) {
          const { overflowX, overflowY, textOverflow } = getComputedStyle(box);
          if (textOverflow === "ellipsis") shortened = true;
          if (overflowX === "visible" && overflowY === "visible") continue;
          const before = seen;
          seen = common(seen, box.getBoundingClientRect());
          const sideways = Math.max(before.right - seen.right, seen.left - before.left) > 1.5;
          const lost = sideways || Math.max(before.bottom - seen.bottom, seen.top - before.top) > 3;
          const scrolls = /auto|scroll/.test(overflowX + overflowY);
          if (lost && !scrolls && !shortened && box.tagName !== "svg" && seen.right > seen.left) {
            wrong.push(`cut off: ${name(node)}`);
            break;
          }
        }
        if (seen.right - seen.left > 1 && seen.bottom - seen.top > 1) texts.push({ node, ...seen });
      }
    }
    texts.sort((a, b) => a.top - b.top);
    texts.forEach((a, i) => {
      for (let k = i + 1; k < texts.length && texts[k].top < a.bottom - 3; k++) {
        const b = texts[k];
        const { left, top, right, bottom } = common(a, b);
        const [one, two] = [a.node.parentElement, b.node.parentElement];
        if (one === two || one.contains(two) || two.contains(one) || right - left < 2.5 || bottom - top < 4) continue;
        wrong.push(`overlap: ${name(a.node)} and ${name(b.node)}`);
      }
    });
    return [...new Set(wrong)];
  },

  /** Left upper corners of the blocks in which two pictures (PNG, as base64) differ: by their mean colours. */
  async difference(one, two, side, shade) {
    const pixels = async (text) => {
      const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
      const image = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
      const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
      context.drawImage(image, 0, 0);
      return context.getImageData(0, 0, image.width, image.height);
    };
    const mean = ({ width, height, data }, x, y) => {
      const sums = [0, 0, 0];
      let number = 0;
      for (let j = y; j < Math.min(y + side, height); j++) {
        for (let i = x; i < Math.min(x + side, width); i++, number++) {
          for (let c = 0; c < 3; c++) sums[c] += data[4 * (j * width + i) + c];
        }
      }
      return sums.map((sum) => (number ? sum / number : -255));
    };
    const [a, b] = [await pixels(one), await pixels(two)];
    const blocks = [];
    for (let y = 0; y < Math.max(a.height, b.height); y += side) {
      for (let x = 0; x < Math.max(a.width, b.width); x += side) {
        const [here, there] = [mean(a, x, y), mean(b, x, y)];
        if (here.some((value, c) => Math.abs(value - there[c]) > shade)) blocks.push([x, y]);
      }
    }
    return blocks;
  },

  /** Widths of a text in the page's fonts. */
  fonts() {
    const context = new OffscreenCanvas(1, 1).getContext("2d");
    const style = getComputedStyle(document.documentElement);
    return [["400 13px", "--sans"], ["600 20px", "--sans"], ["400 12px", "--mono"]].map(([font, family]) => {
      context.font = `${font} ${style.getPropertyValue(family)}`;
      return Math.round(10 * context.measureText("Hamburgefonstiv 0123456789 ✗◌↩").width) / 10;
    });
  },
})
