"""What can go wrong in a call, as a small tree. Each error says the problem and the next step.

Trouble in the data (a lost batch, a payload nobody can read) is never an error: it is a value in the
stream. Errors are for calls that cannot be carried out.
"""

from __future__ import annotations


class KvbusError(Exception):
    """Base of every error that kvbus raises on purpose.

    Attributes:
        problem: what is wrong, without a final full stop.
        next_step: what the reader can do about it, a sentence.
    """

    def __init__(self, problem: str, *, next_step: str) -> None:
        self.problem = problem
        self.next_step = next_step
        super().__init__(f"{problem}. {next_step}")

    def __reduce__(self) -> tuple[object, ...]:
        """As itself into another process, whatever it was made of."""
        return as_it_was, (type(self), self.args, self.__dict__)


def as_it_was(kind: type[KvbusError], args: tuple[object, ...], state: dict[str, object]) -> KvbusError:
    """An error that was raised elsewhere."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class ConfigError(KvbusError):
    """A flag, an environment variable or ``kvbus.toml`` says something kvbus cannot do."""


class EndpointError(KvbusError):
    """A ZeroMQ address cannot be used: malformed, taken, or not allowed for this rank."""


class EncodeError(KvbusError):
    """A batch cannot be put into msgpack. It has not used up a sequence number."""


class LogError(KvbusError):
    """A log file cannot be opened, read or written."""


class LogLockedError(LogError):
    """Another process holds the log and does not answer reading requests."""


class LogVersionError(LogError):
    """The log was written under a schema that this kvbus does not read."""


class CaptureError(KvbusError):
    """A file given to import is not in a form kvbus reads, or is torn."""
