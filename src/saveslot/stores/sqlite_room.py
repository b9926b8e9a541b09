"""Room in a WAL ahead of the commits that fill it.

While that file grows, each sync has to write its size and where its new blocks lie as well, and takes about twice as
long; a fresh file grows for its first thousand pages. So zeros are put behind its end, many pages at a time, and synced
with the commit that comes next. To SQLite they are what any rest of a WAL is: no frame, so the log ends before them.
"""

from __future__ import annotations

import os

import apsw

# Before so many pages are in use nobody knows whether more will come.
FIRST = 16
# So many at a time: a quarter of a megabyte, with one commit in about 25.
STRIDE = 64
# When fewer are left, it is time for more. A larger commit makes its own room.
LEFT = 8
# What SQLite puts in front of the first frame, and of each page.
HEAD, FRAME_HEAD = 32, 24


class Room:
    def __init__(self) -> None:
        self.enough: float = FIRST - LEFT  # for so many pages in use, as far as we know

    def lay(self, connection: apsw.Connection, used: int) -> None:
        """Behind so many pages. Under the write lock: else another process might just be writing at the file's end."""
        frame = FRAME_HEAD + connection.pragma("page_size")
        wanted = HEAD + frame * (used + STRIDE)
        try:
            with open(connection.filename_wal, "r+b", buffering=0) as file:  # noqa: PTH123
                size = os.fstat(file.fileno()).st_size
                if size < wanted:
                    file.seek(size)
                    size += file.write(bytes(wanted - size))
            self.enough = (size - HEAD) // frame - LEFT
        except OSError:
            self.enough = float("inf")  # a full disk, or a file that is none: SQLite makes its own way, or tells
