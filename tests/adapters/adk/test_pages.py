"""The page about Google ADK: its examples run as they are, with a model that needs no network."""

from __future__ import annotations

from tests.docs.test_pages import Page, reader

__all__ = ["reader"]


def test_adk(reader):
    """docs/frameworks/adk.md runs from top to bottom."""
    Page("docs/frameworks/adk.md").run()
