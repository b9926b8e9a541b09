"""Attempts at a step: its options, the call of its function, and the pauses between attempts."""

from __future__ import annotations

import asyncio
import os
import sys
import warnings
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path
from threading import Thread
from typing import Any, Generic, Literal, Self, TypedDict, TypeVar, cast

import msgspec
from msgspec.structs import replace

from saveslot.errors import InvalidInput
from saveslot.session import steps
from saveslot.session.steps import Mode, OnUnknown, Step, Unknown
from saveslot.values.checks import EVER, Span, as_count, as_name, as_span

T_co = TypeVar("T_co", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])

# The attribute that `@saveslot.step` sets on a function.
MARK = "__saveslot_step__"
PACKAGE = str(Path(__file__).parents[1])
# The pause stops doubling here: 2^30 times `backoff` is decades.
MAX_DOUBLINGS = 30


class Known(TypedDict, total=False):
    """Options of a step; every other keyword argument goes to its function."""

    key: str | None
    mode: Mode
    retry: bool
    retries: int
    backoff: Span
    retry_on: type[Exception] | tuple[type[Exception], ...]
    timeout: Span | None
    run_in_thread: bool | None


class Skipping(Known):
    on_unknown: Literal["skip"]


class Given(Known, total=False):
    on_unknown: Unknown | Callable[[Step], Any | Awaitable[Any]]


class Options(msgspec.Struct, frozen=True):
    key: str | None = None
    mode: Mode = "idempotent"
    on_unknown: OnUnknown = "fail"
    retry: bool = False
    retries: int = 0
    backoff: float = 1.0
    retry_on: type[Exception] | tuple[type[Exception], ...] = (Exception,)
    timeout: float | None = None
    run_in_thread: bool | None = None

    def checked(self) -> Self:
        """Return these options with durations in seconds."""
        steps.checked("step", self.key, self.mode, self.on_unknown)
        as_count(self.retries, "retries")
        backoff = as_span(self.backoff, "backoff")
        timeout = None if self.timeout is None else as_span(self.timeout, "timeout")
        if timeout == 0:
            raise InvalidInput("timeout", "must be more than 0 seconds; None waits forever")
        classes = self.retry_on if isinstance(self.retry_on, tuple) else (self.retry_on,)
        if not all(isinstance(one, type) and issubclass(one, Exception) for one in classes):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput("retry_on", "must be an Exception class or a tuple of them")
        return replace(self, backoff=backoff, timeout=timeout)

    def pause(self, attempt: int) -> float:
        """Return the seconds before this attempt: doubled each time, give or take 20 %."""
        doubled = self.backoff * 2 ** min(attempt - 2, MAX_DOUBLINGS)
        return min(doubled, EVER) * (0.8 + 0.4 * os.urandom(1)[0] / 256)


NAMES = frozenset(Options.__struct_fields__)


@dataclass(frozen=True)
class StepCall(Generic[T_co]):
    """A step to run: what `held.call` returns and `held.gather` takes."""

    name: str
    fn: Callable[..., T_co | Awaitable[T_co]]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: Options

    @property
    def is_async(self) -> bool:
        return iscoroutinefunction(self.fn) or iscoroutinefunction(getattr(self.fn, "__call__", None))  # noqa: B004

    @property
    def in_thread(self) -> bool:
        return not self.is_async and self.options.run_in_thread is not False

    def work(self, step: Step) -> Callable[[], Any]:
        key = steps.keyed(self.fn, step) if self.options.mode != "at_least_once" else {}
        return partial(self.fn, *self.args, **{**key, **self.kwargs})


def step_call(first: Any, second: Any, args: tuple[Any, ...], given: dict[str, Any]) -> StepCall[Any]:
    """Return the call that `step(name, fn, *args, **given)` or `step(marked_fn, *args, **given)` asks for."""
    if callable(first):
        fn, args = first, args if second is ... else (second, *args)
        name, known = _mark_of(fn)
        if name is None:
            raise InvalidInput(
                "name", "is missing: pass it before the function, or mark that with @saveslot.step(name)"
            )
    else:
        name, fn = as_name(first, "name"), None if second is ... else second
        steps.check_function(fn)
        known = _mark_of(fn)[1]
    options = Options(**{**known, **{option: given[option] for option in NAMES & given.keys()}}).checked()
    kwargs = {option: value for option, value in given.items() if option not in NAMES}
    call = StepCall[Any](name, cast("Any", fn), args, kwargs, options)
    if call.is_async and options.run_in_thread:
        raise InvalidInput("run_in_thread", "is for functions that are not async")
    if options.timeout is not None and not call.is_async and options.run_in_thread is False:
        raise InvalidInput("timeout", "needs a thread for a function that is not async: drop run_in_thread=False")
    return call


def _mark_of(fn: Any) -> tuple[str | None, dict[str, Any]]:
    unmarked: tuple[str | None, dict[str, Any]] = None, {}
    return getattr(fn, MARK, unmarked)


def in_thread(work: Callable[[], Any]) -> asyncio.Future[tuple[Any, BaseException | None]]:
    """Run `work` in a thread of its own, in a copy of the caller's context. The interpreter exits without it.

    A pool would not do: threads that never end would use it up, and would keep the program from ending.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = copy_context()

    def run() -> None:
        error: BaseException | None = None
        result: Any = None
        try:
            result = context.run(work)
        except BaseException as exc:  # noqa: BLE001  (it belongs to the caller)
            error = exc
        with suppress(RuntimeError):  # the loop is closed: no caller waits any more
            loop.call_soon_threadsafe(_set, future, (result, error))

    try:
        Thread(target=run, name="saveslot-step", daemon=True).start()
    except RuntimeError:
        run()  # at exit some Pythons start no more threads
    return future


def _set(future: asyncio.Future[Any], outcome: tuple[Any, BaseException | None]) -> None:
    if not future.done():
        future.set_result(outcome)


def step(name: str, /, **options: Any) -> Callable[[F], F]:
    """Mark a function as a step: `held.step(fn, *args)` then knows its name and options.

    `@saveslot.step("charge", retries=3, timeout=60)`. The options are those of `held.step`; those of a call win. The
    function can still be called directly.
    """
    as_name(name, "name")
    if unknown := options.keys() - NAMES:
        raise InvalidInput(min(unknown), f"is not an option of a step: {', '.join(Options.__struct_fields__)}")
    Options(**options).checked()

    def mark(fn: F) -> F:
        steps.check_function(fn)
        setattr(fn, MARK, (name, options))
        return fn

    return mark


def warn_repeated(name: str) -> None:
    """Warn the caller, the first frame outside this package, that the step returned its earlier result."""
    level, frame = 1, sys._getframe()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        level, frame = level + 1, frame.f_back
    text = f"step {name!r} ran before in this hold and returned that result again; in a loop, pass a key for each call"
    warnings.warn(text, RuntimeWarning, stacklevel=level)
