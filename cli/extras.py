"""What not everybody installs: an extra that is missing is named, with its remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kvbus.errors import ConfigError


@contextmanager
def extra(name: str, *, module: str, what: str, otherwise: str) -> Iterator[None]:
    """Import in here what comes with ``kvbus[name]``, as ``module``. Raises ``ConfigError`` if that is not
    installed: ``what`` needs it, ``otherwise`` does without. Any other module that is missing is a fault, and
    raised as it is.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module:
            raise
        raise ConfigError(
            f"{what} needs {module}, which is not installed",
            next_step=f"Install kvbus[{name}], or {otherwise}.",
        ) from error
