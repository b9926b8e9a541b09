"""What saver and store have in common: where their manager comes from, and the block that closes it."""

from __future__ import annotations

import os
from typing import Any, Self

from saveslot.adapters.access import Access


class Opened:
    """For `with` or `async with`, which closes what it opened at the end of the block."""

    __slots__ = ()
    _access: Access

    @classmethod
    def from_conn_string(cls, url: str | os.PathLike[str] | None = None, **options: Any) -> Self:
        """Return one for `with` or `async with`; `url` and `options` are those of `saveslot.open`."""
        create: Any = cls
        return create(url, **options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._access!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._forget()
        self._access.close_now()

    async def close(self) -> None:
        """Close what this opened; a later call opens it again."""
        self._forget()
        await self._access.close()

    def _forget(self) -> None:
        """Let go of what is known of the open manager's sessions."""
