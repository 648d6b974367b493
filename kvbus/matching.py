"""Which engine of one log is which of another: by the media they speak of, their rank, then their name.

Names of machines and files differ between two runs, tiers do not. Whoever shares no medium is not the same,
unless there is but one on each side: then its media are what has changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvbus.telling import Voice

Who = tuple[frozenset[str], Voice]
"""The media somebody speaks of, and who that is."""


def matched(a: Sequence[Who], b: Sequence[Who]) -> list[tuple[int | None, int | None]]:
    """Pairs of indices, best match first come; None: the other side has no such one."""
    sole = len(a) == len(b) == 1
    likely = sorted(
        (tuple(-value for value in _likeness(one, other)), n, m)
        for n, one in enumerate(a)
        for m, other in enumerate(b)
        if sole or one[0] & other[0] or not (one[0] and other[0])
    )
    of_a: dict[int, int] = {}
    taken: set[int] = set()
    for _, n, m in likely:
        if n not in of_a and m not in taken:
            of_a[n] = m
            taken.add(m)
    pairs: list[tuple[int | None, int | None]] = [(n, of_a.get(n)) for n in range(len(a))]
    return pairs + [(None, m) for m in range(len(b)) if m not in taken]


def _likeness(one: Who, other: Who) -> tuple[int, ...]:
    (media, voice), (others, its) = one, other
    return (
        voice.rank == its.rank,
        media == others,
        voice.tier == its.tier,
        len(media & others),
        voice.engine == its.engine,
    )
