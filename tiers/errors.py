"""What can go wrong in a call to a tier, each with its next step.

Callers written for vLLM expect the builtin error of the same meaning, so each class is one of those too.
Trouble with blocks (a copy that failed, a file that is corrupt) is never raised: it is a result, an event
or a counter.
"""

from __future__ import annotations

from kvbus.errors import KvbusError


class TierError(KvbusError):
    """Base of every error that a tier raises on purpose."""


class TierValueError(TierError, ValueError):
    """An argument that cannot be used: a size, a name, lists that do not belong together."""


class TierContractError(TierError, AssertionError):
    """The caller, or a tier, broke a promise of the protocol. Nothing was changed."""


class TierMemoryError(TierError, MemoryError):
    """Memory for a tier that cannot be had: there is not so much, or it did not come in time."""


class UnknownRequestError(TierError, KeyError):
    """A request that ``on_new_request`` has not announced, or that is over."""

    __str__ = Exception.__str__  # KeyError would show the sentence in quotes


class TierStalledError(TierError, TimeoutError):
    """A tier neither did its work nor said that it failed, for longer than anybody waits."""
