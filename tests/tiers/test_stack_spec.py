"""What an engine is made of, as a value."""

from __future__ import annotations

from tiers.serving.stack_spec import StackSpec, TierSpec


def test_bounds_in_blocks() -> None:
    """A bound in bytes is one in rows: a block padded to 4 096 bytes. The tighter one holds."""
    assert TierSpec("fs", "fs", {"max_bytes": 40_960}).most_blocks(4_097) == 5
    assert TierSpec("fs", "fs", {"max_bytes": 40_960, "max_blocks": 3}).most_blocks(4_096) == 3
    assert TierSpec("fs", "fs").most_blocks(4_096) is None


def test_another_bound_replaces_all_of_the_old_one() -> None:
    """A tier bounded anew has that bound alone, and everything else as before."""
    before = TierSpec("fs", "fs", {"path": "/x", "max_bytes": 4_096, "max_blocks": 9})
    after = before.bounded(7)
    assert (after.name, after.type, after.options) == ("fs", "fs", {"path": "/x", "max_blocks": 7})
    assert before.most_blocks(4_096) == 1


def test_tiers_are_named_in_the_order_of_their_hits() -> None:
    """The GPU, the CPU, then those behind it."""
    assert StackSpec(1, 2, behind=(TierSpec("fs", "fs"), TierSpec("s3", "s3"))).names == (
        "gpu",
        "cpu",
        "fs",
        "s3",
    )
