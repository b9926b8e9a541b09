"""Groups that are not well formed are refused with the path of what is wrong."""

from __future__ import annotations

import pytest

from saveslot.errors import InvalidInput
from saveslot.stores.memory import MemoryStore
from saveslot.testing import Pen
from saveslot.testing.conformance.malformed import malformed
from saveslot.values.log import checked


@pytest.mark.parametrize("path", malformed())
async def test_malformed_group_is_refused(path):
    """`checked` and the memory store raise `InvalidInput` with the path, and nothing of the call lands."""
    group = malformed()[path]
    with pytest.raises(InvalidInput) as caught:
        checked(group)
    assert caught.value.path == path
    store, pen = MemoryStore(), Pen("ns", "fine")
    with pytest.raises(InvalidInput):
        await store.append([pen.begin(), group])
    assert await store.heads([pen.key]) == [None]


def test_well_formed_group_is_returned():
    """Creating, writing, taking, releasing and deleting are well formed."""
    pen = Pen("ns", "s")
    for group in (pen.begin, lambda: pen.group(3), pen.take_over, lambda: pen.group(2), pen.release, pen.delete):
        result = group()
        assert checked(result) is result
        pen.saw(result)
