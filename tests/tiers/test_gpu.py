"""The GPU tier's books: prefixes found, slots reused, events of both; and against a slow model."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbus import AllBlocksCleared, BlockRemoved, BlockStored, Event, encode, token_list
from kvbus.dialects import DialectReader
from kvbus.events import EventBatch
from tests.tiers.slow_gpu import Said, SlowPool
from tiers.errors import TierContractError, TierValueError
from tiers.gpu.pool import GPUBlockPool

# A pocket language: a block is a letter, its hash ends with the letter's code, its tokens are two of it.


def hashes(names: str) -> list[bytes]:
    return [bytes(31) + name.encode() for name in names]


def take(pool: GPUBlockPool) -> str:
    """``"+ab -c:evicted !"``: stored, removed and why, cleared; a word an event."""
    pool.check_integrity()
    return " ".join(map(word, pool.take_events()))


def word(event: Event) -> str:
    match event:
        case BlockStored(block_hashes=blocks):
            return "+" + "".join(map(chr, blocks))
        case BlockRemoved(block_hashes=blocks, reason=reason):
            return "-" + "".join(map(chr, blocks)) + f":{reason}"
        case _:
            return "!"


def serve(pool: GPUBlockPool, names: str, *, group_idx: int = 0) -> list[int]:
    """Find, pin and compute the blocks of a prompt, as an engine does; the slots, still in use."""
    wanted = hashes(names)
    found = pool.find_prefix(wanted, group_idx=group_idx)
    pool.touch(found)
    new = pool.allocate(len(wanted) - len(found))
    assert new is not None
    rest = wanted[len(found) :]
    pool.cache(
        new,
        rest,
        token_ids=[[block[-1]] * pool.block_sizes[group_idx] for block in rest],
        parent=wanted[len(found) - 1] if found else None,
        group_idx=group_idx,
    )
    pool.check_integrity()
    return found + new


def finish(pool: GPUBlockPool, slots: Sequence[int]) -> None:
    pool.free(slots[::-1])
    pool.check_integrity()


def test_a_prefix_is_found_until_its_slots_are_given_out() -> None:
    """A block nobody reads stays findable, and is removed when its slot goes to another, not before."""
    pool = GPUBlockPool(4, 2, enable_events=True)
    finish(pool, serve(pool, "abc"))
    assert pool.find_prefix(hashes("abxc")) == [0, 1]
    assert take(pool) == "+abc"
    assert serve(pool, "de") == [3, 2]  # the slot never used, then the tail of the prefix
    assert take(pool) == "-c:evicted +de"
    assert pool.find_prefix(hashes("abc")) == [0, 1]


def test_the_tail_of_the_oldest_prefix_leaves_first() -> None:
    """Slots are given out in the order in which they were let go; a prefix in use again is not among them."""
    pool = GPUBlockPool(4, 2, enable_events=True)
    finish(pool, serve(pool, "ab"))
    finish(pool, serve(pool, "cd"))
    finish(pool, serve(pool, "a"))
    take(pool)
    serve(pool, "wxyz")
    assert take(pool) == "-bdca:evicted +wxyz"


def test_what_is_read_is_not_given_out() -> None:
    """While a slot has a reader it cannot be allocated; too few free slots are None, and no change."""
    pool = GPUBlockPool(3, 2, enable_events=True)
    slots = serve(pool, "ab")
    finish(pool, serve(pool, "c"))
    take(pool)
    assert (pool.allocate(2), pool.free_count, take(pool)) == (None, 1, "")
    assert pool.get_stats()["allocation_failures"] == 1
    pool.touch(slots)
    finish(pool, slots)
    assert pool.allocate(2) is None
    finish(pool, slots)
    assert pool.free_count == 3


def test_equal_blocks_in_several_slots() -> None:
    """Two requests that compute one block at once store it twice; it is found until both have left."""
    pool = GPUBlockPool(3, 2, enable_events=True)
    first, second = pool.allocate(1), pool.allocate(1)
    assert first is not None
    assert second is not None
    for slots in (first, second):
        pool.cache(slots, hashes("a"), token_ids=[[1, 1]], parent=None)
    assert pool.find_prefix(hashes("a")) == first
    pool.free(first)
    pool.free(second)
    serve(pool, "bc")
    assert pool.find_prefix(hashes("a")) == second
    serve(pool, "d")
    assert take(pool) == "+a +a -a:evicted +bc -a:evicted +d"
    assert pool.find_prefix(hashes("a")) == []


@pytest.mark.parametrize("leaving", list(itertools.permutations(range(3))))
def test_of_several_copies_the_oldest_is_found(leaving: tuple[int, ...]) -> None:
    """In whatever order the copies of a block leave, the one that was cached first of the rest is found."""
    pool = GPUBlockPool(3, 2)
    for _ in range(3):
        slots = pool.allocate(1)
        assert slots is not None
        pool.cache(slots, hashes("a"), token_ids=(), parent=None)
    pool.free(leaving)
    for gone in range(1, 4):
        pool.allocate(1)
        pool.check_integrity()
        assert pool.find_prefix(hashes("a")) == sorted(leaving[gone:])[:1]


def test_groups_share_the_slots_but_not_the_blocks() -> None:
    """The same hash in two KV groups is two blocks, in slots of one pool, each with its group's size."""
    pool = GPUBlockPool(3, (2, 4), enable_events=True)
    finish(pool, serve(pool, "ab", group_idx=0))
    assert pool.find_prefix(hashes("a"), group_idx=1) == []
    finish(pool, serve(pool, "a", group_idx=1))
    assert (pool.find_prefix(hashes("a")), pool.find_prefix(hashes("a"), group_idx=1)) == ([0], [2])
    pool.allocate(3)
    events = pool.take_events()
    assert [(type(e).__name__, e.group_idx) for e in events if isinstance(e, BlockStored | BlockRemoved)] == [
        ("BlockStored", 0),
        ("BlockStored", 1),
        ("BlockRemoved", 0),
        ("BlockRemoved", 1),
    ]
    assert [e.block_size for e in events if isinstance(e, BlockStored)] == [2, 4]


def test_an_event_says_it_all() -> None:
    """A store names its blocks, what came before them, their tokens and keys; a consumer reads the same."""
    pool = GPUBlockPool(4, 2, enable_events=True)
    serve(pool, "a")
    slots = pool.allocate(2)
    assert slots is not None
    parent, *rest = hashes("abc")
    pool.cache(slots, rest, token_ids=[[5, 6], [7, 8]], parent=parent, extra_keys=[("salt",), None])
    _, event = pool.take_events()
    assert isinstance(event, BlockStored)
    assert (event.block_hashes, event.parent_block_hash) == ([ord("b"), ord("c")], ord("a"))
    assert (token_list(event.token_ids), event.block_size) == ([5, 6, 7, 8], 2)
    assert token_list(event.extra_keys) == [["salt"], None]
    assert (event.medium, event.group_idx, event.emit_seq) == ("GPU", 0, 1)
    batch = DialectReader().read(encode([event], ts=1.0))
    assert isinstance(batch, EventBatch)
    assert batch.events == [event]


def test_what_a_block_does_not_have_is_not_sent() -> None:
    """An event of blocks without extra keys has the bytes of one that knows of no extra keys."""
    pool = GPUBlockPool(2, 2, enable_events=True)
    serve(pool, "ab")
    assert b"extra_keys" not in encode(pool.take_events(), ts=1.0)


def test_events_that_cannot_be_encoded_use_up_no_number() -> None:
    """A store that is refused leaves no hole in the numbers, which would look like a lost event."""
    pool = GPUBlockPool(1, 1, enable_events=True)
    assert pool.allocate(1) == [0]
    with pytest.raises(TypeError):
        pool.cache([0], hashes("a"), token_ids=[[1]], parent=None, extra_keys=[(object(),)])
    pool.cache([0], hashes("a"), token_ids=[[1]], parent=None)
    (event,) = pool.take_events()
    assert isinstance(event, BlockStored)
    assert event.emit_seq == 0


def test_a_pool_nobody_listens_to_says_what_it_dropped() -> None:
    """The oldest events of a pool whose events nobody takes go, and its counters say how many."""
    pool = GPUBlockPool(3, 2, enable_events=True)
    pool._events.events_max = 2
    for name in "abc":
        serve(pool, name)
    assert pool.get_stats()["events_dropped.undrained"] == 1
    assert take(pool) == "+b +c"


def test_a_reset_forgets_all_and_says_so_once() -> None:
    """A reset with nothing in use is one AllBlocksCleared; with nothing cached it says nothing."""
    pool = GPUBlockPool(3, 2, enable_events=True)
    slots = serve(pool, "ab")
    assert (pool.reset_prefix_cache(), pool.find_prefix(hashes("ab"))) == (False, slots)
    finish(pool, slots)
    assert pool.reset_prefix_cache()
    assert pool.reset_prefix_cache()
    assert pool.find_prefix(hashes("ab")) == []
    serve(pool, "xyz")
    assert take(pool) == "+ab ! +xyz"
    assert pool.get_stats() == {
        **{"stores": 5, "resets": 2, "resets_refused": 1},
        **{"resident": 3, "in_use": 3, "free": 0, "usage": 1.0},
    }


def test_events_carry_the_numbers_of_one_counter() -> None:
    """Every event has a number, a clearing too; those that wait are numbered anew by a new counter."""
    pool = GPUBlockPool(1, 2, enable_events=True)
    finish(pool, serve(pool, "a"))
    pool.number_events(itertools.count(40))
    finish(pool, serve(pool, "b"))
    pool.reset_prefix_cache()
    events = pool.take_events()
    assert [e.emit_seq for e in events if isinstance(e, BlockStored | BlockRemoved | AllBlocksCleared)] == [
        *(40, 41, 42, 43)
    ]


def test_each_event_is_handed_out_once() -> None:
    """Taking empties the buffer at once; what happens meanwhile waits for the next taking."""
    pool = GPUBlockPool(2, 2, enable_events=True)
    serve(pool, "a")
    taken = iter(pool.take_events())
    serve(pool, "b")
    assert word(next(taken)) == "+a"
    assert take(pool) == "+b"
    assert list(taken) == []


def test_without_events_nothing_is_kept() -> None:
    """A pool that announces nothing keeps no event and asks for no tokens."""
    pool = GPUBlockPool(2, 2)
    slots = pool.allocate(2)
    assert slots is not None
    pool.cache(slots, hashes("ab"), token_ids=(), parent=None)
    finish(pool, slots)
    pool.allocate(1)
    assert pool.take_events() == []
    assert pool.get_stats()["evictions"] == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda pool: pool.touch([3]),  # free, and holds nothing
        lambda pool: pool.touch([0, 3]),
        lambda pool: pool.free([1]),  # nobody reads it
        lambda pool: pool.free([0, 0]),
        lambda pool: pool.cache([0], hashes("x"), token_ids=[[1, 1]], parent=None),  # holds a block
        lambda pool: pool.cache([1], hashes("x"), token_ids=[[1, 1]], parent=None),  # is nobody's
        lambda pool: pool.cache([2, 2], hashes("xy"), token_ids=[[1, 1], [1, 1]], parent=None),
    ],
)
def test_a_broken_promise_changes_nothing(call: Callable[[GPUBlockPool], None]) -> None:
    """What is not the caller's to pin, cache or free is refused, whole, and the books stay as they were."""
    pool = GPUBlockPool(4, 2, enable_events=True)
    in_use, let_go = serve(pool, "a"), serve(pool, "b")
    pool.allocate(1)
    finish(pool, let_go)
    take(pool)
    before = pool.get_stats()
    with pytest.raises(TierContractError):
        call(pool)
    assert (pool.get_stats(), take(pool)) == (before, "")
    finish(pool, in_use)
    assert pool.free_count == 3


@pytest.mark.parametrize(
    "call",
    [
        lambda pool: pool.allocate(-1),
        lambda pool: pool.touch([-1]),
        lambda pool: pool.free([2]),
        lambda pool: pool.find_prefix(hashes("a"), group_idx=1),
        lambda pool: pool.find_prefix(hashes("a"), group_idx=-1),
        lambda pool: pool.cache([0], hashes("xy"), token_ids=[[1, 1]] * 2, parent=None),
        lambda pool: pool.cache([0], hashes("x"), token_ids=[], parent=None),
        lambda pool: pool.cache([0], hashes("x"), token_ids=[[1]], parent=None),
        lambda pool: pool.cache([0], hashes("x"), token_ids=[[1, 1]], parent=None, extra_keys=[]),
    ],
)
def test_numbers_that_cannot_be(call: Callable[[GPUBlockPool], None]) -> None:
    """Slots, groups and lists that do not belong together are refused, and no block appears."""
    pool = GPUBlockPool(2, 2, enable_events=True)
    assert pool.allocate(1) == [0]
    with pytest.raises(TierValueError):
        call(pool)
    assert (take(pool), pool.get_stats()["resident"], pool.free_count) == ("", 0, 1)


@pytest.mark.parametrize(("slots", "sizes"), [(-1, 2), (1, 0), (1, ()), (1, (2, -1))])
def test_sizes_that_cannot_be(slots: int, sizes: int | tuple[int, ...]) -> None:
    """A pool has no fewer than no slots, and a block of each group has a token."""
    with pytest.raises(TierValueError):
        GPUBlockPool(slots, sizes)


def test_an_event_that_cannot_be_encoded_leaves_no_block() -> None:
    """A block whose tokens cannot be said is not cached: nothing is there unannounced."""
    pool = GPUBlockPool(1, 1, enable_events=True)
    assert pool.allocate(1) == [0]
    with pytest.raises(OverflowError):
        pool.cache([0], hashes("a"), token_ids=[[1 << 70]], parent=None)
    assert (take(pool), pool.find_prefix(hashes("a"))) == ("", [])


@pytest.mark.parametrize("slot", [0, 1])
def test_the_check_sees_a_lost_reader(slot: int) -> None:
    """A count of readers that disagrees with the queue does not pass the check."""
    pool = GPUBlockPool(2, 2)
    serve(pool, "a")
    pool._readers[slot] ^= 1
    with pytest.raises(AssertionError, match="differ"):
        pool.check_integrity()


class Life:
    """A random life of a pool beside its model, of requests that share prefixes, with two groups."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.size = chance.choice([1, 3, 6, 10, 16])
        self.pool = GPUBlockPool(self.size, (1, 3), enable_events=True)
        self.slow = SlowPool(self.size)
        self.uncached: list[tuple[list[int], list[bytes], int]] = []
        self.in_use: list[list[int]] = []
        self.resident = self.events = 0

    def run(self, steps: int) -> int:
        """Take steps, comparing after each; how many blocks the events spoke of."""
        acts = [self.begin] * 10 + [self.compute] * 10 + [self.end] * 10 + [self.pin]
        for _ in range(steps):
            (self.reset if self.chance.random() < 0.02 else self.chance.choice(acts))()
            self.pool.check_integrity()
            self.compare()
        return self.events

    def compare(self) -> None:
        said = list(itertools.chain.from_iterable(map(in_short, self.pool.take_events())))
        assert said == self.slow.take_events()
        for kind, _, blocks in said:
            self.resident = 0 if kind == "cleared" else self.resident
            self.resident += len(blocks) if kind == "stored" else -len(blocks)
            assert 0 <= self.resident <= self.size
            self.events += len(blocks)
        stats = self.pool.get_stats()
        assert (stats["resident"], stats["free"]) == (len(self.slow.cached), len(self.slow.queue))
        assert self.resident == stats["resident"]

    def begin(self) -> None:
        """A request: what is cached of it is pinned, for the rest there are slots, or not."""
        group, stem = self.chance.randrange(2), self.chance.choice(["", "a", "ab"])
        tail = "".join(self.chance.choice("cdefg") for _ in range(self.chance.randint(0, 3)))
        wanted = [stem[: n + 1] + tail[: max(0, n + 1 - len(stem))] for n in range(len(stem) + len(tail))]
        names = [name.encode().rjust(8) for name in wanted]
        found = self.pool.find_prefix(names, group_idx=group)
        assert found == self.slow.find_prefix(names, group)
        self.pool.touch(found)
        self.slow.touch(found)
        new = self.pool.allocate(len(names) - len(found))
        assert new == self.slow.allocate(len(names) - len(found))
        if new:
            self.uncached.append((new, names[len(found) :], group))
        if slots := found + (new or []):
            self.in_use.append(slots)

    def compute(self) -> None:
        """Some blocks of a request become full: the first of those that are not."""
        if self.uncached:
            slots, names, group = self.uncached.pop(self.chance.randrange(len(self.uncached)))
            full = self.chance.randint(1, len(slots))
            ids = [[7] * (1, 3)[group]] * full
            self.pool.cache(slots[:full], names[:full], token_ids=ids, parent=None, group_idx=group)
            self.slow.cache(slots[:full], names[:full], group)

    def pin(self) -> None:
        """Another reader of slots that are in use, or hold a block, some of them twice."""
        held = [slot for slot in range(self.size) if self.slow.readers[slot] or self.slow.holds_block(slot)]
        if held:
            slots = [self.chance.choice(held) for _ in range(self.chance.randint(1, 3))]
            self.pool.touch(slots)
            self.slow.touch(slots)
            self.in_use.append(slots)

    def end(self) -> None:
        """Slots are let go, in any order. What was not full by then never will be."""
        if self.in_use:
            slots = self.in_use.pop(self.chance.randrange(len(self.in_use)))
            self.chance.shuffle(slots)
            self.pool.free(slots)
            self.slow.free(slots)
            self.uncached = [u for u in self.uncached if all(self.slow.readers[slot] for slot in u[0])]

    def reset(self) -> None:
        assert self.pool.reset_prefix_cache() == self.slow.reset()


def in_short(event: Event) -> Iterable[Said]:
    """The event as the model says it: hashes by their last 8 bytes, a removal for each block."""
    match event:
        case BlockStored(block_hashes=blocks, group_idx=int(group)):
            return [("stored", group, tuple(block.to_bytes(8, "big") for block in blocks))]
        case BlockRemoved(block_hashes=blocks, group_idx=int(group), reason="evicted"):
            return [("removed", group, (block.to_bytes(8, "big"),)) for block in blocks]
        case AllBlocksCleared():
            return [("cleared", 0, ())]
        case _:
            raise AssertionError(event)


@given(st.randoms(use_true_random=False))
def test_a_pool_is_what_plain_lists_give(chance: random.Random) -> None:
    """In any life of a pool every slot, event and count is the one of the slow model."""
    Life(chance).run(30)


def test_five_thousand_calls() -> None:
    """The same in longer lives, each a seed."""
    assert sum(Life(random.Random(seed)).run(250) for seed in range(20)) > 800


@pytest.mark.soak
def test_two_hundred_thousand_calls() -> None:
    """The same over two hundred thousand calls."""
    assert sum(Life(random.Random(seed)).run(1000) for seed in range(1000, 1200)) > 30_000
