"""Where a tier keeps its blocks, and which tiers a request may be served from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, NamedTuple, Self

from tiers.errors import TierValueError


class Medium(StrEnum):
    """What a tier's blocks lie on. A string: ``Medium.CPU == "CPU"``."""

    GPU = "GPU"
    CPU = "CPU"
    STORAGE = "STORAGE"


class Locality(StrEnum):
    """Whether a tier's blocks can be had from this machine alone."""

    LOCAL = "LOCAL"
    REMOTE = "REMOTE"

    @classmethod
    def _missing_(cls, value: object) -> Self:
        raise TierValueError(f"locality {value!r}", next_step="Give LOCAL or REMOTE, or none.")


class TierMatcher(NamedTuple):
    """A pattern for tiers. None matches anything, on the side of the tier as well."""

    medium: Medium | None = None
    locality: Locality | None = None

    def matches(self, medium: Medium | None, locality: Locality | None) -> bool:
        return (self.medium is None or medium is None or self.medium == medium) and (
            self.locality is None or locality is None or self.locality == locality
        )


@dataclass(frozen=True)
class TierFilter:
    """The tiers a request may load from: those that any matcher matches. No matcher at all denies all."""

    matchers: tuple[TierMatcher, ...] = ()

    ALL: ClassVar[Self]

    def allows(self, medium: Medium | None, locality: Locality | None) -> bool:
        return any(matcher.matches(medium, locality) for matcher in self.matchers)


TierFilter.ALL = TierFilter((TierMatcher(),))
