"""A channel's value as data, and back by LangGraph's own serialiser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import BaseModel

from saveslot.moving.langgraph_state import RESERVED, as_data, as_msgpack, careful
from saveslot.values.checks import Data

_SIMPLE = frozenset({int, bool, type(None)})
# Types that LangGraph's own serialiser gives back as they are, wherever they stand.
_ALIKE = frozenset({str, int, float, bool, bytes, type(None)})


class Codec:
    """Values as the serialiser sees them. `careful` also finds keys that are not text, and costs a walk."""

    def __init__(self, serde: SerializerProtocol, *, careful: bool = False) -> None:
        self._serde, self._careful = serde, careful
        self._stock = type(serde) is JsonPlusSerializer
        self._models: dict[str, type[Any]] = {}  # by name: classes that the serialiser has been seen to call

    def carefully(self) -> Codec:
        return Codec(self._serde, careful=True)

    def save(self, value: Any) -> Any:
        if self._stock and (type(value) in _SIMPLE or (type(value) is str and value.isascii())):
            return value
        kind, packed = self._serde.dumps_typed(value)
        match kind:
            case "null":
                return None
            case "bytes":
                return packed
            case "msgpack":
                try:
                    return careful(packed) if self._careful else as_data(packed)
                except (msgspec.DecodeError, ValueError):
                    return {"$typed": [kind, packed]}
            case _:
                return {"$typed": [kind, packed]}

    def save_rest(self, value: Any, stored: Any) -> list[Any] | None:
        """Return what a list has after its stored items; None if it is not a list that begins with them."""
        if type(value) is not list or type(stored) is not list:
            return None
        items, before = cast("list[Any]", value), cast("list[Any]", stored)
        if not before or len(items) < len(before) or not _starts_with(items, before):
            return None
        if len(items) == len(before):
            return []
        added = self.save(items[len(before) :])
        return cast("list[Any]", added) if type(added) is list else None

    def load(self, data: Any) -> Any:
        return self._rebuilt(data) if self._stock else self._loaded(data)

    def _rebuilt(self, data: Any) -> Any:
        """What LangGraph's own serialiser makes of the data, without the detour over msgpack: half the time of a list
        of messages. It alone decides which classes may be called: the first object of each class comes from it.
        """
        if type(data) in _ALIKE:
            return data
        if type(data) is list:
            items: list[Any] = data  # pyright: ignore[reportUnknownVariableType]
            return [item if type(item) in _ALIKE else self._rebuilt(item) for item in items]
        if type(data) is not dict:
            return self._loaded(data)
        stored: Data = data  # pyright: ignore[reportUnknownVariableType]
        name = stored.get("$class", "")
        model = self._models.get(name)
        if model is None and not RESERVED.isdisjoint(stored):
            value = self._loaded(stored)
            if _class_of(value) == name and isinstance(value, BaseModel):
                self._models[name] = type(value)
            return value
        fields = {
            key: item if type(item) in _ALIKE else self._rebuilt(item) if item else item.copy()
            for key, item in stored.items()
        }
        if model is None:
            return fields
        del fields["$class"]
        try:
            return model(**fields)
        except Exception:  # noqa: BLE001  (the serialiser knows what to do with fields that are not valid)
            return self._loaded(stored)

    def _loaded(self, data: Any) -> Any:
        match data:
            case {"$typed": [kind, packed]}:
                return self._serde.loads_typed((kind, packed))
            case None:
                return self._serde.loads_typed(("null", b""))
            case bytes():
                return self._serde.loads_typed(("bytes", data))
            case _:
                return self._serde.loads_typed(("msgpack", as_msgpack(data)))


def _starts_with(value: Sequence[Any], stored: Sequence[Any]) -> bool:
    """True if a list begins with what is stored, also after changes in place; False in doubt.

    A message is compared field by field with its stored form, as Python compares: 1 equals 1.0 and True.
    """
    for item, before in zip(value, stored, strict=False):
        if type(item) is type(before):
            if item != before:
                return False
        elif not _is_stored_as(item, before):
            return False
    return True


def _is_stored_as(item: Any, stored: Any) -> bool:
    if type(stored) is not dict or "$class" not in stored:
        return False
    if stored["$class"] != _class_of(item) or getattr(item, "__pydantic_extra__", None):
        return False
    return {"$class": stored["$class"], **item.__dict__} == stored


def _class_of(item: Any) -> str:
    return f"{item.__class__.__module__}.{item.__class__.__name__}"
