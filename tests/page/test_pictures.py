"""The screens beside their kept pictures: the same data at the same time, in both themes, on a desk and on a phone."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.page.pictures import FONTS, KEPT, KEPT_LOOKS, LOOKS, SCREENS, Studio, settled, show, studio
from tests.page.sight import blemishes, difference, fonts


@pytest.fixture(scope="module")
def here(chromium: Browser, tmp_path_factory) -> Iterator[Studio]:
    with studio(tmp_path_factory.mktemp("fleet"), chromium.browser_type) as here:
        yield here


@pytest.mark.parametrize("look", LOOKS)
def test_screens_look_as_their_pictures(here, look):
    """No text is cut off or lies over another, and each screen is as it was kept, where the fonts are the same ones."""
    page = here.open(look)
    wrong = []
    for screen in SCREENS:
        seen = show(page, look, screen)
        wrong += [f"{screen}: {blemish}" for blemish in blemishes(page)]
        if look in KEPT_LOOKS and fonts(page) == json.loads(FONTS.read_text()):
            changed = difference(page, (KEPT / f"{screen}-{look}.png").read_bytes(), seen)
            wrong += [f"{screen}: {changed}"] if changed else []
    page.context.close()
    assert wrong == []


FAULTS = {
    "a panel moves by 8 pixels": ".counters { transform: translateX(8px); }",
    "a colour changes": ".counter b { color: #a33; }",
    "a title is cut off": ".panel-head h2 { width: 30px; height: 10px; overflow: hidden; }",
    "rows lie over each other": ".wall li { height: 10px; } .wall li > * { overflow: visible; }",
    "something is too wide": ".counters { width: 1600px; }",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_seen(here, fault):
    """What moves, recolours, cuts off, covers or widens something on a screen does not pass for it."""
    page = here.open("light", bypass_csp=True)
    before = show(page, "light", "now")
    assert not difference(page, before, settled(page))
    assert blemishes(page) == []
    page.add_style_tag(content=FAULTS[fault])
    changed, blemished = difference(page, before, settled(page)), blemishes(page)
    page.context.close()
    assert changed
    assert bool(blemished) is ("moves" not in fault and "colour" not in fault)
