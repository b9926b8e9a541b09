"""Write types.d.ts from the server's OpenAPI document: python clients/typescript/make_types.py"""  # noqa: INP001

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import fill
from typing import Any

from saveslot.server.openapi import document
from saveslot.server.routes import table

FILE = Path(__file__).parent / "types.d.ts"
# What the client calls, and what it calls the parameters.
OPERATIONS = {
    "POST /v1/sessions": "",
    "GET /v1/sessions/{id}": "SessionQuery",
    "PATCH /v1/sessions/{id}": "",
    "GET /v1/sessions/{id}/data": "DataQuery",
    "POST /v1/sessions/{id}/checkpoints": "",
    "POST /v1/sessions/{id}/rollback": "",
    "POST /v1/sessions/{id}/complete": "",
    "POST /v1/sessions/{id}/fail": "",
    "POST /v1/sessions/{id}/lease": "",
    "POST /v1/sessions/{id}/steps": "",
    "POST /v1/claims": "",
    "GET /v1/events": "EventsQuery",
}
# Words of an enum, and characters of a comment, that stand on one line.
MOST, WIDEST = 8, 110
HEAD = """\
// Generated from the server's OpenAPI document by make_types.py. Do not edit.

/** A JSON object; datetime, bytes and UUID have a tagged form: `{"$saveslot": ["datetime", "2026-01-02T03:04Z"]}`. */
export type Data = Record<string, any>;
"""
WORDS = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
Schema = dict[str, Any]


def text() -> str:
    described = document(table())
    schemas: dict[str, Schema] = described["components"]["schemas"]
    queries: list[str] = []
    wanted: list[str] = []
    for name, query in OPERATIONS.items():
        method, path = name.split()
        operation = described["paths"][path][method.lower()]
        wanted += _references([operation.get("requestBody"), operation["responses"]])
        if query:
            queries.append(_interface(query, f"Parameters of `{name}`.", _asked(operation["parameters"])))
    seen: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name not in seen:
            seen.add(name)
            wanted += _references(schemas[name])
    events = described["paths"]["/v1/events"]["get"]["responses"]["200"]["content"]["text/event-stream"]["x-events"]
    sent = _any_of(f'{{ type: "{event}"; id: string; data: {_type(kind)} }}' for event, kind in events.items())
    union = f"/** What a stream sends; `id` is the cursor after it. */\nexport type ServerEvent ={sent};\n"
    return "\n".join([HEAD, *queries, union, *(_declared(name, schemas[name]) for name in sorted(seen, key=_name))])


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from [item.rpartition("/")[2]] if name == "$ref" else _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)


def _asked(parameters: list[Schema]) -> Iterator[tuple[str, Schema, bool]]:
    for one in parameters:
        if one["in"] == "query":
            about = {"description": one["description"]} if "description" in one else {}
            yield one["name"], {**one["schema"], **about}, "required" in one


def _declared(name: str, schema: Schema) -> str:
    if "properties" not in schema:
        return f"{_comment(schema)}export type {_name(name)} = {_type(schema)};\n"
    fields = ((field, kind, field in schema["required"]) for field, kind in schema["properties"].items())
    return _interface(_name(name), schema.get("description", ""), fields)


def _interface(name: str, about: str, fields: Iterator[tuple[str, Schema, bool]]) -> str:
    lines = ""
    for field, kind, required in fields:
        lines += f"{_comment(kind, '  ')}  {field}{'' if required else '?'}: {_type(kind)};\n"
    return f"{_comment({'description': about})}export interface {name} {{\n{lines}}}\n"


def _comment(schema: Schema, indent: str = "") -> str:
    about = "" if _is_data(schema) else " ".join(schema.get("description", "").split())
    if len(about) <= WIDEST:
        return f"{indent}/** {about} */\n" if about else ""
    return f"{indent}/**\n{fill(about, WIDEST, initial_indent=f'{indent} * ', subsequent_indent=f'{indent} * ')}\n */\n"


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        return _name(schema["$ref"].rpartition("/")[2])
    if "enum" in schema:
        words = [json.dumps(word) for word in schema["enum"]]
        return " | ".join(words) if len(words) <= MOST else _any_of(words, "    ")
    if "anyOf" in schema:
        return " | ".join(map(_type, schema["anyOf"]))
    if schema.get("type") == "array":
        item = _type(schema.get("items", {}))
        return f"({item})[]" if "|" in item else f"{item}[]"
    if schema.get("type") == "object":
        return f"Record<string, {_type(schema['additionalProperties'])}>" if _is_map(schema) else "Data"
    return WORDS.get(schema.get("type", ""), "unknown")


def _any_of(types: Iterable[str], indent: str = "  ") -> str:
    """A union, one type a line."""
    return "".join(f"\n{indent}| {one}" for one in types)


def _is_map(schema: Schema) -> bool:
    return isinstance(schema.get("additionalProperties"), dict)


def _is_data(schema: Schema) -> bool:
    return schema.get("type") == "object" and "properties" not in schema and not _is_map(schema)


def _name(name: str) -> str:
    """Page_Lease_ is PageOfLease."""
    return re.sub(r"^(\w+?)_(\w+)_$", r"\1Of\2", name)


if __name__ == "__main__":
    FILE.write_text(text())
