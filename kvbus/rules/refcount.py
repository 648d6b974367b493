"""O1: the reference count of a block, per source, medium, group and hash, never falls below zero.

A removal of a block whose count is zero is VIOLATED where the count is certain, else UNKNOWN. Certain it is
from a source's beginning (an epoch seen from its first batch) until something was missed that could have been
a store: a lost batch, bytes nobody can read, an event under an unknown tag. That clouds all media of the
source, in that epoch.

What makes counts certain again: a new epoch, all of them; AllBlocksCleared, those of the GPU (it empties the
GPU and nothing else). A later store does *not*: it proves the block resident, so its removal is right, but
what was missed may have stored one more copy, so a second removal can be right too. Only of a producer that
never holds two copies would we know better, and nothing on the wire says who that is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from kvbus.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    Undecodable,
    Unrecognized,
    canonical_medium,
    token_count,
)
from kvbus.log import EpochBegan, Loss, PositionedEntry, Received, SourceId, Stray
from kvbus.residency import BelowZero, CopyRemoved, Remark, StoredAgain
from kvbus.rules.rule import About, begins_epoch, named, numbers
from kvbus.verdict import EXAMPLES, Findings, RuleVerdict, Witness, judged, witness

REMOVALS_MAX: Final = 16_384
"""Latest removals remembered per source, medium and group (twice that at times), to name the one before."""
GROUPS_MAX: Final = 4096
"""(medium, group) pairs remembered, against made-up ones."""


class Place(NamedTuple):
    """Where an event stands in the log."""

    position: int
    event: int
    seq: int


Heard = Received | Loss | Stray


class _Removals:
    """Where each block was last taken out, for the latest ones: two halves, the older forgotten at once."""

    __slots__ = ("old", "young")

    def __init__(self) -> None:
        self.young: dict[int, Place] = {}
        self.old: dict[int, Place] = {}

    def note(self, hashes: Iterable[int], place: Place) -> None:
        for block_hash in hashes:
            self.young[block_hash] = place
        if len(self.young) > REMOVALS_MAX:
            self.young, self.old = {}, self.young

    def last(self, block_hash: int) -> Place | None:
        return self.young.get(block_hash) or self.old.get(block_hash)


class _Stream:
    """What is known of one source in one epoch. ``cloud``: why its counts are uncertain, or None."""

    __slots__ = ("clear", "cloud", "epoch", "gpu_certain", "next_seq", "removals")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.next_seq: int | None = None
        self.cloud: str | None = None
        self.gpu_certain = False
        self.clear: Place | None = None
        self.removals: dict[tuple[str | None, int | None], _Removals] = {}

    def doubt(self, medium: str) -> str | None:
        return None if medium == "GPU" and self.gpu_certain else self.cloud

    def removals_of(self, event: BlockRemoved) -> _Removals:
        key = (event.medium, event.group_idx)
        known = self.removals.get(key)
        if known is None:
            if len(self.removals) >= GROUPS_MAX:
                self.removals.clear()
            known = self.removals[key] = _Removals()
        return known


class RefCountRule:
    """See the module. Remembers the latest removals and the last clears; the counts are ``Residency``'s."""

    about = About(
        id="O1",
        name="refcount",
        means="No block is removed from a tier more often than it was stored there.",
        clouded_by="Late joins, holes, what cannot be read, unknown tags; until a new epoch or a clear.",
        source="Dynamo dedup.rs; vLLM docs/features/kv_offloading_usage.md, #57296; WIRE.md §1.6, O1, O6-O8",
    )

    def __init__(self, *, examples: int = EXAMPLES) -> None:
        self._streams: dict[SourceId, _Stream] = {}
        self._violations = Findings(examples)
        self._unknown = Findings(examples)
        self._information = Findings(examples)
        self._stored_media: dict[str | None, Witness] = {}
        self._removed_media: set[str | None] = set()

    def observe(self, at: PositionedEntry, remarks: Sequence[Remark], /) -> None:
        entry = at.entry
        if type(entry) is Received:
            self._received(entry, at.position, remarks)
        elif type(entry) is EpochBegan:
            self._stream(entry.source, entry.epoch)
        elif type(entry) is Loss:
            self._lost(entry)
        elif type(entry) is Stray and entry.reason == "conflict":
            self._doubled(entry)

    def verdict(self) -> RuleVerdict:
        information = self._information.copy()
        removed = {canonical_medium(spelling) for spelling in self._removed_media}
        for spelling, first in self._stored_media.items():
            if (medium := canonical_medium(spelling)) not in removed:
                because = f"{medium}: blocks are stored and none is ever removed"
                information.add(("kept", medium), because, [first])
        return judged(
            self.about.name,
            self.about.id,
            violations=self._violations,
            unknown=self._unknown,
            information=information,
        )

    # -- what was not seen ---------------------------------------------------------------------------------

    def _stream(self, source: SourceId, epoch: int) -> _Stream:
        stream = self._streams.get(source)
        if stream is None or stream.epoch != epoch:
            stream = self._streams[source] = _Stream(epoch)
        return stream

    def _miss(self, heard: Heard, kind: str, why: str, *witnesses: Witness) -> None:
        """Something that bears on the counts was not seen: from here on they are uncertain."""
        stream = self._stream(heard.source, heard.epoch)
        stream.cloud, stream.gpu_certain = why, False
        because = f"{named(heard.source)} epoch {heard.epoch}: {why}; its counts are uncertain from there on"
        into = self._information if kind == "tag" else self._unknown
        into.add((kind, heard.source), because, list(witnesses))

    def _lost(self, loss: Loss) -> None:
        stream = self._stream(loss.source, loss.epoch)
        if stream.next_seq is not None and loss.last_seq >= stream.next_seq:
            self._miss(loss, "lost", f"{numbers(loss.first_seq, loss.last_seq)} missing ({loss.reason})")
            stream.next_seq = loss.last_seq + 1

    def _doubled(self, stray: Stray) -> None:
        stream = self._streams.get(stray.source)
        if stream is not None and stream.epoch == stray.epoch:
            here = witness(stray.source, stray.epoch, stray.seq)
            self._miss(stray, "conflict", f"batch {stray.seq} was heard with different bytes", here)

    def _follow(self, stream: _Stream, entry: Received, here: Witness) -> None:
        """A batch that is not simply the next one."""
        if stream.next_seq is not None:
            self._miss(entry, "lost", f"the numbers do not run on before batch {entry.seq}", here)
        elif not begins_epoch(entry):
            self._miss(entry, "late", f"first seen at batch {entry.seq}", here)

    # -- what was ------------------------------------------------------------------------------------------

    def _received(self, entry: Received, position: int, remarks: Sequence[Remark]) -> None:
        stream, seq = self._stream(entry.source, entry.epoch), entry.seq
        if seq != stream.next_seq:
            self._follow(stream, entry, witness(entry.source, entry.epoch, seq, position=position))
        stream.next_seq = seq + 1
        batch = entry.batch
        if type(batch) is not EventBatch:
            here = witness(entry.source, entry.epoch, seq, position=position)
            self._miss(entry, "payload", f"batch {seq} cannot be read", here)
            return
        below: dict[int, BelowZero] = {}
        for remark in remarks:
            if isinstance(remark, BelowZero):
                below[remark.event] = remark
            else:
                self._copies(entry, position, remark)
        for index, event in enumerate(batch.events):
            if type(event) is BlockRemoved:
                place = Place(position, index, seq)
                if below and index in below:
                    self._judge(stream, entry, event, below[index], place)
                else:
                    stream.removals_of(event).note(event.block_hashes, place)
                if len(self._removed_media) < GROUPS_MAX:
                    self._removed_media.add(event.medium)
            elif type(event) is BlockStored:
                self._stored(entry, position, index, event)
            elif type(event) is AllBlocksCleared:
                stream.clear, stream.gpu_certain = Place(position, index, seq), True
            elif isinstance(event, Undecodable | Unrecognized):
                self._strange(entry, event, Place(position, index, seq))

    def _judge(
        self, stream: _Stream, entry: Received, event: BlockRemoved, below: BelowZero, place: Place
    ) -> None:
        """A removal of blocks whose count was zero."""
        medium, doubt = below.medium, stream.doubt(below.medium)
        where = medium if below.group is None else f"{medium} group {below.group}"
        who = f"{named(entry.source)} epoch {entry.epoch}"
        removals = stream.removals_of(event)
        removals.note(Counter(event.block_hashes) - Counter(below.block_hashes), place)
        for block_hash, times in Counter(below.block_hashes).items():
            here = _witness(entry, place)
            if doubt is not None:
                because = f"{who}: removed from {where}, and the store may be in what was missed ({doubt})"
                self._unknown.add(("removed", entry.source, medium), because, [here], count=times)
                continue
            before, why = removals.last(block_hash), "nothing had stored it"
            if medium == "GPU" and stream.clear is not None and (before is None or before < stream.clear):
                before, why = stream.clear, "AllBlocksCleared had emptied the GPU and nothing stored it since"
            elif before is not None:
                why = "its last copy had been removed before and nothing stored it since"
            evidence = [here] if before is None or before == place else [_witness(entry, before), here]
            self._violations.add(
                None, f"{who}: block {block_hash} is removed from {where}, but {why}", evidence, count=times
            )

    def _strange(self, entry: Received, event: Undecodable | Unrecognized, place: Place) -> None:
        here = _witness(entry, place)
        if isinstance(event, Undecodable):
            self._miss(entry, "event", f"an event of batch {entry.seq} cannot be read", here)
        else:
            self._miss(entry, "tag", f"batch {entry.seq} has an event of unknown kind {event.tag}", here)

    # -- legal, and worth knowing ----------------------------------------------------------------------------

    def _copies(self, entry: Received, position: int, remark: StoredAgain | CopyRemoved) -> None:
        here = _witness(entry, Place(position, remark.event, entry.seq))
        if isinstance(remark, StoredAgain):
            told = "stored again while resident: further copies, or prefix hits announced anew"
        else:
            told = "removed while further copies stay: the block is still resident"
        because = f"{remark.medium}: blocks are {told}"
        self._information.add((type(remark), remark.medium), because, [here], count=remark.blocks)

    def _stored(self, entry: Received, position: int, index: int, event: BlockStored) -> None:
        if event.medium not in self._stored_media and len(self._stored_media) < GROUPS_MAX:
            self._stored_media[event.medium] = _witness(entry, Place(position, index, entry.seq))
        held, size, ids = len(event.block_hashes), event.block_size, token_count(event.token_ids)
        if held and size and ids <= size * held and ids:
            return
        if not held:
            kind, told = "empty", "stores of no blocks (masked or null blocks)"
        elif not size or not ids:
            kind, told = "placeholder", "stores without tokens or block size (placeholders)"
        else:
            kind, told = "long", "token lists longer than their blocks (some were skipped)"
        medium, here = canonical_medium(event.medium), _witness(entry, Place(position, index, entry.seq))
        self._information.add((kind, medium), f"{medium}: {told}", [here])


def _witness(entry: Received, place: Place) -> Witness:
    return witness(entry.source, entry.epoch, place.seq, event=place.event, position=place.position)
