"""The GPU tier's books: which block lies in which slot, who reads it, whose slot comes next. No tensor.

vLLM's ``BlockPool``: paged slots with counts of readers. A block that nobody reads waits in a queue of free
slots, and can still be found until its slot is given out: then, and not before, it is announced as removed.
Equal blocks in several slots are not made one; each is stored and removed on its own. KV groups share the
slots; the same hash in two groups is two blocks. Unlike vLLM no slot is set aside as a null block, and what
one call evicts from one group is one event, not one event a block.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence

from kvbus.events import Event
from tiers.errors import TierContractError, TierValueError
from tiers.gpu.block_hash import ExtraKeys
from tiers.gpu.events import GPUEventBuffer
from tiers.gpu.prefix_index import PrefixIndex


class GPUBlockPool:
    """Slots 0 … ``num_blocks`` - 1. ``block_size``: tokens a block, a number for each KV group where there
    are several. Without ``enable_events`` nothing is announced and no token is looked at.

    Slots are pinned by ``allocate`` and ``touch`` and let go by ``free``, once a mention. Raises
    ``TierValueError`` for numbers that cannot be; a call that raises has changed nothing.
    """

    def __init__(
        self, num_blocks: int, block_size: int | Sequence[int], *, enable_events: bool = False
    ) -> None:
        sizes = (block_size,) if isinstance(block_size, int) else tuple(block_size)
        if num_blocks < 0 or min(sizes, default=0) < 1:
            raise TierValueError(
                f"{num_blocks} slots, {sizes} tokens a block",
                next_step="Give 0 or more slots, and for each KV group 1 or more tokens a block.",
            )
        self.num_blocks = num_blocks
        self.block_sizes = sizes
        self._index = PrefixIndex(num_blocks, len(sizes))
        self._events = GPUEventBuffer(enabled=enable_events)
        self._readers = [0] * num_blocks
        # The queue of free slots: those never used, ascending, then those let go, longest ago first. C's
        # OrderedDict is the doubly linked list this needs: O(1) at both ends and in the middle.
        self._next_unused = 0
        self._let_go: OrderedDict[int, None] = OrderedDict()
        self._counts: Counter[str] = Counter()

    @property
    def free_count(self) -> int:
        """Slots that nobody reads, whether or not a block can still be found in them."""
        return self.num_blocks - self._next_unused + len(self._let_go)

    # Reading

    def find_prefix(self, block_hashes: Sequence[bytes], *, group_idx: int = 0) -> list[int]:
        """The slots of the longest cached prefix, in order; of several copies the oldest. Is no use of the
        blocks: pin what was found with ``touch`` before anything is allocated.
        """
        self._index.check_group(group_idx)
        return self._index.find(block_hashes, group_idx=group_idx)

    def touch(self, slots: Sequence[int]) -> None:
        """One reader more for each mention. ``TierContractError`` for a free slot that holds no block."""
        readers, hash_in = self._readers, self._index.hash_in
        self._check_slots(slots)
        for slot in slots:
            if not readers[slot] and hash_in[slot] is None:
                raise TierContractError(
                    f"slot {slot} is free and holds no block",
                    next_step="Touch what find_prefix found, before anything is allocated.",
                )
        for slot in slots:
            if not readers[slot]:
                del self._let_go[slot]
            readers[slot] += 1

    # Writing

    def allocate(self, count: int) -> list[int] | None:
        """``count`` slots with one reader each, those free for longest first. The blocks that were still in
        them are evicted, and announced, here. None, and no change, if fewer are free.
        """
        if count < 0:
            raise TierValueError(f"{count} slots wanted", next_step="Ask for 0 or more.")
        if count > self.free_count:
            self._counts["allocation_failures"] += 1
            return None
        unused = min(count, self.num_blocks - self._next_unused)
        slots = list(range(self._next_unused, self._next_unused + unused))
        self._next_unused += unused
        if again := count - unused:
            popitem = self._let_go.popitem
            given_up = [popitem(last=False)[0] for _ in range(again)]
            self._evict(given_up)
            slots += given_up
        for slot in slots:
            self._readers[slot] = 1
        return slots

    def _evict(self, slots: list[int]) -> None:
        for group_idx, evicted in self._index.forget(slots):
            self._events.removed(evicted, "evicted", group_idx=group_idx)
            self._counts["evictions"] += len(evicted)

    def cache(
        self,
        slots: Sequence[int],
        block_hashes: Sequence[bytes],
        *,
        token_ids: Sequence[Sequence[int]],
        parent: bytes | None,
        group_idx: int = 0,
        extra_keys: Sequence[ExtraKeys | None] | None = None,
    ) -> None:
        """Full blocks are readable in these slots from now on: one event, in this order.

        The blocks follow each other; ``parent`` is the hash before the first, None at the beginning of a
        prompt. ``token_ids`` has the tokens of each block (plain ints), ``extra_keys`` an entry for each;
        both serve the event alone, and without events anything passes. ``TierContractError`` for a slot that
        nobody reads or that holds a block already, ``TierValueError`` for lists that do not belong together.
        """
        self._index.check_group(group_idx)
        if len(slots) != len(block_hashes):
            raise TierValueError(
                f"{len(slots)} slots for {len(block_hashes)} hashes", next_step="Give a hash for each slot."
            )
        self._check_cacheable(slots)
        # Said first: an event that cannot be encoded must not leave a block that nobody was told of.
        self._events.stored(
            block_hashes,
            parent=parent,
            token_ids=token_ids,
            block_size=self.block_sizes[group_idx],
            group_idx=group_idx,
            extra_keys=extra_keys,
        )
        self._index.add(slots, block_hashes, group_idx=group_idx)
        self._counts["stores"] += len(slots)

    def free(self, slots: Sequence[int]) -> None:
        """One reader less for each mention. Slots without readers join the end of the queue, in this order:
        give a request's slots last block first, so that the tail of its prefix leaves first.
        """
        readers, released = self._readers, []
        self._check_slots(slots)
        for done, slot in enumerate(slots):
            if not readers[slot]:
                for other in slots[:done]:
                    readers[other] += 1
                raise TierContractError(
                    f"nobody reads slot {slot}", next_step="Free a slot once for each allocate and touch."
                )
            readers[slot] -= 1
            if not readers[slot]:
                released.append(slot)
        self._let_go.update(dict.fromkeys(released))

    def reset_prefix_cache(self) -> bool:
        """Forget every block, and say so if there was any. False, and no change, while slots are in use."""
        if self.free_count != self.num_blocks:
            self._counts["resets_refused"] += 1
            return False
        if len(self._index):
            self._events.cleared()
            self._index.clear()
        self._counts["resets"] += 1
        return True

    # The rest

    def take_events(self) -> list[Event]:
        return self._events.take()

    def number_events(self, numbers: Iterator[int]) -> None:
        self._events.number_from(numbers)

    def get_stats(self) -> Mapping[str, float]:
        """Counters since the start, in blocks or calls, and gauges: slots now ``resident`` (a block can be
        found there), ``in_use`` and ``free``; ``usage`` is the share in use.
        """
        in_use = self.num_blocks - self.free_count
        return {
            **self._counts,
            **self._events.counts,
            "resident": len(self._index),
            "in_use": in_use,
            "free": self.free_count,
            "usage": in_use / max(1, self.num_blocks),
        }

    def _check_slots(self, slots: Sequence[int]) -> None:
        if slots and not (min(slots) >= 0 and max(slots) < self.num_blocks):
            raise TierValueError(
                f"slots {min(slots)} to {max(slots)} of {self.num_blocks}",
                next_step="Give slots that allocate or find_prefix gave.",
            )

    def _check_cacheable(self, slots: Sequence[int]) -> None:
        self._check_slots(slots)
        readers, hash_in = self._readers, self._index.hash_in
        for slot in slots:
            if not readers[slot] or hash_in[slot] is not None:
                state = "holds a block already" if readers[slot] else "is free"
                raise TierContractError(
                    f"slot {slot} cannot take a block: it {state}",
                    next_step="Cache a slot that allocate gave once, before it is freed.",
                )
        if len(set(slots)) != len(slots):
            raise TierContractError("a slot was named twice", next_step="Cache one block a slot.")

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if any promise of this class does not hold now."""
        self._index.check_integrity()
        self._events.check_integrity()
        assert 0 <= self._next_unused <= self.num_blocks, "more slots used than there are"
        assert min(self._readers, default=0) >= 0, "fewer than no readers"
        free = {slot for slot, readers in enumerate(self._readers) if not readers}
        unused = range(self._next_unused, self.num_blocks)
        assert free == self._let_go.keys() | set(unused), "free slots and slots without readers differ"
        assert self._let_go.keys().isdisjoint(unused), "a slot that was let go but never used"
        assert all(self._index.hash_in[slot] is None for slot in unused), "a block in a slot never used"
