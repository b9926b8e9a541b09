"""Every error of Saveslot: a stable `.code`, a message that says what to do next, and the fields named on the right.

`to_dict` and `from_dict` carry an error over a wire: the same type, message and fields come out.

SaveslotError
├── NotFound              no such session, checkpoint or ref (or it was deleted)
├── Conflict              another caller wrote after what you have seen      seen, head
│   └── AlreadyExists     that session id is taken
├── LeaseHeld             another worker holds the session                   owner, since, until
├── LeaseLost             the session is no longer yours: stop now
├── Cancelled             the session you hold was cancelled: save and stop  reason
├── InvalidTransition     the session's state does not allow it              source, target
├── InvalidInput          a value or an argument is not valid                path, reason
├── TooLarge              over a limit                                       limit, size
├── QuotaExceeded         the namespace is at its limit                      namespace, quota, limit, used, retry_after
├── Corrupt               stored bytes are damaged                           where, reason
├── KeyMissing            sealed with a key that was not given               key_id
│   └── WrongKey          a different key was given under that id            key_id
├── HistoryLost           the database went back in time
├── StepUnknown           a step started; whether it finished is unknown     name, key
├── StepFailed            a step failed before, and retry was not set        name, key, error
├── Unauthorized          the store refused the user, password, token or key file
├── Forbidden             you may not do this
└── Unavailable           the store cannot be reached or written: retry
"""

from __future__ import annotations

from collections.abc import Mapping
from copyreg import __newobj__  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
from typing import Any, ClassVar

# Raised in a forked child by anything its parent opened.
FORKED = "this was opened before the process forked, and belongs to its parent; open it again in the child"


class SaveslotError(Exception):
    """Base class of every error that Saveslot raises."""

    code: ClassVar[str] = "error"
    fields: ClassVar[tuple[str, ...]] = ()  # the names of its attributes, all text or whole numbers

    def to_dict(self) -> dict[str, Any]:
        """Flat: `code`, `message`, then the fields."""
        return {"code": self.code, "message": str(self), **{name: getattr(self, name) for name in self.fields}}

    def __reduce__(self) -> Any:
        # Past the constructor, which may build the message from parts.
        return __newobj__, (type(self), str(self)), vars(self)


class NotFound(SaveslotError):
    """No such session, checkpoint or ref."""

    code = "not_found"


class Conflict(SaveslotError):
    """Another caller wrote after what you have seen. Nothing of yours was stored, nothing of theirs was changed."""

    code = "conflict"
    fields = ("seen", "head")
    seen: int = 0
    head: int = 0

    def __init__(self, message: str, *, seen: int = 0, head: int = 0) -> None:
        super().__init__(message)
        self.seen = seen
        self.head = head


class AlreadyExists(Conflict):
    """The session id is taken in this namespace."""

    code = "already_exists"


class LeaseHeld(SaveslotError):
    """Another worker holds the session."""

    code = "lease_held"
    fields = ("owner", "since", "until")
    owner: str = ""
    since: str = ""
    until: str = ""

    def __init__(self, message: str, *, owner: str = "", since: str = "", until: str = "") -> None:
        super().__init__(message)
        self.owner = owner
        self.since = since
        self.until = until


class LeaseLost(SaveslotError):
    """The session is no longer yours: stop now."""

    code = "lease_lost"


class Cancelled(SaveslotError):
    """The session you hold was cancelled: save what is needed, then end it or leave."""

    code = "cancelled"
    fields = ("reason",)
    reason: str = ""

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class InvalidTransition(SaveslotError):
    """The session's state does not allow this."""

    code = "invalid_transition"
    fields = ("source", "target")
    source: str = ""
    target: str = ""

    def __init__(self, verb: str, source: str, target: str, hint: str) -> None:
        article = "an" if source.startswith("a") else "a"
        super().__init__(f"cannot {verb} {article} {source} session ({source} → {target}): {hint}")
        self.source = source
        self.target = target


class InvalidInput(SaveslotError):
    """A value cannot be stored exactly, or an argument is not valid."""

    code = "invalid_input"
    fields = ("path", "reason")
    path: str = ""
    reason: str = ""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class TooLarge(SaveslotError):
    """Over a limit; nothing was stored."""

    code = "too_large"
    fields = ("limit", "size")
    limit: int = 0
    size: int = 0

    def __init__(
        self, what: str, *, limit: int, size: int, unit: str = "bytes", hint: str = "store less, or raise the limit"
    ) -> None:
        super().__init__(f"{what} is too large: {size:,} of at most {limit:,} {unit}; {hint}")
        self.limit = limit
        self.size = size


class QuotaExceeded(SaveslotError):
    """The namespace is at a limit that an operator set; nothing was stored."""

    code = "quota_exceeded"
    fields = ("namespace", "quota", "limit", "used", "retry_after")
    namespace: str = ""
    quota: str = ""
    limit: int = 0
    used: int = 0
    retry_after: int = 0  # seconds; 0 if time alone does not help

    def __init__(self, namespace: str, quota: str, *, limit: int, used: int, hint: str, retry_after: int = 0) -> None:
        what = quota.replace("_", " ")
        super().__init__(f"namespace {namespace} has {used:,} of at most {limit:,} {what}; {hint}")
        self.namespace = namespace
        self.quota = quota
        self.limit = limit
        self.used = used
        self.retry_after = retry_after


class Corrupt(SaveslotError):
    """Stored bytes are damaged. They are reported, never returned as data."""

    code = "corrupt"
    fields = ("where", "reason")
    where: str = ""
    reason: str = ""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}; restore it from a backup, or roll back to an older checkpoint")
        self.where = where
        self.reason = reason


class KeyMissing(SaveslotError):
    """The session is sealed with a key that was not given. Nothing was read or written."""

    code = "key_missing"
    fields = ("key_id",)
    key_id: str = ""

    def __init__(self, message: str, *, key_id: str = "") -> None:
        super().__init__(message)
        self.key_id = key_id


class WrongKey(KeyMissing):
    """The key given under the session's key id is not the one it was sealed with."""

    code = "wrong_key"


class HistoryLost(SaveslotError):
    """An entry that was read or acknowledged is gone: the database went back in time."""

    code = "history_lost"


class StepUnknown(SaveslotError):
    """A step started, and whether it finished is unknown."""

    code = "step_unknown"
    fields = ("name", "key")
    name: str = ""
    key: str = ""

    def __init__(self, message: str, *, name: str = "", key: str = "") -> None:
        super().__init__(message)
        self.name = name
        self.key = key


class StepFailed(SaveslotError):
    """A step failed before, and `retry` was not set."""

    code = "step_failed"
    fields = ("name", "key", "error")
    name: str = ""
    key: str = ""
    error: str = ""

    def __init__(self, message: str, *, name: str = "", key: str = "", error: str = "") -> None:
        super().__init__(message)
        self.name = name
        self.key = key
        self.error = error


class Unauthorized(SaveslotError):
    """The server refused user, password or token. Nothing was read or written."""

    code = "unauthorized"


class Forbidden(SaveslotError):
    """The server refused this, for want of a right. Nothing was written."""

    code = "forbidden"


class Unavailable(SaveslotError):
    """The store cannot be reached or written now. A write in flight may or may not be stored; retrying is safe."""

    code = "unavailable"


BY_CODE = {
    kind.code: kind for kind in list(globals().values()) if isinstance(kind, type) and issubclass(kind, SaveslotError)
}


def from_dict(data: Mapping[str, Any]) -> SaveslotError:
    """The error that `to_dict` described; a plain `SaveslotError` for a code that this version does not know."""
    kind = BY_CODE.get(str(data.get("code")), SaveslotError)
    error = kind.__new__(kind, data.get("message", ""))
    vars(error).update({name: data[name] for name in kind.fields if name in data})
    return error
