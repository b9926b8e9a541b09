"""What an eye would find wrong on any screen: text that is cut off, text over text, a page wider than the window.

And how much one picture differs from another, by blocks, so that the edges of letters do not count. `sight.js` looks.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import Page

# Pixels of a block's side, how much its mean colour may differ (of 255), and how many blocks of a picture may.
BLOCK, SHADE, BLOCKS = 16, 9, 8

_LOOK = f"([name, ...values]) => ({Path(__file__).with_suffix('.js').read_text().strip()})[name](...values)"


class Difference(NamedTuple):
    """Blocks of a picture that differ from another one, each by its left upper corner."""

    blocks: list[tuple[int, int]]

    def __bool__(self) -> bool:
        return len(self.blocks) > BLOCKS

    def __str__(self) -> str:
        xs, ys = zip(*self.blocks, strict=True)
        return f"{len(self.blocks)} blocks differ, within x {min(xs)} to {max(xs)}, y {min(ys)} to {max(ys)}"


def _look(page: Page, name: str, *values: Any) -> Any:
    return page.evaluate(_LOOK, [name, *values])


def blemishes(page: Page) -> list[str]:
    return _look(page, "blemishes")


def difference(page: Page, one: bytes, two: bytes) -> Difference:
    """Compare two pictures, in a page that need not show anything."""
    texts = [base64.b64encode(picture).decode() for picture in (one, two)]
    return Difference(_look(page, "difference", *texts, BLOCK, SHADE))


def fonts(page: Page) -> list[float]:
    """Widths of a text in the page's fonts: the same on machines whose pictures can be compared."""
    return _look(page, "fonts")
