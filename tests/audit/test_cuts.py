"""Findings, their order and witnesses are a log's: not those of how it was cut, or what was numbered when.

Every bound is set so low that small histories go beyond it: what is forgotten must not depend on the cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvbus.audit import Audit
from kvbus.columns import Columns, Tables
from kvbus.log import PositionedEntry, Received, SourceId
from kvbus.testing import history
from kvbus.verdict import Report
from tests.audit.histories import ODD_LOGS, Odd, made_odd

CAPACITIES = {"CPU": 1}
"""The others say themselves what fits."""
ENGINES = [["engine", "q"]]
CUTS = st.lists(st.integers(1, 5), min_size=1, max_size=4)
PROFILES = st.sampled_from([None, "vllm", "kvbus", "sglang"])


class Vocabulary:
    """A log without a batch: it only gives out numbers, to the sources and shapes of ``entries``."""

    def __init__(self, entries: Sequence[PositionedEntry]) -> None:
        self._tables = Columns().build([at.entry for at in entries])

    def sources(self) -> Mapping[int, SourceId]:
        return {
            row["source_id"]: SourceId(
                row["source"], row["topic_raw"], -1 if row["rank"] is None else row["rank"]
            )
            for row in self._tables["sources"].to_pylist()
        }

    def columns(self) -> Iterator[Tables]:
        yield {name: table for name, table in self._tables.items() if name in ("sources", "event_shapes")}

    def entries(self, *_: object) -> Iterator[PositionedEntry]:
        return iter(())

    def batch_count(self) -> int:
        return 0

    def close(self) -> None: ...


@contextmanager
def low_bounds() -> Iterator[None]:
    with patch("kvbus.holdings.TAKEN_MAX", 3), patch("kvbus.findings.GROUPS_MAX", 4):
        yield


def judged(
    entries: Sequence[PositionedEntry],
    cuts: Sequence[int] = (),
    *,
    profile: str | None = None,
    after: Vocabulary | None = None,
) -> Report:
    """The verdict where entries are judged in pieces of these sizes, over and over (none: at once)."""
    auditor = Audit(profile=profile, capacities=CAPACITIES, engines=ENGINES, examples=2)
    if after is not None:
        auditor.observe_log(after)
    sizes = iter(size for _ in entries for size in cuts)
    left = next(sizes, len(entries))
    for at in entries:
        auditor.observe(at)
        left -= 1
        if not left:
            auditor.counts()  # asks for what is judged so far
            auditor.check_integrity()
            left = next(sizes, len(entries))
    return auditor.verdict()


@settings(max_examples=150, deadline=None)
@given(ODD_LOGS, CUTS, PROFILES)
def test_a_verdict_does_not_depend_on_the_cut(
    entries: list[PositionedEntry], cuts: list[int], profile: str | None
) -> None:
    """Any log in any pieces: the same findings, in the same order, with the same witnesses."""
    with low_bounds():
        assert judged(entries, cuts, profile=profile) == judged(entries, profile=profile)


@settings(max_examples=100, deadline=None)
@given(st.data(), CUTS, PROFILES)
def test_a_verdict_does_not_depend_on_the_numbers(
    data: st.DataObject, cuts: list[int], profile: str | None
) -> None:
    """Sources, media, groups, owners and the rest may be numbered in any order, seen before or not."""
    entries = data.draw(ODD_LOGS)
    known = Vocabulary(data.draw(st.permutations(entries))) if entries else None
    with low_bounds():
        assert judged(entries, cuts, profile=profile, after=known) == judged(entries, profile=profile)


def told(rule: str, report: Report) -> list[list[tuple[int | None, int | None]]]:
    """(position, event) of the witnesses of all that a rule found."""
    (answer,) = [answer for answer in report.rules if answer.rule == rule]
    found = [*answer.violations, *answer.information]
    return [[(w.position, w.event) for w in finding.witnesses] for finding in found]


EACH = st.sampled_from([[1], [2], [1, 2], []])


@given(EACH)
def test_the_store_that_said_otherwise_bears_witness(cuts: list[int]) -> None:
    """A placeholder between two stores that contradict each other says nothing, and is no witness."""
    report = judged(history("g:+a | g:+a~ | g:+p>a"), cuts)
    assert told("content", report) == [[(0, 0), (2, 0)]]


@given(EACH)
def test_the_content_of_a_block_long_gone_is_forgotten(cuts: list[int]) -> None:
    """A block that comes back within the memory for removals must be the same; later it may be another."""
    with patch("kvbus.holdings.TAKEN_MAX", 2):
        soon = judged(history("g:+a | g:-a | g:+b | g:+p>a"), cuts)
        late = judged(history("g:+a | g:-a | g:+b,c | g:+p>a | g:+a"), cuts)
    assert told("content", soon) == [[(0, 0), (3, 0)]]
    assert told("content", late) == [[(3, 0), (4, 0)]]


@given(EACH)
def test_what_a_removal_left_in_doubt_stays_in_doubt(cuts: list[int]) -> None:
    """Which blocks are held only perhaps, and how many for certain, is remembered from piece to piece."""
    left = judged(history("c:+a | c:+a | c:-a | c:+b | c:+a"), cuts)
    assert told("eviction", left) == [[(4, 0)], [(3, 0)]]
    back = judged(history("c:+a,a,a | c:-a c:+a | c:+b | c:-a | c:-b | c:+b"), cuts)
    assert told("eviction", back) == [[(2, 0)], [(5, 0)]]


@given(EACH)
def test_secondaries_keep_their_order_whoever_else_is_named(cuts: list[int]) -> None:
    """Owners that are heard of later change nothing about which of two tiers came first."""
    entries = history("s:+a d:+a | s:+b | d:+c s:+c | s:+d d:+d")
    odd = Odd(dialect="map", owner="another", size=4, shift_s=0, heard_s=0, topic=b"kv", fits={})
    named = [
        made_odd(at, odd) if isinstance(at.entry, Received) and at.position == 1 else at for at in entries
    ]
    assert told("tier_order", judged(named, cuts, profile="vllm")) == [[(2, 0), (2, 1)]]


@given(EACH)
def test_the_first_batch_of_a_generation_bears_witness(cuts: list[int]) -> None:
    """Events become arrays: the witness is the first batch of this epoch whose events were maps."""
    plain = Odd(dialect="map", owner=None, size=4, shift_s=0, heard_s=0, topic=b"kv", fits={})
    entries = history("g:+a | restart g:+a | g:+b | g:+c")
    forms = {at.position: "array" if at.position == 3 else "map" for at in entries}
    spoken = [made_odd(at, replace(plain, dialect=forms[at.position])) for at in entries]
    assert told("decode", judged(spoken, cuts)) == [[(1, None), (3, None)]]


@given(EACH)
def test_shares_that_say_nothing_have_their_place_in_a_round(cuts: list[int]) -> None:
    """Of one drain the primary tier's share comes first, be both of them empty."""
    odd = Odd(dialect="map", owner=None, size=4, shift_s=None, heard_s=0, topic=b"kv", fits={})
    entries = [made_odd(at, odd) for at in history("@q . | @engine . | @q g:+a")]
    assert told("tier_order", judged(entries, cuts)) == [[(0, None), (1, None)]]


def test_what_was_missed_ends_a_storm_wherever_the_log_is_cut() -> None:
    """Two clears, two batches that cannot be read, and a clear of the next process are no storm."""
    entries = history("clear clear | garbage | garbage | restart clear")
    assert told("clear", judged(entries, [1])) == told("clear", judged(entries)) == []
