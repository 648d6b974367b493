"""What ``kvbus check --list`` and ``--explain`` print: rules and profiles, for people and for machines.

Words of ``kvbus.rules.table`` and ``kvbus.profile``; nothing is judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvbus.profile import PROFILES, Profile
from kvbus.rules.table import KINDS, RULES, About, UnknownRuleError
from kvbus.verdict import Level


def rule_of(wanted: str) -> About:
    """The rule of this name or id. Raises ``UnknownRuleError``."""
    about = next((a for a in RULES.values() if wanted.lower() in (a.name, a.id.lower())), None)
    if about is None:
        raise UnknownRuleError(
            f"there is no rule {wanted!r}", next_step=f"The rules are: {', '.join(RULES)}."
        )
    return about


def listed() -> Iterator[str]:
    """Every rule on a line, then every profile."""
    for about in RULES.values():
        yield f"{about.id:<3} {about.name:<11} {about.severity:<12} {about.means}"
    yield ""
    for profile in PROFILES.values():
        yield f"--profile {profile.name:<9} {profile.about}"


def explained(about: About) -> Iterator[str]:
    """All about one rule, also what its findings count as under each profile."""
    yield f"{about.name} ({about.id}), a {about.severity} at its worst"
    yield f"  {about.means}"
    yield f"  unknown under: {about.clouded_by}"
    yield f"  from: {about.source}"
    for kind in kinds_of(about):
        others = [f"{name} {level}" for name, level in otherwise(kind).items()]
        yield f"  {kind}: {KINDS[kind]}" + (f" ({', '.join(others)})" if others else "")


def rule_object(about: About) -> dict[str, Any]:
    """A rule as ``--json`` has it: ``findings`` are its kinds, each with its level and the profiles under
    which it has another.
    """
    found = {kind: {"level": KINDS[kind], "profiles": otherwise(kind)} for kind in kinds_of(about)}
    said = {name: getattr(about, name) for name in ("id", "severity", "means", "clouded_by", "source")}
    return {"rule": about.name, **said, "findings": found}


def profile_object(profile: Profile) -> dict[str, Any]:
    """A profile as ``--list --json`` has it."""
    return {"profile": profile.name, "about": profile.about, "levels": dict(profile.levels)}


def kinds_of(about: About) -> list[str]:
    return [kind for kind in KINDS if kind.partition(".")[0] == about.name]


def otherwise(kind: str) -> dict[str, Level]:
    """The level of a kind of finding by profile, where it is another than usual."""
    return {p.name: p.level(kind) for p in PROFILES.values() if p.level(kind) != KINDS[kind]}
