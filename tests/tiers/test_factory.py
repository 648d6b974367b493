"""Tiers by name: what can be asked for, and what is said when it cannot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tiers import MemoryTier, TierValueError
from tiers.factory import SecondaryTierFactory
from tiers.memory import NOWHERE

ROOT = Path(__file__).resolve().parents[2]


class Elsewhere(MemoryTier):
    """A tier of somebody else."""


class NoTier:
    """Something that cannot be a tier."""


def test_a_tier_is_made_as_its_configuration_says() -> None:
    """The options of a configuration reach the tier, its type names it, and the memory is passed on."""
    view = memoryview(bytearray(8)).cast("B", (2, 4))
    tier = SecondaryTierFactory.create_secondary_tier({"type": "memory", "max_blocks": 7}, view, "spec")
    assert isinstance(tier, MemoryTier)
    assert (tier.max_blocks, tier.tier_type, tier.offloading_spec) == (7, "memory", "spec")
    assert tier.primary_kv_view is view


def test_a_second_tier_of_a_type_has_a_name_of_its_own() -> None:
    """Where a configuration names a tier, counters and events know it by that name."""
    config = {"type": "memory", "name": "memory2"}
    assert SecondaryTierFactory.create_secondary_tier(config, NOWHERE).tier_type == "memory2"


@pytest.mark.parametrize(
    "config",
    [{"type": f"{__name__}:Elsewhere"}, {"type": "Elsewhere", "module_path": __name__}],
    ids=["module:Class", "module_path"],
)
def test_a_tier_from_elsewhere_needs_no_registration(config: dict[str, object]) -> None:
    """A class that can be imported is a tier, by either way of writing where it is."""
    assert type(SecondaryTierFactory.create_secondary_tier(config, NOWHERE)).__name__ == "Elsewhere"


@pytest.mark.parametrize("config", [{}, {"type": ""}, {"type": None}, {"type": "tape"}], ids=str)
def test_an_unknown_type_is_told_the_known_ones(config: dict[str, object]) -> None:
    """No type, or one that nobody registered, is a ValueError that lists what there is."""
    with pytest.raises(TierValueError, match="Known: fs, memory, s3; or write module:Class"):
        SecondaryTierFactory.create_secondary_tier(config, NOWHERE)


def test_a_name_is_given_once() -> None:
    """A registered type cannot be taken over by another class."""
    with pytest.raises(TierValueError, match="registered already"):
        SecondaryTierFactory.register_tier("fs", __name__, "Elsewhere")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"type": f"{__name__}:NoTier"}, "NoTier.*no SecondaryTierManager"),
        ({"type": ".foo:Bar"}, "cannot be imported"),
        ({"type": "memory", "module_path": 7}, "cannot be imported"),
        ({"type": "memory", "module_path": __name__}, "memory.*no SecondaryTierManager"),
    ],
    ids=str,
)
def test_only_tiers_are_tiers(config: dict[str, object], says: str) -> None:
    """What is no SecondaryTierManager, or cannot be imported where it is said to be, is refused by name."""
    with pytest.raises(TierValueError, match=says):
        SecondaryTierFactory.get_tier_class(config)


def test_an_option_that_the_tier_does_not_have() -> None:
    """A misspelt option is a ValueError that lists the tier's options; a missing one is named."""
    with pytest.raises(TierValueError, match=r"max_block'.*max_blocks, delay_steps, enable_events"):
        SecondaryTierFactory.create_secondary_tier({"type": "memory", "max_block": 1}, NOWHERE)
    with pytest.raises(TierValueError, match="'path'"):
        SecondaryTierFactory.create_secondary_tier({"type": "fs"}, NOWHERE)


def test_nobody_needs_boto3_who_has_no_bucket() -> None:
    """Without boto3 tiers can be imported and types be found; the tier says what to install."""
    probe = (
        "import sys; sys.modules['boto3'] = None; sys.modules['botocore'] = None\n"
        "import tiers, tiers.memory; from tiers.factory import SecondaryTierFactory as F\n"
        "view = memoryview(bytearray(8)).cast('B', (2, 4))\n"
        "try: F.create_secondary_tier({'type': 's3', 'bucket': 'b'}, view)\n"
        "except tiers.TierError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert "kvbus[s3]" in done.stdout
