"""The rules one by one: what each calls wrong, what it cannot know, and what it leaves in peace."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvbus.audit import Audit, audit
from kvbus.events import BlockStored, EventBatch
from kvbus.holdings import TAKEN_MAX
from kvbus.log import EpochBegan, Loss, PositionedEntry, Received, Stray
from kvbus.profile import PROFILES
from kvbus.residency import BelowZero, Residency
from kvbus.rules import KINDS, RULES
from kvbus.testing import block, history
from kvbus.verdict import RuleVerdict


def judged(rule: str, text: str | list[PositionedEntry]) -> RuleVerdict:
    entries = history(text) if isinstance(text, str) else text
    (verdict,) = audit(entries, [rule]).rules
    return verdict


def places(verdict: RuleVerdict) -> list[list[tuple[int, int, int | None]]]:
    """(epoch, seq, event) of each violation's witnesses."""
    return [[(w.epoch, w.seq, w.event) for w in v.witnesses] for v in verdict.violations]


def told(verdict: RuleVerdict) -> str:
    return " / ".join(finding.because for finding in verdict.information)


def test_every_rule_says_what_it_is() -> None:
    """A rule is found under its own name, has an id, and says what it means and where it comes from."""
    for name, about in RULES.items():
        assert about.name == name
        assert all([about.id, about.means, about.clouded_by, about.source])
    assert len({about.id for about in RULES.values()}) == len(RULES)
    assert {kind.partition(".")[0] for kind in KINDS} == set(RULES)


# -- sequence ------------------------------------------------------------------------------------------------


def test_numbers_without_a_hole_hold() -> None:
    """Each source counts for itself, and an empty batch counts too."""
    assert judged("sequence", "@p g:+a | @q g:+a | @q . | @p g:-a").verdict == "HOLDS"


@pytest.mark.parametrize(
    "reason", ["no_replay", "too_old", "absent_from_replay", "replay_incomplete", "late_join"]
)
def test_a_loss_inside_an_epoch_is_a_violation(reason: str) -> None:
    """The batches before and after it bear witness; range and reason are in the sentence."""
    verdict = judged("sequence", f". | . | lost(3,{reason}) .")
    assert verdict.verdict == "VIOLATED"
    assert places(verdict) == [[(0, 1, None), (0, 5, None)]]
    assert "batches 2 to 4 are missing between 1 and 5" in verdict.violations[0].because
    assert reason in verdict.violations[0].because


def test_a_hole_nobody_declared_is_a_violation() -> None:
    """Contiguity is read off the batches: a log whose Loss rows were edited away still shows its hole."""
    verdict = judged("sequence", ". | gap(1) .")
    assert places(verdict) == [[(0, 0, None), (0, 2, None)]]
    assert "batch 1 is missing between 0 and 2 (the log does not say why)" in verdict.violations[0].because
    part = judged("sequence", ". | lost(2) gap(2) .")
    assert "batches 1 to 4" in part.violations[0].because
    assert "does not say why all" in part.violations[0].because
    assert "does not say why all" in judged("sequence", ". | gap(1) lost(1) .").violations[0].because


def test_two_losses_in_a_row_are_one_hole() -> None:
    """A hole that was given up in two steps is one violation with both reasons."""
    verdict = judged("sequence", ". | lost(2,too_old) lost(3,replay_incomplete) .")
    (violation,) = verdict.violations
    assert "batches 1 to 5" in violation.because
    assert "too_old" in violation.because
    assert "replay_incomplete" in violation.because


def test_a_loss_at_the_end_is_a_violation_with_one_witness() -> None:
    """Where nothing came after the hole, the batch before it is all the evidence; also across a restart."""
    assert places(judged("sequence", ". | lost(2)")) == [[(0, 0, None)]]
    assert places(judged("sequence", ". | lost(2,restart) | restart .")) == [[(0, 0, None)]]


def test_verdict_can_be_asked_in_between() -> None:
    """Asking changes nothing: an open hole is reported without its end, and once only when the end came."""
    auditor = Audit(["sequence"])
    for at in history(". | lost(2) | . | ."):
        auditor.observe(at)
        assert auditor.verdict() == auditor.verdict()
    assert places(auditor.verdict().rules[0]) == [[(0, 0, None), (0, 3, None)]]


@pytest.mark.parametrize("start", ["lost(217,late_join) .", "lost(217,too_old) .", "seq(217) .", "seq(1) ."])
def test_a_beginning_nobody_saw_is_unknown(start: str) -> None:
    """A late join is no violation, and no clean bill either, whether a Loss says so or not."""
    verdict = judged("sequence", f"{start} | .")
    assert verdict.verdict == "UNKNOWN"
    assert verdict.violations == []
    assert "what came before is unknown" in told(verdict)


def test_an_epoch_of_losses_alone_is_unknown() -> None:
    """Where no batch of an epoch is in the log, nothing can be said of its order."""
    assert judged("sequence", "lost(5,replay_incomplete)").verdict == "UNKNOWN"


def test_mooncake_counts_from_one() -> None:
    """A stream of Mooncake's master begins at 1: nothing is missing, though a Loss may say that 0 is."""
    entries = history("lost(1,late_join) c:+a | c:-a")
    assert judged("sequence", entries).verdict == "UNKNOWN"
    for index, at in enumerate(entries):
        if isinstance(at.entry, Received) and isinstance(batch := at.entry.batch, EventBatch):
            mooncake = [replace(e, extra={"event_type": "stored"}) for e in batch.events]
            entry = replace(at.entry, batch=replace(batch, events=mooncake))
            entries[index] = PositionedEntry(at.position, entry)
    assert {rule.verdict for rule in audit(entries).rules} == {"HOLDS"}


def test_a_restart_is_information() -> None:
    """A new epoch counts from 0 again; the last batch before and the first after are named."""
    verdict = judged("sequence", ". | . | restart . | .")
    assert verdict.verdict == "HOLDS"
    (restart,) = verdict.information
    assert [(w.epoch, w.seq) for w in restart.witnesses] == [(0, 1), (1, 0)]


def test_going_back_or_standing_still_is_a_violation() -> None:
    """Inside an epoch numbers only rise."""
    assert places(judged("sequence", ". | . | seq(1) . | .")) == [[(0, 1, None), (0, 1, None)]]
    assert places(judged("sequence", ". | . | . | seq(0) . | .")) == [[(0, 2, None), (0, 0, None)]]


def test_an_epoch_does_not_come_back() -> None:
    """Batches of an old epoch after a newer one began are a violation, also without any EpochBegan."""
    old, new = history(". | restart .")[1:2], history(". | restart .")[3:]
    verdict = judged("sequence", [*old, *new, *old])
    assert verdict.verdict == "VIOLATED"
    assert "goes on after" in verdict.violations[0].because


def test_the_same_number_with_other_bytes_is_a_violation() -> None:
    """A conflict is proof that one number was given out twice; late batches are information."""
    assert places(judged("bytes", ". | conflict(0) .")) == [[(0, 0, None)]]
    aside = judged("sequence", ". | late(0) .")
    assert aside.verdict == "HOLDS"
    assert len(aside.information) == 1


def test_a_loss_of_what_is_there_is_information() -> None:
    """A log that declares lost what it holds is odd; its order is not wrong."""
    began, first, second = history(". | .")
    moot = PositionedEntry(1, Loss(first.entry.source, 0, 1, 1, "no_replay", 0))
    between = judged("sequence", [began, first, moot, second])
    assert between.verdict == "HOLDS"
    assert "declared lost" in told(between)
    assert judged("sequence", [began, first, second, moot]).verdict == "HOLDS"


# -- refcount ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "legal",
    [
        "g:+a | g:+a | g:-a | g:-a",
        "g:+a,a | g:-a g:-a",
        "g:+a | c:+a | g:-a | c:-a",
        "g/0:+a g/1:+a | g/1:-a g/0:-a",
        "+a | g:-a",
        "cpu:+a | CPU:-a",
        "c:+a~ | c:-a",
        "g:+ | s:+a | s:+a",
        "g:+a | clear | g:+a | g:-a",
        "c:+a | clear | c:-a",
        "@p g:+a | @q g:+a | @p clear | @q g:-a",
        "g:+a | restart g:+a | g:-a",
        "g:+b g:-b | c:?Moved | g:+a | g:-a",
        "clear | g:+a",
    ],
)
def test_legal_histories_hold(legal: str) -> None:
    """What real engines do is no violation, however odd it looks."""
    assert judged("refcount", legal).verdict == "HOLDS"


@pytest.mark.parametrize(
    ("wrong", "witnesses"),
    [
        ("g:-a", [(0, 0, 0)]),
        ("g:+a | g:-a | g:+b | g:-a", [(0, 1, 0), (0, 3, 0)]),
        ("g:+a | g:-b g:-a g:-a", [(0, 1, 1), (0, 1, 2)]),
        ("g:+a | g:-a,a", [(0, 1, 0)]),
        ("g:+a | c:-a", [(0, 1, 0)]),
        ("g/0:+a | g/1:-a", [(0, 1, 0)]),
        ("@p g:+a | @q g:-a", [(0, 0, 0)]),
        ("g:+a | clear | g:-a", [(0, 1, 0), (0, 2, 0)]),
        ("g:+a | g:-a | g:+b clear | g:-a", [(0, 2, 1), (0, 3, 0)]),
        ("c:+a c:-a | clear | c:-a", [(0, 0, 1), (0, 2, 0)]),
        ("g:+a | restart g:+b | g:-a", [(1, 1, 0)]),
        ("g:+a | g:-a | g:-a | g:-a", [(0, 1, 0), (0, 3, 0)]),
    ],
)
def test_a_removal_that_no_store_accounts_for_is_a_violation(
    wrong: str, witnesses: list[tuple[int, int, int]]
) -> None:
    """The removal bears witness, with the event that left the block at zero where there was one."""
    verdict = judged("refcount", wrong)
    assert verdict.verdict == "VIOLATED"
    assert witnesses in places(verdict)


def test_the_removals_before_a_repeated_removal() -> None:
    """Every removal too many is counted, and each is shown against the one that was right."""
    verdict = judged("refcount", "c:+a | c:-a | c:-a | c:-a")
    assert verdict.violation_count == 2
    assert places(verdict) == [[(0, 1, 0), (0, 2, 0)], [(0, 1, 0), (0, 3, 0)]]


@pytest.mark.parametrize(
    "cloud",
    [
        "lost(217,late_join)",
        "seq(5)",
        "g:+x | lost(1)",
        "g:+x | gap(1)",
        "g:+x | garbage |",
        "g:+x | ? |",
        "g:+x ?Moved |",
        ". | conflict(0)",
    ],
)
def test_under_a_cloud_an_unexplained_removal_is_unknown(cloud: str) -> None:
    """What was missed may have stored the block: such removals are counted, not held against anybody."""
    verdict = judged("refcount", f"{cloud} g:-a,b | g:-c")
    assert verdict.verdict == "UNKNOWN"
    assert verdict.violations == []
    (unplaced,) = [f for f in verdict.information if "may be in what was missed" in f.because]
    assert unplaced.count == 3
    assert len(unplaced.witnesses) == 1


@pytest.mark.parametrize("cloud", ["lost(9,late_join)", ". | lost(1)", "garbage |", "? |"])
def test_what_was_not_seen_is_unknown_even_if_nothing_contradicts(cloud: str) -> None:
    """HOLDS speaks for everything: with a part unseen or unread it is not said."""
    assert judged("refcount", f"{cloud} g:+a | g:-a").verdict == "UNKNOWN"


def test_an_unknown_tag_alone_does_not_spoil_the_verdict() -> None:
    """New kinds of events are expected; only a removal that one of them could explain becomes UNKNOWN."""
    verdict = judged("refcount", "g:+a ?Moved | g:-a")
    assert verdict.verdict == "HOLDS"
    assert "unknown kind Moved" in told(verdict)


def test_a_cloud_covers_its_own_source_and_epoch_only() -> None:
    """A hole in one stream does not excuse another, nor the same publisher's next life."""
    assert judged("refcount", "@p . | lost(1) . | @q g:-a").verdict == "VIOLATED"
    assert judged("refcount", "lost(1,late_join) . | restart g:-a").verdict == "VIOLATED"


def test_a_stray_of_an_earlier_life_clouds_nothing() -> None:
    """A conflict in an epoch that is over says nothing of the counts of this one."""
    entries = history(". | restart g:+a | g:-b")
    old = Stray(entries[0].entry.source, 0, 0, b"", 0, "conflict")
    assert judged("refcount", [*entries[:4], PositionedEntry(2, old), *entries[4:]]).verdict == "VIOLATED"


def test_a_hole_is_told_once() -> None:
    """A hole that a Loss declares is one thing that was missed, not two."""
    verdict = judged("refcount", ". | lost(3) . | . | gap(1) .")
    assert [finding.count for finding in verdict.information] == [2]
    assert "batches 1 to 3 missing (no_replay)" in told(verdict)


def test_a_cloud_comes_after_what_it_follows() -> None:
    """Events before the unreadable one, in the same batch, are still judged with certainty."""
    assert places(judged("refcount", "g:-a ?")) == [[(0, 0, 0)]]
    assert judged("refcount", "? g:-a").verdict == "UNKNOWN"


def test_a_clear_makes_the_gpu_certain_again_and_nothing_else() -> None:
    """After AllBlocksCleared every GPU count is zero, whatever was missed; CPU counts stay uncertain."""
    gpu = judged("refcount", "g:+x | lost(2) g:+a | clear | g:-a")
    assert places(gpu) == [[(0, 4, 0), (0, 5, 0)]]
    assert judged("refcount", "g:+x | lost(2) c:+a | clear | c:-a c:-a").verdict == "UNKNOWN"
    assert judged("refcount", "g:+x | clear | lost(2) . | g:-a").verdict == "UNKNOWN"


def test_a_store_after_a_hole_does_not_count_the_copies_in_it() -> None:
    """The block is resident, so its removal is right; a second one may take a copy stored in the hole."""
    verdict = judged("refcount", "g:+x | lost(2) g:+a | g:-a | g:-a")
    assert verdict.verdict == "UNKNOWN"
    assert [f.count for f in verdict.information if "may be in what was missed" in f.because] == [1]


def test_oddities_are_information() -> None:
    """Copies, placeholders, empty stores and tiers without removals are told with a first example."""
    report = audit(history("g:+a,b | g:+a,b | g:-a | g:+ | c:+c~ | s:+s | c:-c"))
    assert report.verdict == "HOLDS"
    information = [f for rule in report.rules for f in rule.information if f.level == "information"]
    assert {f.because: f.count for f in information} == {
        "GPU: blocks are stored again while resident: further copies, or prefix hits announced anew": 2,
        "GPU: blocks are removed while further copies stay: the block is still resident": 1,
        "GPU: stores of no blocks (masked or null blocks)": 1,
        "CPU: stores without tokens or block size (placeholders)": 1,
        "STORAGE: blocks are stored and none is ever removed": 1,
    }
    assert [len(f.witnesses) for f in information] == [2, 1, 1, 1, 1]


def test_token_lists_longer_than_their_blocks_are_information() -> None:
    """Hybrid models skip blocks in the hashes and not in the tokens (vLLM#44451)."""
    (began, at) = history("g:+a,b")
    assert isinstance(at.entry, Received)
    assert isinstance(at.entry.batch, EventBatch)
    (event,) = at.entry.batch.events
    assert isinstance(event, BlockStored)
    masked = replace(event, block_hashes=[block("b")])
    entry = replace(at.entry, batch=replace(at.entry.batch, events=[masked]))
    verdict = judged("dense", [began, PositionedEntry(0, entry)])
    assert verdict.verdict == "HOLDS"
    assert "longer than their blocks" in told(verdict)


def test_a_flood_is_counted_and_not_shown() -> None:
    """Violations beyond the limit cost a number each; uncertain removals are one finding however many."""
    flood = history(" | ".join("g:-" + ",".join(f"b{n}x{m}" for m in range(100)) for n in range(50)))
    report = audit(flood, examples=7)
    (refcount,) = [rule for rule in report.rules if rule.rule == "refcount"]
    assert refcount.violation_count == 5000
    assert len(refcount.violations) == 7
    unseen = [e for e in flood if not isinstance(e.entry, EpochBegan)][1:]
    (late,) = audit(unseen, ["refcount"], examples=7).rules
    assert (late.verdict, late.violation_count) == ("UNKNOWN", 0)
    assert sorted(f.count for f in late.information) == [1, 4900]


def test_old_removals_are_forgotten_and_the_violation_stays() -> None:
    """Beyond its memory the rule cannot name the removal before; that the count is zero it still knows."""
    crowd = " ".join(
        "c:+{0} | c:-{0}".format(",".join(f"n{i}x{j}" for j in range(4096))) + " |" for i in range(10)
    )
    assert TAKEN_MAX < 10 * 4096
    verdict = judged("refcount", f"c:+a | c:-a | {crowd} c:-a")
    assert places(verdict) == [[(0, 22, 0)]]


# -- what was missed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "seen", "missed"),
    [
        ("copies", "g:+a | g:+a", "g:+a | gap(1) g:+a"),
        ("remaining", "g:+a,a | g:-a", "g:+a | gap(1) g:+a | g:-a"),
        ("clear", "clear | clear | clear", "clear | gap(1) clear | clear"),
    ],
)
def test_the_strictest_profile_convicts_nobody_on_suspicion(rule: str, seen: str, missed: str) -> None:
    """What is a violation where all was seen is none where a store or a removal may have been missed."""
    (proved,) = audit(history(seen), [rule], profile="kvbus").rules
    (doubted,) = audit(history(missed), [rule], profile="kvbus").rules
    assert (proved.verdict, doubted.violation_count) == ("VIOLATED", 0)
    assert doubted.verdict == ("HOLDS" if rule == "clear" else "UNKNOWN")


def test_a_clear_storm_begins_anew_after_what_was_missed() -> None:
    """Three clears in a row after a hole are a storm again."""
    (clear,) = audit(history("clear | gap(1) clear | clear | clear"), ["clear"], profile="kvbus").rules
    assert [[w.position for w in v.witnesses] for v in clear.violations] == [[1, 3]]


def test_a_clear_storm_is_one_of_one_process() -> None:
    """A process that is cleared as it starts, again and again, empties its own GPU once each time."""
    assert told(judged("clear", "clear | restart clear | restart clear")) == ""
    stormy = judged("clear", "clear | restart clear | clear | clear")
    assert [[w.position for w in finding.witnesses] for finding in stormy.information] == [[1, 3]]


# -- rank ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "late",
    [
        "@p#0 seq(5) g:+a | @p#1 seq(7) g:+b",
        "@p#0 . | . | @p#1 seq(2) .",
        "@p#0 seq(5) . | @p#1 seq(6) . | @p#0 seq(7) .",
        "@p#0 . | @p#1 seq(2) . | @p#0 seq(3) .",
        "@p#0 . | @p#1 . | restart seq(3) . | @p#0 .",
    ],
)
def test_a_rank_whose_beginning_nobody_saw_is_not_convicted(late: str) -> None:
    """Several engines may share an endpoint, and who joins late sees the beginning of none."""
    verdict = judged("rank", late)
    assert (verdict.verdict, verdict.violation_count) == ("UNKNOWN", 0)
    assert "and its beginning was not seen" in told(verdict)


def test_a_rank_that_takes_the_number_of_another_is_convicted() -> None:
    """One counter for two ranks: the number that one leaves out is said by the other, and only there."""
    verdict = judged("rank", "@p#0 . | @p#1 seq(1) . | @p#2 seq(2) . | @p#0 seq(3) . | @p#1 seq(4) .")
    assert places(verdict) == [
        [(0, 0, None), (0, 1, None), (0, 3, None)],
        [(0, 0, None), (0, 2, None), (0, 3, None)],
    ]
    assert "p: rank 1 says batch 1, which rank 0 leaves out" in verdict.violations[0].because


def test_ranks_that_begin_at_their_beginning_are_information() -> None:
    """Engines that share an endpoint, each from its batch 0, break nothing."""
    verdict = judged("rank", "@p#0 . | @p#1 . | @p#0 . | @p#1 .")
    assert (verdict.verdict, verdict.violation_count) == ("HOLDS", 0)


def test_an_endpoint_without_a_rank_is_called_so() -> None:
    """Payloads that carry no rank are of none, not of rank -1."""
    assert "from the endpoint of no rank" in told(judged("rank", "@p . | @p#1 ."))


# -- silence -------------------------------------------------------------------------------------------------


def heard(text: str, *seconds: int) -> list[PositionedEntry]:
    """A history whose batches are heard so many seconds after its first."""
    entries = history(text)
    return [
        replace(
            at, entry=replace(at.entry, received_ns=1_700_000_000_000_000_000 + seconds[at.position] * 10**9)
        )
        if isinstance(at.entry, Received)
        else at
        for at in entries
    ]


def test_a_source_is_silent_while_others_speak() -> None:
    """The batches around a silence bear witness; where nobody spoke, nobody was silent."""
    verdict = judged("silence", heard("@p . | @q . | @p .", 0, 50, 100))
    assert "p: silent for over 60 s" in told(verdict)
    assert [w.position for w in verdict.information[0].witnesses] == [0, 2]
    assert told(judged("silence", heard("@p . | @p . | @q .", 0, 100, 101))) == ""


def test_what_cannot_be_read_breaks_a_silence() -> None:
    """A source that says what nobody can read is not silent, nor somebody else."""
    assert told(judged("silence", heard("@p . | @p garbage | @p .", 0, 50, 100))) == ""


def test_a_source_that_never_comes_back_is_silent() -> None:
    """Nothing more comes of it while others speak for long: told at the end, and only then."""
    entries = heard("@p . | @q . | @q .", 0, 50, 100)
    verdict = judged("silence", entries)
    assert "p: silent for the last 60 s and more, while others spoke" in told(verdict)
    assert [w.position for w in verdict.information[0].witnesses] == [0, 2]
    auditor = Audit(["silence"])
    for at in entries:
        auditor.observe(at)
    assert told(auditor.verdict(at_end=False).rules[0]) == ""
    assert told(judged("silence", heard("@p . | @q . | @q .", 0, 50, 60))) == ""
    assert told(judged("silence", heard("@p . | @p .", 0, 100))) == ""


# -- lifetime ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("c:+a,b | c:+c", "VIOLATED"),
        ("c:+a,b | c:?Moved | c:+c", "UNKNOWN"),
        ("c:+a,b | c:+c | gap(1) .", "UNKNOWN"),
        ("seq(3) c:+a,b | c:+c", "UNKNOWN"),
        ("c:+a | c:?Moved | clear | c:+b,c", "UNKNOWN"),
        ("c:+a | c:?Moved | restart c:+a,b,c", "VIOLATED"),
        ("c:+a | c:?Moved | restart clear", "HOLDS"),
        ("@q c:?Moved | @p c:+a,b,c", "VIOLATED"),
    ],
)
def test_a_leak_is_one_where_no_removal_can_have_been_missed(text: str, verdict: str) -> None:
    """Whatever was missed of the source in this epoch may have been the removals."""
    (lifetime,) = audit(history(text), ["lifetime"], capacities={"CPU": 2}).rules
    assert lifetime.verdict == verdict
    assert ("no removal was seen" in told(lifetime)) == (verdict == "UNKNOWN")


# -- content -------------------------------------------------------------------------------------------------


def loras(*said: tuple[int | None, str | None]) -> list[PositionedEntry]:
    """One block stored again and again, each time with such a ``lora_id`` and ``lora_name``."""
    entries = history(" | ".join("g:+a" for _ in said))
    for n, at in enumerate(entries):
        if isinstance(at.entry, Received) and isinstance(at.entry.batch, EventBatch):
            (store,) = at.entry.batch.events
            assert isinstance(store, BlockStored)
            number, name = said[at.position]
            events = [replace(store, lora_id=number, lora_name=name)]
            entries[n] = replace(at, entry=replace(at.entry, batch=replace(at.entry.batch, events=events)))
    return entries


def test_an_adapter_that_is_loaded_again_is_the_same() -> None:
    """Engines hash an adapter's name; its id, another after each load, counts only where there is no name."""
    assert judged("content", loras((1, "sql"), (2, "sql"), (None, "sql"))).verdict == "HOLDS"
    assert judged("content", loras((1, "sql"), (1, "law"))).verdict == "VIOLATED"
    assert judged("content", loras((1, None), (2, None))).verdict == "VIOLATED"


texts = st.lists(
    st.sampled_from(
        ["g:+a", "g:-a", "g:+b", "g:-b,a", "c:+a", "c:-a", "clear", "?", "g:+a,a", "?Moved", "CPU:-b"]
    ),
    min_size=1,
    max_size=5,
).map(" ".join)
controls = st.sampled_from(["", "", "", "", "lost(1) ", "gap(2) ", "restart ", "@q ", "@engine "])
chapters = st.lists(st.tuples(controls, texts | st.just("garbage")).map("".join), max_size=12).map(" | ".join)


@settings(max_examples=300, deadline=None)
@given(chapters)
def test_refcount_is_right_on_any_history(text: str) -> None:
    """A removal below zero is a violation iff nothing missed before it could explain it (slow reading)."""
    certain: dict[object, set[str]] = {}
    next_seq: dict[object, int] = {}
    epochs: dict[object, int] = {}
    residency, violations, unseen = Residency(), 0, False
    for at in (entries := history(text)):
        entry, below = at.entry, [r for r in residency.fold(at) if isinstance(r, BelowZero)]
        who = entry.source
        if epochs.get(who) != entry.epoch:
            epochs[who] = entry.epoch
            certain[who] = {"GPU", "CPU"}
            next_seq[who] = 0
        if isinstance(entry, Loss):
            unseen = unseen or next_seq[who] > 0
        if not isinstance(entry, Received):
            continue
        if entry.seq != next_seq[who]:
            certain[who], unseen = set(), True
        next_seq[who] = entry.seq + 1
        if not isinstance(entry.batch, EventBatch):
            certain[who], unseen = set(), True
            continue
        for index, event in enumerate(entry.batch.events):
            kind = type(event).__name__
            unknown = [r for r in below if r.event == index and r.medium not in certain[who]]
            unseen = unseen or bool(unknown) or kind == "Undecodable"
            violations += sum(
                len(r.block_hashes) for r in below if r.event == index and r.medium in certain[who]
            )
            if kind in ("Undecodable", "Unrecognized"):
                certain[who] = set()
            elif kind == "AllBlocksCleared":
                certain[who].add("GPU")
    unseen = unseen or not any(isinstance(at.entry, Received) for at in entries)
    verdict = judged("refcount", entries)
    assert verdict.violation_count == violations
    assert verdict.verdict == ("VIOLATED" if violations else "UNKNOWN" if unseen else "HOLDS")


def test_the_docs_list_every_rule_and_profile() -> None:
    """The tables of docs/rules.md are those of the code, word for word."""
    text = (Path(__file__).resolve().parent.parent / "docs" / "rules.md").read_text()
    for about in RULES.values():
        assert f"| `{about.name}` | {about.id} | {about.means} |" in text
    for profile in PROFILES.values():
        assert f"| `{profile.name}` | {profile.about} |" in text


def test_the_order_of_secondaries_is_of_all_that_were_heard_together() -> None:
    """Who spoke before a tier that spoke before another goes before that one too, from then on."""
    said = {
        "s:+a d:+a e:+a | e:+b s:+b": [[(0, 1, 0), (0, 1, 1)]],
        "s:+a d:+a | d:+b e:+b | s:+c e:+c": [],
        "s:+a d:+a | d:+b e:+b | e:+c s:+c": [[(0, 2, 0), (0, 2, 1)]],
    }
    for text, found in said.items():
        (verdict,) = audit(history(text), ["tier_order"], profile="kvbus").rules
        assert places(verdict) == found
