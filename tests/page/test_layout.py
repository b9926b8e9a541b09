"""The screens beside their stored landmarks: the same hierarchy, columns and order, in both themes and three widths."""

from __future__ import annotations

import json

import pytest

from tests.page.landmarks import FILE, SCREENS, SIZES, boxes

# Pixels by which fonts of another machine, or ages of another length, may move a landmark.
SIDEWAYS, DOWN = 24, 60


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_screens_stand_as_they_did(watched, size, scheme):
    """Each landmark is where it was, within what fonts make different; none is missing, and none is new."""
    width, height = SIZES[size]
    stored = json.loads(FILE.read_text())[size]
    page = watched.open("/settings", viewport={"width": width, "height": height}, color_scheme=scheme)
    moved = []
    for screen in SCREENS:
        now, then = boxes(page, watched.url, screen), stored[screen]
        assert now.keys() == then.keys(), screen
        for landmark, (x, y, wide) in now.items():
            was = then[landmark]
            if abs(x - was[0]) > SIDEWAYS or abs(wide - was[2]) > 2 * SIDEWAYS or abs(y - was[1]) > DOWN:
                moved.append((screen, landmark, was, [x, y, wide]))
    assert moved == []
