"""Every error of Saveslot. Each has a stable `.code`; its message says what to do next.

SaveslotError
├── NotFound              no such session, checkpoint or ref (or it was deleted)
├── Conflict              someone else wrote after what you have seen        seen, head
│   └── AlreadyExists     that session id is taken
├── LeaseHeld             another worker holds the session                   owner, since, until
├── LeaseLost             the session is no longer yours: stop now
├── InvalidTransition     the session's state does not allow it              source, target
├── InvalidInput          a value cannot be stored, or makes no sense        path, reason
├── TooLarge              over a limit                                       limit, size
├── Corrupt               stored bytes are damaged                           where, tried
├── KeyMissing            sealed with a key that was not given               key_id
│   └── WrongKey          another key was given under that id                key_id
├── HistoryLost           the database went back in time
├── StepUnknown           a step started and nobody knows whether it ended   name, key
├── StepFailed            a step failed before, and nobody said to retry it  name, key, error
└── Unavailable           the store cannot be reached or written: retry
"""

from __future__ import annotations

from typing import ClassVar

# To whoever uses in a forked child what came along.
FORKED = "this was opened before the process forked, and belongs to its parent; open it again in the child"


class SaveslotError(Exception):
    """Something Saveslot refused or could not do."""

    code: ClassVar[str] = "error"


class NotFound(SaveslotError):
    """No such session, checkpoint or ref."""

    code = "not_found"


class Conflict(SaveslotError):
    """Someone else wrote after what you have seen; nothing of yours was stored, nothing of theirs was touched."""

    code = "conflict"

    def __init__(self, message: str, *, seen: int = 0, head: int = 0) -> None:
        super().__init__(message)
        self.seen = seen
        self.head = head


class AlreadyExists(Conflict):
    """That session id is taken in this namespace."""

    code = "already_exists"


class LeaseHeld(SaveslotError):
    """Another worker holds the session."""

    code = "lease_held"

    def __init__(self, message: str, *, owner: str = "", since: str = "", until: str = "") -> None:
        super().__init__(message)
        self.owner = owner
        self.since = since
        self.until = until


class LeaseLost(SaveslotError):
    """The session is no longer yours: stop now."""

    code = "lease_lost"


class InvalidTransition(SaveslotError):
    """The session's state does not allow it."""

    code = "invalid_transition"

    def __init__(self, verb: str, source: str, target: str, hint: str) -> None:
        article = "an" if source.startswith("a") else "a"
        super().__init__(f"cannot {verb} {article} {source} session ({source} → {target}): {hint}")
        self.source = source
        self.target = target


class InvalidInput(SaveslotError):
    """A value cannot be stored exactly, or an argument makes no sense."""

    code = "invalid_input"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class TooLarge(SaveslotError):
    """Over a limit; nothing was stored."""

    code = "too_large"

    def __init__(self, what: str, *, limit: int, size: int) -> None:
        super().__init__(f"{what} is too large: {size:,} of at most {limit:,} bytes; store less, or raise the limit")
        self.limit = limit
        self.size = size


class Corrupt(SaveslotError):
    """Stored bytes are damaged. They are reported, never handed out as data."""

    code = "corrupt"

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}; restore it from a backup, or roll back to an older checkpoint")
        self.where = where
        self.reason = reason


class KeyMissing(SaveslotError):
    """The session is sealed with a key that was not given. Nothing of it was read or written."""

    code = "key_missing"

    def __init__(self, message: str, *, key_id: str = "") -> None:
        super().__init__(message)
        self.key_id = key_id


class WrongKey(KeyMissing):
    """A key was given under the id that the session names, but it is another one."""

    code = "wrong_key"


class HistoryLost(SaveslotError):
    """What you had read or been acknowledged is not there: the database went back in time."""

    code = "history_lost"


class StepUnknown(SaveslotError):
    """A step started and nobody knows whether it ended."""

    code = "step_unknown"

    def __init__(self, message: str, *, name: str = "", key: str = "") -> None:
        super().__init__(message)
        self.name = name
        self.key = key


class StepFailed(SaveslotError):
    """A step failed before, and nobody said that it may be run again."""

    code = "step_failed"

    def __init__(self, message: str, *, name: str = "", key: str = "", error: str = "") -> None:
        super().__init__(message)
        self.name = name
        self.key = key
        self.error = error


class Unavailable(SaveslotError):
    """The store cannot be reached or written now. Whether a write under way landed is unknown; retrying is safe."""

    code = "unavailable"
