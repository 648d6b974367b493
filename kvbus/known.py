"""What a log has already, so that bringing the same in again adds nothing, and only what is new goes in.

Pure: entries in, entries out. It remembers a number and a 64-bit fingerprint for each batch (about 100
bytes), so it is for imports, which end, not for recorders, which do not. A batch that comes too late for
its place becomes a ``Stray``, a hole in what is brought in a ``Loss``: the log's order holds whatever the
files say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvbus.log import Entry, EpochBegan, Loss, Received, SourceId, Stray

Stream = tuple[SourceId, int]
"""A source in one epoch."""


class Known:
    """An index of entries. Fingerprints are Python's own (keyed anew in every process), so nobody can
    forge one.

    ``already`` counts batches that were passed over because they are there.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.already = 0
        self._prints: dict[Stream, dict[int, int]] = {}
        self._by_name: dict[str, set[tuple[int, int]]] = {}
        self._next_seq: dict[Stream, int] = {}
        self._epoch: dict[SourceId, int] = {}
        self._marks: set[tuple[Stream, int, int]] = set()
        for entry in entries:
            self._note(entry)

    def has(self, name: str, seq: int, payload: bytes) -> bool:
        """Whether any stream of the source ``name`` has this batch, in whatever epoch; counted when so."""
        there = (seq, hash(payload)) in self._by_name.get(name, ())
        self.already += there
        return there

    def add(self, name: str, seq: int, payload: bytes) -> None:
        """Remember a batch whose stream will only be known later."""
        self._by_name.setdefault(name, set()).add((seq, hash(payload)))

    def conflict(self, entry: Entry) -> bool:
        """Whether the log has this batch's number with other bytes."""
        if not isinstance(entry, Received):
            return False
        have = self._prints.get((entry.source, entry.epoch), {}).get(entry.seq)
        return have is not None and have != hash(entry.payload)

    def fresh(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """What of ``entries`` is not there yet, in a form that a sink takes; remembered from then on."""
        for entry in entries:
            for new in self._fresh(entry):
                self._note(new)
                yield new

    def _fresh(self, entry: Entry) -> Iterator[Entry]:
        match entry:
            case Received():
                yield from self._fresh_batch(entry)
            case Stray():
                if ((entry.source, entry.epoch), entry.seq, hash(entry.payload)) not in self._marks:
                    yield entry
            case Loss():
                if _mark(entry) not in self._marks and entry.last_seq >= self._next_seq.get(
                    (entry.source, entry.epoch), 0
                ):
                    yield entry
            case EpochBegan():
                if _mark(entry) not in self._marks and entry.epoch >= self._epoch.get(entry.source, 0):
                    yield entry

    def _fresh_batch(self, entry: Received) -> Iterator[Entry]:
        stream = (entry.source, entry.epoch)
        have = self._prints.get(stream, {}).get(entry.seq)
        if have == hash(entry.payload):
            self.already += 1
            return
        next_seq = self._next_seq.get(stream)
        passed = next_seq is not None and entry.seq < next_seq
        if have is not None or passed or entry.epoch < self._epoch.get(entry.source, 0):
            reason = "late" if have is None else "conflict"
            yield from self._fresh(_stray(entry, reason))
            return
        if next_seq is not None and entry.seq > next_seq:
            yield Loss(entry.source, entry.epoch, next_seq, entry.seq - 1, "no_replay", entry.received_ns)
        yield entry

    def _note(self, entry: Entry) -> None:
        stream = (entry.source, entry.epoch)
        if isinstance(entry, Stray):
            self._marks.add((stream, entry.seq, hash(entry.payload)))
            return
        self._epoch[entry.source] = max(entry.epoch, self._epoch.get(entry.source, 0))
        if isinstance(entry, Received):
            self._prints.setdefault(stream, {})[entry.seq] = hash(entry.payload)
            self.add(entry.source.source, entry.seq, entry.payload)
            self._next_seq[stream] = entry.seq + 1
            return
        self._marks.add(_mark(entry))
        if isinstance(entry, Loss):
            self._next_seq[stream] = max(self._next_seq.get(stream, 0), entry.last_seq + 1)


def _mark(entry: Loss | EpochBegan) -> tuple[Stream, int, int]:
    """What is the same of it for every reader: not when it was noticed, nor how."""
    stream = (entry.source, entry.epoch)
    return (stream, entry.first_seq, entry.last_seq) if isinstance(entry, Loss) else (stream, -1, -1)


def _stray(entry: Received, reason: str) -> Stray:
    return Stray(entry.source, entry.epoch, entry.seq, entry.payload, entry.received_ns, reason)
