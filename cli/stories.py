"""Stories of findings, as lines and as objects. Forms only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from cli.format import hex_hash, plain
from cli.render import Paint
from cli.steps import hash_object, step_line, step_object

if TYPE_CHECKING:
    from kvbus.story import Story


def story_lines(stories: Sequence[Story], paint: Paint) -> Iterator[str]:
    """Each story under the sentence of its finding; the witnesses' batches are marked."""
    for story in stories:
        yield ""
        yield f"the story of block 0x{hex_hash(story.block)} ({story.rule}: {plain(story.finding.because)})"
        proofs = {witness.position for witness in story.finding.witnesses}
        half = len(story.steps) // 2
        if story.earlier:
            yield f"  … {story.earlier:,} steps before"
        for n, step in enumerate(story.steps):
            if story.between and n == half:
                yield f"  … {story.between:,} steps between"
            mark = "▶" if step.seq is not None and step.position in proofs else " "
            yield f"{mark} {step_line(step, paint)}"
        if story.later:
            yield f"  … {story.later:,} steps after"


def story_object(story: Story) -> dict[str, Any]:
    """The object that stands for a story in ``--json``."""
    left_out = {"earlier": story.earlier, "between": story.between, "later": story.later}
    steps = [step_object(step) for step in story.steps]
    finding = msgspec.to_builtins(story.finding)
    return {"rule": story.rule, **hash_object(story.block), "finding": finding, "steps": steps, **left_out}
