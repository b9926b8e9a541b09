"""Errors cross a wire, a pipe between processes and a copy, and arrive as they left."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

import saveslot
from saveslot import errors
from saveslot.errors import (
    AlreadyExists,
    Cancelled,
    Conflict,
    Corrupt,
    InvalidInput,
    InvalidTransition,
    KeyMissing,
    LeaseHeld,
    QuotaExceeded,
    SaveslotError,
    StepFailed,
    StepUnknown,
    TooLarge,
    WrongKey,
    from_dict,
)

SAMPLES = [
    Conflict("overtaken", seen=3, head=5),
    AlreadyExists("taken", head=1),
    LeaseHeld("held", owner="w", since="2026-01-01", until="2026-01-02"),
    InvalidTransition("pause", "paused", "paused", "it is paused; resume it first"),
    InvalidInput("data.x", "cannot be stored"),
    TooLarge("data", limit=10, size=11),
    QuotaExceeded("school-7", "sessions", limit=10, used=10, hint="delete some"),
    Corrupt("a frame", "is cut short"),
    KeyMissing("no key", key_id="k1"),
    WrongKey("another key", key_id="k1"),
    Cancelled("cancelled", reason="enough"),
    StepUnknown("unknown", name="pay", key="7"),
    StepFailed("failed", name="pay", key="7", error="boom"),
]
SAMPLES += [
    result(f"a message of {name}")
    for name, result in vars(errors).items()
    if isinstance(result, type) and issubclass(result, SaveslotError) and not result.fields
]


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: error.code)
@pytest.mark.parametrize(
    "carried",
    [
        copy.copy,
        copy.deepcopy,
        lambda error: pickle.loads(pickle.dumps(error)),  # noqa: S301
        lambda error: from_dict(json.loads(json.dumps(error.to_dict()))),
    ],
    ids=["copy", "deepcopy", "pickle", "dict"],
)
def test_errors_keep_type_message_and_fields(error, carried):
    arrived = carried(error)
    assert (type(arrived), str(arrived), arrived.to_dict()) == (type(error), str(error), error.to_dict())
    assert vars(arrived) == vars(error)


def test_every_error_has_a_sample():
    assert {type(error) for error in SAMPLES} == set(errors.BY_CODE.values())


def test_to_dict_is_flat():
    error = Conflict("someone wrote", seen=3, head=5)
    assert error.to_dict() == {"code": "conflict", "message": "someone wrote", "seen": 3, "head": 5}


def test_the_fields_of_each_type_are_in_the_module_docstring():
    for kind in errors.BY_CODE.values():
        line = next(line for line in errors.__doc__.splitlines() if line.split()[-1:] and kind.__name__ in line.split())
        inherited = kind.fields == kind.__mro__[1].fields if kind is not SaveslotError else True
        assert inherited or line.endswith(f" {', '.join(kind.fields)}")


def test_unknown_codes_and_missing_fields_are_accepted():
    assert type(from_dict({"code": "of_the_future", "message": "later", "x": 1})) is SaveslotError
    error = from_dict({"code": "conflict", "message": "short"})
    assert isinstance(error, saveslot.Conflict)
    assert (error.seen, error.head) == (0, 0)
    assert type(from_dict({"code": ["conflict"]})) is SaveslotError
