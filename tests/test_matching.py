"""``kvbus/matching.py``: which engine is which."""

from __future__ import annotations

from kvbus.matching import Who, matched
from kvbus.telling import Voice


def who(media: str, *, rank: int = -1, tier: str = "", engine: str = "") -> Who:
    return frozenset(media.split()), Voice(engine or media, tier, rank)


def test_media_and_rank_decide_not_names() -> None:
    """The same media and rank are the same engine, whatever it is called and in whatever order."""
    a = [who("GPU", rank=0, engine="x"), who("GPU", rank=1, engine="y"), who("CPU")]
    b = [who("CPU"), who("GPU", rank=1, engine="x"), who("GPU", rank=0, engine="z")]
    assert matched(a, b) == [(0, 2), (1, 1), (2, 0)]


def test_tiers_of_one_medium_are_told_by_name() -> None:
    """Two secondary tiers speak of one medium: their names decide."""
    a = [who("STORAGE", tier="fs"), who("STORAGE", tier="s3")]
    assert matched(a, a[::-1]) == [(0, 1), (1, 0)]


def test_the_nearest_is_taken() -> None:
    """Who has lost or gained a medium is still the same, before one with less in common."""
    assert matched([who("GPU CPU")], [who("CPU"), who("GPU CPU STORAGE")]) == [(0, 1), (None, 0)]


def test_strangers_are_not_matched() -> None:
    """Nothing in common is nothing; a sole engine on each side is the same all the same."""
    assert matched([who("GPU"), who("CPU")], [who("STORAGE")]) == [(0, None), (1, None), (None, 0)]
    assert matched([who("GPU")], [who("CPU")]) == [(0, 0)]
    assert matched([], []) == []
