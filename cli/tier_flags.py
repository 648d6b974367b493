"""``--tier TYPE:name=value,…``: what may stand there, and every fault of it.

What a tier takes is what its constructor's signature says, with its types; nothing is listed here a second
time, and a tier of somebody else (``module:Class``) is checked like our own. Sizes in bytes and counts are
written as everywhere in ``kvbus run``: ``cli.amounts``.
"""

from __future__ import annotations

import difflib
import inspect
import itertools
import typing
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from cli.amounts import count, size
from tiers.errors import TierValueError
from tiers.factory import SecondaryTierFactory
from tiers.policy import CachePolicyFactory
from tiers.secondary import SecondaryTierManager
from tiers.serving.stack_spec import CPU_NAME, GPU_NAME, TierSpec

NOT_SAID_HERE: Final = ("offloading_spec", "primary_kv_view", "tier_type", "enable_events", "store")
ANY_NUMBER: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
CPU_BLOCKS: Final = 1_000

T = TypeVar("T", bound=BaseModel)


Count = Annotated[int, BeforeValidator(count)]
Size = Annotated[int, BeforeValidator(size)]


class CPUTier(BaseModel):
    """The primary tier: ``blocks`` slots under a cache policy, ``lru``, ``arc`` or ``module:Class``."""

    model_config = ConfigDict(extra="forbid")

    blocks: Annotated[Count, Field(ge=1)] = CPU_BLOCKS
    policy: str = "lru"


@dataclass(frozen=True)
class TierFlags:
    """All of them: the CPU tier, then those behind it, in order."""

    cpu: CPUTier
    behind: tuple[TierSpec, ...]


def read_tiers(flags: Sequence[str], faults: list[str]) -> TierFlags:
    """Read the flags; every fault goes to ``faults``, and what is at fault gets its default."""
    split = [_split(flag, faults) for flag in flags]
    if not split or split[0][0] != "cpu":
        if split:
            faults.append(f"--tier {split[0][0]}: the first one is the CPU's: cpu:blocks=4k,policy=lru")
        split.insert(0, ("cpu", {}))
    cpu = _checked(CPUTier, "cpu", split[0][1], faults) or CPUTier()
    _check_policy(split[0][1].get("policy", cpu.policy), faults)
    behind: list[TierSpec] = []
    for tier_type, options in split[1:]:
        if tier_type in ("cpu", "gpu"):
            faults.append(f"--tier {tier_type}: there is one CPU tier, the first; --gpu-blocks sizes the GPU")
        elif (model := _model(tier_type, faults)) is not None:
            said = _checked(model, tier_type, options, faults)
            if said is not None:
                name = _name(tier_type, {GPU_NAME, CPU_NAME, *(tier.name for tier in behind)})
                behind.append(TierSpec(name, tier_type, said.model_dump(by_alias=True, exclude_unset=True)))
    return TierFlags(cpu, tuple(behind))


def _name(tier_type: str, taken: Container[str]) -> str:
    """What a tier is called: as its type or class; if that is taken, with the first number that is not."""
    name = tier_type.rpartition(":")[2]
    numbered = (f"{name}{number}" for number in itertools.count(2))
    return next(one for one in itertools.chain([name], numbered) if one not in taken)


def _split(flag: str, faults: list[str]) -> tuple[str, dict[str, str]]:
    """``TYPE:name=value,…`` in its parts. The type may itself be ``module:Class``."""
    before, equals, _ = flag.partition("=")
    tier_type = before.rpartition(":")[0] if equals else flag
    options: dict[str, str] = {}
    for part in flag[len(tier_type) + 1 :].split(",") if equals else ():
        name, equals, value = part.partition("=")
        if not (name and equals and value):
            faults.append(f"--tier {flag}: expected name=value, got {part!r}")
        elif name in options:
            faults.append(f"--tier {tier_type}: {name} is there twice")
        else:
            options[name] = value
    return tier_type, options


def _model(tier_type: str, faults: list[str]) -> type[BaseModel] | None:
    """What a tier of this type takes, by its constructor. Importing the class is what tells."""
    try:
        tier_class = SecondaryTierFactory.get_tier_class({"type": tier_type})
    except TierValueError as error:
        faults.append(f"--tier {tier_type}: {error}")
        return None
    try:
        return create_model(
            tier_type,
            __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=True),
            **dict(_fields(tier_class)),
        )
    except Exception as error:  # annotations are somebody else's, and may say anything
        faults.append(
            f"--tier {tier_type}: what it takes cannot be told from its constructor: "
            f"{type(error).__name__}: {error}"
        )
        return None


def _fields(tier_class: type[SecondaryTierManager]) -> Iterator[tuple[str, Any]]:
    """A field for each option, under a name of ours: theirs is an alias, which may be any word."""
    hints = typing.get_type_hints(tier_class.__init__)
    for number, (name, parameter) in enumerate(inspect.signature(tier_class).parameters.items()):
        if name not in NOT_SAID_HERE and parameter.kind not in ANY_NUMBER:
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            yield f"option{number}", (_said(hints.get(name, str), name), Field(default, alias=name))


def _said(hint: Any, name: str) -> Any:
    """How a value of this type is written on a command line."""
    if hint in (int, int | None):
        written = Size if name.endswith("_bytes") else Count
        return written if hint is int else written | None
    return hint


def _checked(model: type[T], tier_type: str, options: Mapping[str, str], faults: list[str]) -> T | None:
    try:
        return model.model_validate(options)
    except ValidationError as error:
        for detail in error.errors():
            name = ".".join(str(part) for part in detail["loc"][:1])
            faults.append(f"--tier {tier_type}: {name}: {_fault(detail['type'], detail, name, model)}")
        return None


def _fault(kind: str, detail: Any, name: str, model: type[BaseModel]) -> str:
    if kind == "extra_forbidden":
        known = [field.alias or own for own, field in model.model_fields.items()]
        close = difflib.get_close_matches(name, known, n=1)
        return "not an option; " + (f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}")
    if kind == "missing":
        return "missing"
    if kind == "value_error":
        return f"{detail['ctx']['error']}, got {detail['input']!r}"
    return f"{detail['msg'][0].lower()}{detail['msg'][1:]}, got {detail['input']!r}"


def _check_policy(policy: str, faults: list[str]) -> None:
    try:
        CachePolicyFactory.get_cache_policy_cls(policy)
    except TierValueError as error:
        faults.append(f"--tier cpu: policy: {error}")
