"""Answers: values whose fields are all there is to say, and whose `to_dict` is what JSON shows of them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta
from msgspec.structs import fields

# In JSON, ISO 8601 text.
Time = Annotated[datetime, Meta(extra_json_schema={"format": "date-time"})]


class Answer(msgspec.Struct, frozen=True):
    """A value to read. Times become ISO 8601 text; a field that holds an agent's data stays as it is."""

    def to_dict(self) -> dict[str, Any]:
        return {field.encode_name: _plain(getattr(self, field.name)) for field in fields(self)}


def _plain(value: Any) -> Any:
    match value:
        case Answer():
            return value.to_dict()
        case datetime():
            return value.isoformat()
        case list():
            items = cast("list[Any]", value)
            return [_plain(item) for item in items] if items and isinstance(items[0], msgspec.Struct) else items
        case dict():
            members = cast("dict[str, Any]", value)
            inside = isinstance(next(iter(members.values()), None), Answer)
            return {name: _plain(item) for name, item in members.items()} if inside else members
        case msgspec.Struct():
            return msgspec.to_builtins(value)
        case _:
            return value
