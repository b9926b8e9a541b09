"""A document as YAML for people, and back: JSON's types only, and no YAML reader takes a text for something else.

    task: Add a parser                  plain: begins with a letter, and is not a keyword in any version of YAML
    branch: "no"                        quoted: YAML 1.1 reads no, on, 12:30 and 0o7 as something else, 1.2 does 1e3
    result: |-                          several lines: a block
      All tests pass.
      Nothing is left.

We write YAML ourselves: PyYAML quotes what one version of YAML would misread, never both, and took longer than the disk
(docs/decisions/codec.md). We read it with PyYAML's parser, event by event, and refuse any anchor, alias or tag.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import date
from math import isfinite
from typing import Any, cast

from saveslot.errors import InvalidInput, TooLarge

Document = dict[str, Any]

MAX_BYTES = 10 * 1024 * 1024
# Maximum nesting depth, as in a session's state.
MAX_DEPTH = 100
# Characters. YAML 1.1 wants a key's colon within 1,024; longer keys get a line of their own.
LONGEST_KEY = 500

_PLAIN = re.compile(r"(?:[^\W\d]|/)(?:[\w./@+=()~,;!?'-]| (?=[^\s#]))*")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"})
# Some YAML reader takes these for a line break, or refuses them: escape them. A surrogate cannot be escaped.
_DOUBTFUL = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_UNFIT_FOR_BLOCK = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]|\A[ \t\n]|^[ \t]+$", re.MULTILINE
)
_SURROGATE = re.compile(r"[\ud800-\udfff]")

# A plain text is read as a number or keyword only if YAML 1.1 and 1.2 agree.
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?[0-9]+\.[0-9]*(?:[eE][-+][0-9]+)?|[-+]?\.[0-9]+(?:[eE][-+][0-9]+)?")
_CONSTANTS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_STRING = "tag:yaml.org,2002:str"


def dumped(document: Mapping[str, Any]) -> bytes:
    """Return the document as YAML, or raise `InvalidInput` with the path of a value that YAML cannot hold."""
    out: list[str] = []
    try:
        _write_mapping(document, "", "", out, 1)
    except _Unfit as exc:
        raise InvalidInput("".join(reversed(exc.path)).lstrip(".") or "document", exc.reason) from None
    text = "".join(out).encode()
    if len(text) > MAX_BYTES:
        raise TooLarge("a checkpoint file", limit=MAX_BYTES, size=len(text))
    return text


class _Unfit(Exception):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []


def _write_mapping(value: Mapping[Any, Any], pad: str, lead: str, out: list[str], depth: int) -> None:
    """Write the lines of a mapping; `lead` precedes the first one, `pad` the others."""
    if not value:
        out.append(f"{lead}{{}}\n")
    for key, item in value.items():
        try:
            out.append(lead + _key(key, pad))
            _write_value(item, pad, out, depth)
        except _Unfit as exc:
            exc.path.append(f".{key}")
            raise
        lead = pad


def _write_value(value: Any, pad: str, out: list[str], depth: int) -> None:
    """Write the value after a key."""
    if isinstance(value, str):
        out.append(f" {_text(value, pad)}\n")
    elif isinstance(value, dict) and value:
        out.append("\n")
        _write_mapping(cast("Mapping[Any, Any]", value), pad + "  ", pad + "  ", out, _deeper(depth))
    elif isinstance(value, list | tuple) and value:
        out.append("\n")
        _write_list(cast("list[Any]", value), pad, pad, out, _deeper(depth))
    else:
        out.append(f" {_scalar(value)}\n")


def _write_list(value: list[Any] | tuple[Any, ...], pad: str, lead: str, out: list[str], depth: int) -> None:
    for n, item in enumerate(value):
        try:
            if isinstance(item, str):
                out.append(f"{lead}- {_text(item, pad)}\n")
            elif isinstance(item, dict) and item:
                _write_mapping(cast("Mapping[Any, Any]", item), pad + "  ", lead + "- ", out, _deeper(depth))
            elif isinstance(item, list | tuple) and item:
                _write_list(cast("list[Any]", item), pad + "  ", lead + "- ", out, _deeper(depth))
            else:
                out.append(f"{lead}- {_scalar(item)}\n")
        except _Unfit as exc:
            exc.path.append(f"[{n}]")
            raise
        lead = pad


def _deeper(depth: int) -> int:
    if depth >= MAX_DEPTH:
        raise _Unfit(f"is nested deeper than {MAX_DEPTH} levels, or contains itself")
    return depth + 1


def _key(key: Any, pad: str) -> str:
    if not isinstance(key, str):
        raise _Unfit(f"is a key of type {type(key).__name__}; keys must be text")
    text = str.__str__(key)  # an enum's own `__str__` would give its class and name
    if not _PLAIN.fullmatch(text) or text.lower() in _WORDS:
        text = _quoted(text)
    return f"{text}:" if len(text) <= LONGEST_KEY else f"? {text}\n{pad}:"


def _scalar(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        try:
            return int.__repr__(value)
        except ValueError as exc:
            raise _Unfit(str(exc)) from None
    if isinstance(value, float):
        if not isfinite(value):
            raise _Unfit(f"is {value}; only finite numbers can be stored")
        text = float.__repr__(value)
        return text if "e" not in text or "." in text else text.replace("e", ".0e")
    if isinstance(value, date):  # and a datetime: as text, with its offset
        return f'"{value.isoformat()}"'
    if isinstance(value, dict | list | tuple):  # an empty one
        return "{}" if isinstance(value, dict) else "[]"
    raise _Unfit(f"is of type {type(value).__name__}; text, numbers, true, false, null, lists and dicts can be stored")


def _text(value: str, pad: str) -> str:
    text = str.__str__(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    if "\n" not in text or _UNFIT_FOR_BLOCK.search(text) or _SURROGATE.search(text):
        return _quoted(text)
    end = "-" if not text.endswith("\n") else "+" if text.endswith("\n\n") else ""
    lines = text.removesuffix("\n").split("\n")
    return f"|{end}\n" + "\n".join(f"{pad}  {line}" if line else "" for line in lines)


def _quoted(text: str) -> str:
    if _SURROGATE.search(text):
        raise _Unfit("contains half a character (a lone surrogate)")
    return _DOUBTFUL.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))


def loaded(data: bytes) -> Document:
    """Return the document in a file, or raise `InvalidInput`. Nothing else happens, whatever is wrong with it."""
    if len(data) > MAX_BYTES:
        raise InvalidInput("document", f"has {len(data):,} bytes; at most {MAX_BYTES:,} are read")
    yaml = parser()
    try:
        events: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(data.decode("utf-8-sig"))
        try:
            return _Reading(events, yaml).document()
        finally:
            events.dispose()
    except UnicodeDecodeError:
        raise InvalidInput("document", "is not UTF-8 text") from None
    except yaml.YAMLError as exc:
        raise InvalidInput("document", f"is not YAML ({' '.join(str(exc).split())})") from None
    except ValueError as exc:
        raise InvalidInput("document", f"contains an unreadable number ({exc})") from None


def parser() -> Any:
    """Return PyYAML, or raise an error that says how to install it."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise InvalidInput("CheckpointStore", "needs a YAML parser: pip install 'saveslot[yaml]'") from None
    return yaml


class _Reading:
    def __init__(self, events: Any, yaml: Any) -> None:
        self._next = events.get_event
        self._scalar, self._mapping, self._list = yaml.ScalarEvent, yaml.MappingStartEvent, yaml.SequenceStartEvent
        self._ends = (yaml.MappingEndEvent, yaml.SequenceEndEvent)
        self._end = yaml.StreamEndEvent

    def document(self) -> Document:
        self._next()  # the stream begins
        if isinstance(self._next(), self._end):
            raise InvalidInput("document", "is empty")
        value = self._value(self._next(), 1)
        self._next()  # the document ends
        if not isinstance(self._next(), self._end):
            raise InvalidInput("document", "is one of several in the file")
        if not isinstance(value, dict):
            raise InvalidInput("document", f"must be a mapping, not {type(value).__name__}")
        return cast("Document", value)

    def _value(self, event: Any, depth: int) -> Any:
        kind = cast("type[Any]", type(event))
        if getattr(event, "anchor", None) is not None:
            raise InvalidInput("document", f"uses an anchor or alias, {event.anchor!r}; write the value out")
        if event.tag is not None and event.tag not in {"!", _STRING}:
            raise InvalidInput("document", f"uses the tag {event.tag}; only plain values are read")
        if kind is self._scalar:
            return _resolved(event.value) if event.implicit[0] else event.value
        if depth > MAX_DEPTH:
            raise InvalidInput("document", f"is nested deeper than {MAX_DEPTH} levels")
        if kind is self._list:
            items: list[Any] = []
            while type(event := self._next()) not in self._ends:
                items.append(self._value(event, depth + 1))
            return items
        members: Document = {}
        while type(event := self._next()) not in self._ends:
            if type(event) is not self._scalar or event.anchor is not None:
                raise InvalidInput("document", "has a key that is not plain text")
            if event.value in members:
                raise InvalidInput("document", f"has the key {event.value!r} twice")
            members[event.value] = self._value(self._next(), depth + 1)
        return members


def _resolved(text: str) -> Any:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] not in "0123456789+-.":
        return text
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
