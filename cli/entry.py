"""Where the process begins: standard streams that are there, and signals that end it without a traceback.

Nothing else is loaded yet, so that this also holds for the moments in which the rest is.
"""

from __future__ import annotations

import atexit
import io
import os
import signal
import sys
from types import FrameType
from typing import Final, NoReturn

COULD_NOT: Final = 2
"""The exit code of what could not be found out; the others are in ``cli/exits``."""
STOPS: Final = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED: Final = "kvbus: interrupted before it was done"
TYPERS_WORD: Final = 130
"""Typer's exit code for an interruption that it meets outside of any command."""
STOPPABLE: Final = ("tail", "record", "replay")
"""Commands that go on until they are stopped: being stopped is their usual end, at any moment."""


def main() -> None:
    """The console script. Leaves by ``SystemExit``."""
    for number in STOPS:
        signal.signal(number, leave)
    atexit.register(ignore_signals)
    standard_streams()
    from cli.main import app

    try:
        app(prog_name="kvbus")
    except (KeyboardInterrupt, SystemExit) as ended:
        # An interruption that struck where nothing of ours catches it, between two handlers; or an exit.
        if isinstance(ended, SystemExit) and ended.code != TYPERS_WORD:
            raise
        os._exit(0 if stoppable() else COULD_NOT)
    except OSError:  # not even stderr takes anything: the exit code has to say it all
        os._exit(COULD_NOT)


def ignore_signals() -> None:
    """The last of what is done at exit, being registered first. What follows is the interpreter's end, which
    takes a moment after large libraries and would hand signals back to the system, whose way is to kill.
    """
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)


def leave(_number: int, _frame: FrameType | None) -> NoReturn:
    """End at once: nothing has been begun, or everything is done."""
    if stoppable():
        os._exit(0)
    try:
        os.write(2, f"{INTERRUPTED}\n".encode())
    finally:
        os._exit(COULD_NOT)


def stoppable() -> bool:
    """Whether the command line is of a command that is stopped in the usual course of things."""
    return sys.argv[1:2] != [] and sys.argv[1] in STOPPABLE


def standard_streams() -> None:
    """See to it that descriptors 0 to 2 and their streams exist, and that no letter is too much for stdout.

    Where one was closed (``>&-``), the next file opened, the log perhaps, would get its number, and what is
    printed would be written into it.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - a descriptor, for good
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    from cli import entry  # the module itself: what signals do is compared by identity

    entry.main()
