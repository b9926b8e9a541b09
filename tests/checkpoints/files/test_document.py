"""Documents are written as YAML that every reader reads alike, and read back equal."""

from __future__ import annotations

from enum import Enum

import pytest
import yaml
from hypothesis import given, settings, strategies as st

from saveslot import InvalidInput, TooLarge
from saveslot.checkpoints.files.document import dumped, loaded

TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.text("ab \n\t:#-'\"|>&*!%@`{}[],?~\r\x85\u2028", max_size=30),
    st.sampled_from(["no", "On", "1e3", "0o7", "12:30", "~", "2026-01-02", "0x1f", "1_000", "=", "<<", ".inf", "null"]),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.dictionaries(TEXTS, VALUES, max_size=5))
def test_documents_are_read_back_equal_also_by_pyyaml(document):
    """Our reader and PyYAML's own return the same values, types and order."""
    text = dumped(document)
    for read in (loaded(text), yaml.load(text, yaml.SafeLoader), yaml.load(text, yaml.CSafeLoader)):
        assert repr(read) == repr(document)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "no",
            "No",
            "yes",
            "on",
            "off",
            "y",
            "n",
            "true",
            "null",
            "~",
            "",
            "1",
            "1.5",
            "1e3",
            "1E3",
            "0o7",
            "0x1F",
            "007",
        ),
        *(
            "12:30",
            "190:20:30",
            "1_000",
            "2026-01-02",
            "2026-01-02T03:04:05Z",
            ".inf",
            "-.INF",
            ".nan",
            "+1",
            "=",
            "<<",
        ),
        *("- a", "? a", "a: b", "a #b", "&a", "*a", "!a", "%a", "@a", "`a", "|", ">", " a", "a ", "---", "...", "0b1"),
    ],
)
def test_a_text_that_looks_like_something_else_is_quoted(text):
    """YAML 1.1 and 1.2 would each read some of these as a number, keyword or indicator: none is written plain."""
    assert dumped({text: text}).startswith(b'"')
    assert b': "' in dumped({text: text})
    assert loaded(dumped({text: [text]})) == {text: [text]}


class Status(str, Enum):  # noqa: UP042  (a StrEnum has another `__str__`)
    COMPLETED = "completed"
    NO = "no"
    LONG = "two\nlines"


class Loud(str):
    __slots__ = ()

    def __str__(self) -> str:
        return self.upper()


def test_text_of_another_type_is_written_as_its_characters():
    """An enum of texts, or any subclass of str, is written as the text it equals, whatever its `__str__` gives."""
    document = {
        "status": Status.COMPLETED,
        Status.NO: [Status.NO, Status.LONG, Loud("word")],
        Loud("key"): Loud("a: b"),
    }
    assert loaded(dumped(document)) == document
    assert dumped(document).startswith(b"status: completed\n")


def test_layout():
    """Block style; unicode, order and line breaks are kept."""
    document = {
        "task": "Größe prüfen",
        "files": ["src/a.py", {"path": "b", "lines": [1, 2]}, [], {}],
        "result": "first\nsecond\n",
        "none": None,
    }
    assert dumped(document).decode() == (
        "task: Größe prüfen\n"
        "files:\n"
        "- src/a.py\n"
        "- path: b\n"
        "  lines:\n"
        "  - 1\n"
        "  - 2\n"
        "- []\n"
        "- {}\n"
        "result: |\n"
        "  first\n"
        "  second\n"
        "none: null\n"
    )


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": {"b": [1, {2}]}}, "a.b[1]"),
        ({"a": b"bytes"}, "a"),
        ({"a": float("nan")}, "a"),
        ({"a": [float("inf")]}, "a[0]"),
        ({"a": {1: 2}}, "a.1"),
        ({"a": "\ud800"}, "a"),
        ({"a": 10**5000}, "a"),
    ],
)
def test_a_value_that_yaml_cannot_hold_is_refused_with_its_path(value, path):
    with pytest.raises(InvalidInput) as refused:
        dumped(value)
    assert refused.value.path == path


def test_a_dict_that_contains_itself_is_refused():
    endless: dict = {}
    endless["a"] = [endless]
    with pytest.raises(InvalidInput, match="contains itself"):
        dumped(endless)
    with pytest.raises(TooLarge):
        dumped({"a": "x" * (11 << 20)})


LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "text",
    [
        *(LAUGHS, "a: &x 1\nb: *x", "a: &x 1", "base: &b {k: 1}\nc:\n  <<: *b"),
        *("a: !!python/object/apply:os.system ['true']", "a: !custom 1", "- a list", "just text", "", "# nothing", "~"),
        *("a: 1\na: 2", "a: 1\n---\nb: 2", "a:\n\t- tab", "a: [1, 2", "a: 'open", "a: 1\n b: 2", "[1]: 2", "a: \x01"),
        *("a: " + "[" * 200 + "]" * 200, "a: " + "[" * 100_000, "a: " + "9" * 5000),
    ],
)
def test_anything_but_a_plain_document_is_refused(text):
    """Bombs, aliases, tags, several documents, duplicate keys, tabs, truncation: one error, and nothing is built."""
    with pytest.raises(InvalidInput):
        loaded(text.encode())


def test_files_of_other_tools_are_read():
    """What PyYAML writes, in its own styles, is read; a time stays text."""
    theirs = {
        "updated": "2026-01-02T03:04:05",
        "n": 1,
        "f": 1.5,
        "t": True,
        "long": "word " * 50,
        "m": "a\n\nb\n",
        "s": "1e3",
    }
    assert loaded(yaml.safe_dump(theirs, sort_keys=False).encode()) == theirs
    assert loaded(b"\xef\xbb\xbfupdated: 2026-01-02\nanswer: yes\n") == {"updated": "2026-01-02", "answer": "yes"}
    with pytest.raises(InvalidInput, match="UTF-8"):
        loaded(b"a: \xff")
