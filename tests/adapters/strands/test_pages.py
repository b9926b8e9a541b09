"""The page about AWS Strands: its examples run as they are, with a model that needs no network."""

from __future__ import annotations

from tests.docs.test_pages import Page, reader

__all__ = ["reader"]


def test_strands(reader):
    """docs/frameworks/strands.md runs from top to bottom."""
    Page("docs/frameworks/strands.md").run()
