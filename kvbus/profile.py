"""What is legal for whom: a profile says what a kind of finding counts as in the streams of one engine.

A source's profile is read off its stream (``detected``); ``--profile`` overrides. ``kvbus`` is the strictest:
what its own tiers promise. Only tables and one decision here.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final

from msgspec import Struct

from kvbus.errors import KvbusError
from kvbus.rules.table import KINDS
from kvbus.verdict import Level


class UnknownProfileError(KvbusError):
    """A profile was asked for that kvbus does not have."""


class Profile(Struct, frozen=True):
    """``levels``: kinds of findings that count otherwise than in ``KINDS``, and why in ``about``."""

    name: str
    about: str
    levels: Mapping[str, Level]

    def level(self, kind: str) -> Level:
        return self.levels.get(kind, KINDS[kind])


PROFILES: Final[Mapping[str, Profile]] = {
    profile.name: profile
    for profile in (
        Profile(
            "vllm",
            "Copies, re-announcements, placeholders and masked blocks are legal; the GPU speaks first.",
            {},
        ),
        Profile(
            "sglang",
            "One radix tree: no block is stored twice in a tier. Tiers speak as things happen.",
            {
                "copies.again": "violation",
                "copies.doubtful": "unknown",
                "tier_order.turned": "off",
                "parent.absent": "violation",
            },
        ),
        Profile(
            "trtllm",
            "Removals precede the stores that need their room; tiers speak as things happen.",
            {"tier_order.turned": "off", "eviction.at_once": "violation"},
        ),
        Profile(
            "lmcache",
            "Chunks of its own size, parents 0 or unknown, stores from several workers merged.",
            {"tier_order.turned": "information", "parent.absent": "information", "size.mixed": "information"},
        ),
        Profile(
            "mooncake",
            "A store of objects: no tokens, no block sizes, no parents that must be there; numbers from 1.",
            {
                "tier_order.turned": "off",
                "parent.absent": "off",
                "parent.below": "off",
                "resolvable.unseen": "off",
                "clear.storm": "violation",
            },
        ),
        Profile(
            "kvbus",
            "What kvbus's own tiers promise: every change once, each block once in a tier, drains in order.",
            {
                "copies.again": "violation",
                "copies.doubtful": "unknown",
                "remaining.copies": "violation",
                "remaining.doubtful": "unknown",
                "eviction.at_once": "violation",
                "clock.back": "violation",
                "parent.absent": "violation",
                "clear.storm": "violation",
                "dense.short": "violation",
                "size.mixed": "violation",
                "decode.generation": "violation",
                "decode.tag": "violation",
            },
        ),
    )
}


def detected(media: Set[str], *, emits: bool, from_one: bool, maps: bool) -> Profile:
    """Whose stream it is: by the (canonical) media it names, kvbus's ``emit_seq``, Mooncake's own keys, and
    whether events are maps that name no group (vLLM's have one since they are maps).
    """
    if from_one:
        return PROFILES["mooncake"]
    if emits:
        return PROFILES["kvbus"]
    if maps or media & {"CPU_PINNED", "CPU_TIER1", "CPU_TIER2", "DISK"}:
        return PROFILES["sglang"]
    return PROFILES["vllm"]


def chosen(name: str) -> Profile:
    """A profile by its name. Raises ``UnknownProfileError``."""
    if name not in PROFILES:
        raise UnknownProfileError(
            f"there is no profile {name!r}", next_step=f"The profiles are: {', '.join(PROFILES)}."
        )
    return PROFILES[name]
