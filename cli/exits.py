"""How every command ends: 0 it holds or is done, 1 the answer is no, 2 it could not be found out.

Errors become one message with the next step on stderr, never a traceback, unless asked (``--debug``,
``KVBUS_DEBUG=1``). A reader that closed the pipe (``| head``) has seen enough: that is an end like any
other. SIGINT and SIGTERM ask a command to come to its end; a second one does not wait.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

import typer
from typer.core import TyperGroup

from kvbus.errors import KvbusError

OK: Final = 0
NO: Final = 1
COULD_NOT: Final = 2

REPORT: Final = "This is a fault in kvbus. Run it again with --debug and report what it prints."


class GuardedGroup(TyperGroup):
    """The root command: whatever its subcommands raise leaves by one of the three exit codes."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with guarded(debug=_debug_wanted(args[1] if len(args) > 1 else ())):
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with guarded(debug=bool(ctx.params.get("debug")) or _debug_wanted(())):
            return super().invoke(ctx)


def _debug_wanted(arguments: Sequence[str]) -> bool:
    return "--debug" in arguments or os.environ.get("KVBUS_DEBUG", "") not in ("", "0")


@contextmanager
def guarded(*, debug: bool) -> Iterator[None]:
    """Translate what a command raises into an exit code; usage errors and exits pass through to Typer."""
    try:
        with pipe_may_close():
            yield
    except (typer.Exit, typer.Abort, typer.TyperException, SystemExit):
        raise
    except KeyboardInterrupt:
        print("kvbus: interrupted before it was done", file=sys.stderr)
        raise typer.Exit(COULD_NOT) from None
    except KvbusError as error:
        if debug:
            traceback.print_exc()
        print(f"kvbus: {error.problem}.\n       {error.next_step}", file=sys.stderr)
        raise typer.Exit(COULD_NOT) from error
    except Exception as error:
        if debug:
            traceback.print_exc()
        print(f"kvbus: unexpected {type(error).__name__}: {error}\n       {REPORT}", file=sys.stderr)
        raise typer.Exit(COULD_NOT) from error


@contextmanager
def pipe_may_close(code: int = OK) -> Iterator[None]:
    """Write to stdout in here: when its reader has gone, leave with ``code``, without a word."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered has no reader: the interpreter's own flush at exit must not trip over it.
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - a descriptor is wanted, not a path
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        raise typer.Exit(code) from None


def reader_gone() -> bool:
    """Whether whoever read our stdout has closed it: a quiet stream would otherwise never find out."""
    try:
        poller = select.poll()
        poller.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poller.poll(0))


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets; the second raises KeyboardInterrupt where it strikes.

    Outside the main thread, where Python takes no signals, the event is simply never set.
    """
    stop = threading.Event()

    def note(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before: dict[signal.Signals, Callable[[int, FrameType | None], Any] | int | None] = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, note)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
