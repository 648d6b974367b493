"""What proves that a publisher is another process, and what is only a suspicion."""

from __future__ import annotations

import math
from collections import Counter

from kvbus.arrival import Arrival, Limits
from kvbus.epoch import Epoch
from kvbus.events import EventBatch
from kvbus.former import Former
from kvbus.log import SourceId, Stray
from kvbus.reply import Reply
from kvbus.suspicion import Restart, Suspicion
from kvbus.wire import PublisherInfo


def at(seq: int, ts: float, *, received_ns: int = 0, replayed: bool = False) -> Arrival:
    batch = EventBatch(ts=ts, events=[])
    return Arrival(b"kv", seq, f"{seq}/{ts}".encode(), received_ns, batch, "map", replayed=replayed)


def after(*seqs: int, incarnation: str = "") -> Epoch:
    """An epoch that delivered ``seqs``, each at its number of seconds."""
    epoch = Epoch(
        SourceId("engine"),
        because="first_sight",
        origin=0,
        info=PublisherInfo(incarnation, None, 0),
        counts=Counter(),
        limits=Limits(),
    )
    epoch.begin(at(seqs[0], float(seqs[0])))
    for seq in seqs:
        epoch.deliver(at(seq, float(seq)))
    return epoch


def test_a_first_number_under_a_newer_clock_is_proof() -> None:
    """Only a process that starts says 0 again later."""
    first = at(0, 9.0)
    assert Suspicion(after(0, 1), probing=False).suspect(first, newer=True) == Restart("seq", [first])


def test_one_number_from_the_past_needs_a_second_witness() -> None:
    """The second must be a higher number; the clock says whether it is told by numbers or by bytes."""
    suspicion = Suspicion(after(*range(9)), probing=False)
    witnesses = [at(4, 20.0), at(3, 21.0), at(5, 22.0)]
    assert [suspicion.suspect(one, newer=True) for one in witnesses] == [
        None,
        None,
        Restart("seq", witnesses),
    ]


def test_without_a_second_witness_the_clock_decides() -> None:
    """A lone suspect that is newer proves a restart; one that is older is set aside."""
    suspicion = Suspicion(after(0, 1, 2), probing=False)
    suspicion.suspect(at(1, 0.5), newer=False)
    assert suspicion.decide() is None
    (stray,) = suspicion.dismiss()
    assert isinstance(stray, Stray)
    assert stray.reason == "conflict"
    suspicion.suspect(at(1, 9.0), newer=True)
    assert suspicion.decide() == Restart("seq", [at(1, 9.0)])


def test_other_bytes_contradict_and_forgotten_ones_need_a_clock_and_a_second_beginning() -> None:
    """Numbers alone prove nothing: they start from 0 in each process."""
    epoch = after(5, 6)
    suspicion = Suspicion(epoch, probing=False)
    assert suspicion.is_contradicted(at(6, 7.0), again=False)
    assert not suspicion.is_contradicted(at(6, 6.0), again=True)
    assert not suspicion.is_contradicted(at(3, 7.0), again=False)
    assert suspicion.is_contradicted(at(3, 7.0), again=True)


def test_a_process_says_who_it_is_once_and_for_all() -> None:
    """Another name is proof, the same is none, and where there was none before any name fits."""
    reply = Reply()
    assert Suspicion(after(0), probing=False).introduced(PublisherInfo("b", 0, 1), reply) is None
    named = Suspicion(after(0, incarnation="a"), probing=False)
    assert named.introduced(PublisherInfo("a", 0, 1), reply) is None
    assert named.introduced(PublisherInfo("b", 0, 1), reply) == Restart("incarnation", [])


def test_what_came_over_the_new_connection_is_of_the_process_that_introduces_itself() -> None:
    """The old connection's last batches are next in the old order; what lies beyond them is the new one's."""
    epoch = after(0, 1, incarnation="a")
    suspicion = Suspicion(epoch, probing=False)
    suspicion.probe(5, can_ask=True)
    for seq in (2, 6, 7):
        epoch.wait(at(seq, 10.0 + seq, received_ns=5))
    assert suspicion.introduced(PublisherInfo("b", 0, 8), Reply()) == Restart(
        "incarnation", [at(seq, 10.0 + seq, received_ns=5) for seq in (6, 7)]
    )
    assert 2 in epoch.waiting


def test_an_empty_answer_proves_another_process_only_where_there_is_a_doubt() -> None:
    """A publisher keeps its last batch; one that says that it has gone past ours is not another."""
    epoch = after(0, 1)
    assert Suspicion(epoch, probing=False).answered(None, Reply()) is None
    doubtful = Suspicion(epoch, probing=True)
    assert doubtful.answered(PublisherInfo("", None, 2), Reply()) is None
    assert doubtful.answered(PublisherInfo("", None, 1), Reply()) == Restart("replay_empty", [])


def test_older_bytes_in_an_answer_are_an_older_lifes_unless_it_was_asked_who_this_is() -> None:
    """After a reconnect other bytes may be a new process's whose clock is behind."""
    epoch = after(0, 1, 2)
    older = at(1, 0.5, replayed=True)
    assert Suspicion(epoch, probing=False).is_from_older_life(older)
    assert not Suspicion(epoch, probing=True).is_from_older_life(older)


def test_what_the_life_before_said_is_known_again_as_long_as_the_clock_goes_on() -> None:
    """A replayed batch of the old life is told by its clock, until the new life's clock falls behind it."""
    old = after(0, 1, 2)
    former = Former(old, born_ts=9.0)
    suspicion = Suspicion(old.next_epoch("seq", info=None), former=former, probing=False)
    assert suspicion.is_from_older_life(at(7, 1.5, replayed=True))
    former.heard(at(1, 1.0))
    assert not suspicion.is_from_older_life(at(7, 1.5, replayed=True))


def test_a_live_batch_of_the_life_before_must_be_older_than_the_present_one() -> None:
    """What two connections still bring in turn is told apart by number and clock."""
    former = Former(after(0, 1, 2), born_ts=9.0)
    assert former.left(at(5, 5.0), expected=1)
    assert not former.left(at(5, 9.5), expected=1)
    assert not former.left(at(1, 5.0), expected=1)
    assert not former.left(at(5, 5.0), expected=3)


def test_a_restart_knows_its_birth_and_who_told() -> None:
    """The earliest clock of the witnesses; without any nothing is known."""
    assert Restart("content", [at(1, 8.0), at(0, 7.0, replayed=True)]).born_ts == 7.0
    assert Restart("content", [at(0, 7.0, replayed=True)]).is_told_by_answer
    assert Restart("incarnation", []).born_ts == math.inf
    assert not Restart("seq", [at(0, 7.0)]).is_told_by_answer
