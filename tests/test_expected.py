"""``kvbus/expected.py``: what a test expects of an order."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from kvbus.expected import (
    Fault,
    Step,
    StepError,
    capacities,
    fault_of_order,
    fault_of_silence,
    fault_of_tiers,
    story,
)
from kvbus.foreign_events import Keys
from tests.tellings import tell


def order(text: str, *steps: Step) -> Fault | None:
    return fault_of_order(tell(text).events, steps, Keys())


@pytest.mark.parametrize(
    "steps",
    [
        [("stored", "a"), ("stored", "b"), ("removed", "a"), ("cleared",)],
        [("stored", "b", "cpu"), ("removed", "a", "GPU")],
        [("stored", "a"), ("stored", "a")],
    ],
)
def test_steps_one_after_the_other_are_found(steps: list[Step]) -> None:
    """Others may lie between; inside an event the blocks have an order too; media in any spelling."""
    assert order("g:+a,x c:+b | g:-a | clear | g:+a", *steps) is None


def test_no_steps_are_no_order() -> None:
    """An order of nothing would hold of anything."""
    assert order("+a") == Fault("no step was named: nothing to judge")


def test_what_comes_too_early_is_marked() -> None:
    """The fault names both steps and the drain, and marks the events."""
    fault = order("+a | +c -b", ("stored", "a"), ("removed", "b"), ("stored", "c"))
    assert fault is not None
    assert fault.problem == "stored 'c' did not happen after removed 'b', but before it, last in drain 1"
    assert list(fault.at) == [0, 2, 1]


def test_what_never_happened_is_told() -> None:
    """Another block, another medium, another kind of event."""
    for step in (("stored", "z"), ("stored", "a", "CPU"), ("removed", "a"), ("cleared",)):
        fault = order("+a", step)
        assert fault is not None
        assert fault.problem.endswith("never happened")
    with pytest.raises(StepError):
        order("+a", ("moved", "a"))
    with pytest.raises(StepError):
        order("+a", ("cleared", "a"))
    others: list[Any] = ["stored", None, [("stored", "a")]]
    for other in others:
        with pytest.raises(StepError, match="is nothing that can happen"):
            order("+a", other)


def test_tiers_in_their_order() -> None:
    """Inside each drain; the GPU clears for itself; an ownership is a tier as well."""
    assert (
        fault_of_tiers(tell("g:+a c:+a s:+a | clear c:-a | s:+b").events, ["GPU", "cpu", "STORAGE"]) is None
    )
    fault = fault_of_tiers(tell("g:+a | s:+a c:+a").events, ["GPU", "CPU", "STORAGE"])
    assert fault == Fault("CPU speaks after STORAGE in one drain", [1, 2])
    events = [
        structs.replace(e, owner=o) for e, o in zip(tell("s:+a s:+b").events, ("s3", "fs"), strict=True)
    ]
    assert fault_of_tiers(events, ["s3", "fs"]) is None
    assert fault_of_tiers(events, ["fs", "s3"]) is not None


def test_what_is_no_name_of_a_tier() -> None:
    """A list of tiers where each is expected by itself is refused."""
    wrong: list[Any] = [("GPU", "CPU"), None]
    for tier in wrong:
        with pytest.raises(StepError, match="is no name of a tier"):
            fault_of_tiers(tell("g:+a").events, [tier])


def test_tiers_with_nothing_to_judge() -> None:
    """A tier that is not named, and drains of one tier only, meet no expectation."""
    for text in ("g:+a c:+a x:+a", "g:+a | c:+a", ""):
        assert fault_of_tiers(tell(text).events, ["GPU", "CPU"]) is not None


def test_capacities() -> None:
    """A number is for the one medium that speaks; with several it must be said which."""
    one, two = tell("c:+a").events, tell("c:+a s:+a").events
    assert capacities(2, None, one) == {"CPU": 2}
    assert capacities(2, "storage", two) == {"STORAGE": 2}
    assert capacities({"cpu": 2}, None, two) == {"CPU": 2}
    assert capacities(None, None, one) == {}
    with pytest.raises(StepError, match="which of CPU, STORAGE"):
        capacities(2, None, two)
    wrong: list[Any] = ["2", 0, -1, True, 2.5, {"CPU": "2"}]
    for capacity in wrong:
        with pytest.raises(StepError, match="is no number of blocks"):
            capacities(capacity, None, one)
    assert fault_of_silence(one, {"CPU": 2}) is None
    assert fault_of_silence(one, {"STORAGE": 2}) is not None
    assert fault_of_silence((), capacities(2, None, ())) is not None


def test_a_story_is_short() -> None:
    """All of a short one; of a long one what lies around the marks."""
    events = tell(" | ".join(["+a | -a"] * 100)).events
    told = story(Fault("why", [150, 151]), events, {}).splitlines()
    assert told[0] == "why"
    assert len([line for line in told if line.startswith("  > ")]) == 2
    assert len(told) == 2 + 18 + 1
    assert len(story(Fault("why"), events, {}).splitlines()) == 2 + 60 + 1
    assert len(story(Fault("why", [0, 199]), events, {}).splitlines()) <= 2 + 60 + 1
    assert len(story(Fault("why", [3]), events[:10], {}).splitlines()) == 12
