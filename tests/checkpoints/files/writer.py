"""Write one checkpoint; the n-th system call kills the process or finds the disk full: `writer.py FOLDER HOW N`."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import sys
from types import SimpleNamespace

from saveslot import CheckpointStore, Unavailable
from saveslot.checkpoints.files import folder

CALLS = ("open", "close", "write", "fsync", "rename", "unlink", "stat")
NEW = {"version": "new", "text": "word " * 2000}


class Failing:
    """`os` and `fcntl` as `folder` sees them; the n-th call goes wrong."""

    def __init__(self, how: str, place: int) -> None:
        self.how, self.place, self.calls = how, place, []

    def wrapped(self, module):
        names = {name: getattr(module, name) for name in dir(module)}
        for name in CALLS:
            if name in names:
                names[name] = self.call(name, names[name])
        return SimpleNamespace(**names)

    def call(self, name, real):
        def call(*args, **options):
            self.calls.append(name)
            if len(self.calls) == self.place:
                if name == "write":
                    real(args[0], bytes(args[1])[: len(args[1]) // 2])
                if self.how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if name in {"write", "fsync", "open", "rename"}:
                    raise OSError(errno.ENOSPC, "No space left on device")
            return real(*args, **options)

        return call


def main(path: str, how: str, place: str) -> None:
    store = CheckpointStore(path)
    failing = Failing(how, int(place))
    folder.os = failing.wrapped(folder.os)
    fcntl.flock = failing.call("flock", fcntl.flock)
    try:
        store.write("s", NEW)
        sys.stdout.write(" ".join(["written", *failing.calls]))
    except Unavailable as exc:
        sys.stdout.write(f"refused {exc}")


if __name__ == "__main__":
    main(*sys.argv[1:])
