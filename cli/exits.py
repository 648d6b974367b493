"""How every command ends: 0 it holds or is done, 1 the answer is no, 2 it could not be found out.

Errors become one message with the next step on stderr, never a traceback, unless asked (``--debug``,
``KVBUS_DEBUG=1``). A reader that closed the pipe (``| head``) has seen enough: that is an end like any
other. SIGINT and SIGTERM ask a command to come to its end; a second one does not wait. A command that owes an
answer and has not asked for such patience is interrupted by the first.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from cli.entry import COULD_NOT, INTERRUPTED, leave, stoppable
from cli.format import plain
from kvbus.errors import KvbusError

OK: Final = 0
NO: Final = 1

WHILE_IMPORTING_S: Final = 0.01
"""How soon an interruption tries again that met an import."""
REPORT: Final = "This is a fault in kvbus. Run it again with --debug and report what it prints."


class GuardedGroup(TyperGroup):
    """The root command: whatever its subcommands raise leaves by one of the three exit codes."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with guarded(debug=_debug_wanted(args[1] if len(args) > 1 else ())):
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with guarded(debug=bool(ctx.params.get("debug")) or _debug_wanted(()), is_last=True):
            return super().invoke(ctx)


def _debug_wanted(arguments: Sequence[str]) -> bool:
    return "--debug" in arguments or os.environ.get("KVBUS_DEBUG", "") not in ("", "0")


@contextmanager
def guarded(*, debug: bool, is_last: bool = False) -> Iterator[None]:
    """Translate what a command raises into an exit code; usage errors and exits pass through to Typer.

    ``is_last``: what follows is the end of the process, which signals do not change any more.
    """
    with stop_signals(patient=False, is_last=is_last) as told:
        try:
            with pipe_may_close():
                yield
        except (typer.Exit, typer.Abort, typer.TyperException, SystemExit) as ended:
            if told.is_set():
                finish(ended.exit_code if isinstance(ended, typer.Exit) else COULD_NOT)
            raise
        except (Exception, KeyboardInterrupt) as error:
            if debug:
                traceback.print_exc()
            if isinstance(error, OSError):
                drop_output()
            if told.is_set():  # what a library makes of an interruption is no matter of its own
                finish(OK if stoppable() else COULD_NOT)
            print(in_words(error), file=sys.stderr)
            raise typer.Exit(COULD_NOT) from error
        if told.is_set():  # it waited for an import to end
            finish(OK if is_last or stoppable() else COULD_NOT)


def finish(code: int) -> NoReturn:
    """End the process now, after an interruption. One that struck Python code which a C library ran marks the
    interpreter: it would kill itself by SIGINT at its own end, whatever was made of it (``Py_RunMain``).
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def in_words(error: BaseException) -> str:
    """What to say of an error that ends a command: the problem, and on the next line the next step. Names in
    it come from anywhere: none can steer a terminal.
    """
    match error:
        case KeyboardInterrupt():
            return INTERRUPTED
        case KvbusError():
            problem, step = f"{error.problem}.", error.next_step
        case OSError(strerror=str(why)):
            where = "stdout" if error.filename is None else error.filename
            problem, step = f"{where}: {why}.", "Check the name, the permissions and the space on the disk."
        case _:
            problem, step = f"unexpected {type(error).__name__}: {error}", REPORT
    return "\n".join(map(plain, f"kvbus: {problem}\n       {step}".split("\n")))


@contextmanager
def pipe_may_close(code: int = OK) -> Iterator[None]:
    """Write to stdout in here: when its reader has gone, leave with ``code``, without a word."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output()
        raise typer.Exit(code) from None


def drop_output() -> None:
    """Let what is still to be written to stdout go nowhere: the interpreter's own flush at exit must not trip
    over it.
    """
    with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - a descriptor
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def reader_gone() -> bool:
    """Whether whoever read our stdout has closed it: a quiet stream would otherwise never find out."""
    try:
        poller = select.poll()
        poller.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poller.poll(0))


def hush(last_words: str) -> None:
    """Say this on stderr, and nothing after it: libraries that are interrupted anywhere, while they are being
    loaded say, have their own ways to complain.
    """
    with suppress(OSError):
        os.write(2, last_words.encode())
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        os.close(nowhere)


def is_importing(frame: FrameType | None) -> bool:
    """Whether this is inside an import: libraries in C do not all survive an exception there."""
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


@contextmanager
def stop_signals(*, patient: bool = True, is_last: bool = False) -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets; the second raises KeyboardInterrupt where it strikes,
    the first as well where nobody is ``patient``. ``is_last``: afterwards a process of ours ignores them.

    Outside the main thread, where Python takes no signals, the event is simply never set.
    """
    stop = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        repeated = stop.is_set()
        stop.set()
        if not patient and not repeated:
            hush("" if stoppable() else INTERRUPTED + "\n")
        if repeated or not patient:
            strike(number, frame)

    def strike(_number: int, frame: FrameType | None) -> None:
        if is_importing(frame):
            signal.setitimer(signal.ITIMER_REAL, WHILE_IMPORTING_S)
        else:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before: dict[signal.Signals, Callable[[int, FrameType | None], Any] | int | None] = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, note)
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, strike)
    try:
        yield stop
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if is_last and handler is leave else handler)
