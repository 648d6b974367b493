"""How policies are found, and what LRU and ARC decide, by the examples of the rules."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Set as AbstractSet

import pytest

from tests.tiers.words import REQUEST, k, keys
from tiers import (
    ARCCachePolicy,
    BlockStatus,
    CachePolicy,
    CachePolicyFactory,
    CPUOffloadingManager,
    LRUCachePolicy,
    OffloadKey,
    ReqContext,
)
from tiers.order import EvictableOrder
from tiers.policy import Victims

POLICIES = [LRUCachePolicy, ARCCachePolicy]


class NewestFirst(CachePolicy):
    """A policy of somebody else, with the hooks for one block only, as policies written for vLLM have."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.blocks: dict[OffloadKey, BlockStatus] = {}
        self.free: list[OffloadKey] = []

    def get(self, key: OffloadKey) -> BlockStatus | None:
        return self.blocks.get(key)

    def insert(self, key: OffloadKey, block: BlockStatus) -> None:
        self.blocks[key] = block

    def remove(self, key: OffloadKey) -> None:
        del self.blocks[key]

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None: ...

    def mark_evictable(self, key: OffloadKey) -> None:
        self.free.append(key)

    def mark_non_evictable(self, key: OffloadKey) -> None:
        self.free.remove(key)

    def evict(self, n: int, protected: AbstractSet[OffloadKey]) -> Victims | None:
        victims = [key for key in reversed(self.free) if key not in protected][:n]
        if len(victims) < n:
            return None
        self.free = [key for key in self.free if key not in victims]
        return [(key, self.blocks.pop(key)) for key in victims]

    def clear(self) -> None:
        self.blocks.clear()
        self.free.clear()


def filled(policy: CachePolicy, names: str) -> dict[OffloadKey, BlockStatus]:
    """Blocks that are there, free, in this order."""
    blocks = {key: BlockStatus(slot, 0) for slot, key in enumerate(keys(names))}
    policy.insert_all(blocks.items())
    return blocks


def order(policy: CachePolicy) -> str:
    """Who would leave, in order, if all had to."""
    left = []
    while victims := policy.evict(1, frozenset()):
        left.append(victims[0][0][:-4].decode())
    return " ".join(left)


def pin(policy: CachePolicy, blocks: dict[OffloadKey, BlockStatus], names: str) -> None:
    for key in keys(names):
        blocks[key].ref_cnt += 1
        if blocks[key].ref_cnt == 1:
            policy.mark_non_evictable(key)


def unpin(policy: CachePolicy, blocks: dict[OffloadKey, BlockStatus], names: str) -> None:
    for key in keys(names):
        blocks[key].ref_cnt -= 1
        if blocks[key].ref_cnt == 0:
            policy.mark_evictable(key)


@pytest.mark.parametrize(("name", "cls"), [("lru", LRUCachePolicy), ("arc", ARCCachePolicy)])
def test_policies_by_name(name: str, cls: type[CachePolicy]) -> None:
    """lru and arc are known by name."""
    assert CachePolicyFactory.get_cache_policy_cls(name) is cls


def test_policies_by_import_path() -> None:
    """A policy that nobody registered is found in its module, given apart or in one word."""
    assert CachePolicyFactory.get_cache_policy_cls("NewestFirst", __name__).__name__ == "NewestFirst"
    assert CachePolicyFactory.get_cache_policy_cls(f"{__name__}:NewestFirst").__name__ == "NewestFirst"


def test_a_policy_of_somebody_else_decides() -> None:
    """The manager asks whatever policy it was given, also one that only knows hooks for one block."""
    manager = CPUOffloadingManager(3, "NewestFirst", True, cache_policy_module_path=__name__)
    for name in "abc":
        manager.prepare_store([k(name)], REQUEST)
        manager.complete_store([k(name)], REQUEST)
    manager.prepare_load([k("c")], REQUEST)
    output = manager.prepare_store([k("d")], REQUEST)
    assert output is not None
    assert output.evicted_keys == [k("b")]
    manager.check_integrity()


def test_a_name_is_given_once() -> None:
    """The name of a built-in policy cannot be taken over."""
    with pytest.raises(ValueError, match="the cache policy 'lru' is registered already"):
        CachePolicyFactory.register_cache_policy("lru", __name__, "NewestFirst")


@pytest.mark.parametrize(
    ("name", "module", "says"),
    [
        ("fifo", None, "no cache policy 'fifo'. Known: arc, lru"),
        ("BlockStatus", "tiers.policy", "no CachePolicy"),
        (".lru:LRUCachePolicy", None, "cannot be imported"),
    ],
)
def test_names_that_lead_nowhere(name: str, module: str | None, says: str) -> None:
    """An unknown name, another class and a place that is none are ValueErrors that say what to do."""
    with pytest.raises(ValueError, match=says):
        CachePolicyFactory.get_cache_policy_cls(name, module)


@pytest.mark.parametrize("cls", POLICIES)
def test_evict_is_atomic(cls: type[CachePolicy]) -> None:
    """Asked for more than it can give, a policy gives None and nothing has changed; asked for none, []."""
    policy = cls(4)
    blocks = filled(policy, "a b c d")
    pin(policy, blocks, "b")
    assert policy.evict(3, {k("c")}) is None
    assert policy.evict(0, frozenset()) == []
    policy.check_integrity()
    assert order(policy) == "a c d"


@pytest.mark.parametrize("cls", POLICIES)
def test_protected_blocks_are_skipped(cls: type[CachePolicy]) -> None:
    """A protected block stays, and keeps its turn."""
    policy = cls(3)
    filled(policy, "a b c")
    assert policy.evict(1, {k("a")}) == [(k("b"), policy_block(policy, "b", 1))]
    assert order(policy) == "a c"


def policy_block(policy: CachePolicy, name: str, slot: int) -> object:
    """Whatever block lies in ``slot``: blocks are compared by identity, so look it up by what it says."""
    assert policy.get(k(name)) is None

    class Like:
        def __eq__(self, other: object) -> bool:
            return isinstance(other, BlockStatus) and other.block_id == slot

        __hash__ = None  # type: ignore[assignment]

    return Like()


def test_lru_touch_goes_backwards() -> None:
    """Of blocks touched together the first is the most recent: the tail of a prefix leaves first."""
    policy = LRUCachePolicy(5)
    filled(policy, "a b c d e")
    policy.touch(keys("a b c"), REQUEST)
    assert order(policy) == "d e c b a"


def test_lru_pinned_blocks_stand_in_no_queue() -> None:
    """Touching a pinned block changes nothing; it is the most recent one when it comes back."""
    policy = LRUCachePolicy(3)
    blocks = filled(policy, "a b c")
    pin(policy, blocks, "a")
    policy.touch(keys("a b"), REQUEST)
    unpin(policy, blocks, "a")
    assert order(policy) == "c b a"


def test_arc_seen_again_is_kept_longer() -> None:
    """A second use moves a block to T2, and T1 pays first."""
    policy = ARCCachePolicy(4)
    filled(policy, "a b c d")
    policy.touch(keys("a b"), REQUEST)
    assert (list(policy.t1), list(policy.t2)) == (keys("c d"), keys("b a"))
    assert order(policy) == "c d b a"
    assert (list(policy.b1), list(policy.b2)) == (keys("c d"), keys("b a"))


def test_arc_learns_from_ghosts() -> None:
    """A touch of a ghost moves the boundary by max(1, the other ghosts / these), within the capacity."""
    policy = ARCCachePolicy(4)
    filled(policy, "a b c d")
    policy.touch(keys("d"), REQUEST)
    assert policy.evict(4, frozenset()) is not None
    assert (list(policy.b1), list(policy.b2)) == (keys("a b c"), keys("d"))
    policy.touch(keys("a"), REQUEST)
    assert (policy.target_t1_size, list(policy.b1)) == (1.0, keys("b c a"))
    policy.touch(keys("d"), REQUEST)
    assert policy.target_t1_size == 0.0  # 1 - 3/1, not below zero
    for _ in range(6):
        policy.touch(keys("b"), REQUEST)
    assert policy.target_t1_size == 4.0
    policy.check_integrity()


def test_arc_a_ghost_that_returns_is_no_ghost() -> None:
    """Inserting a remembered key forgets the ghost and adapts nothing: only a touch does."""
    policy = ARCCachePolicy(2)
    filled(policy, "a b")
    assert policy.evict(1, frozenset()) is not None
    policy.insert(k("a"), BlockStatus(0, 0))
    assert (list(policy.b1), policy.target_t1_size, list(policy.t1)) == ([], 0.0, keys("b a"))


def test_arc_failed_stores_leave_no_ghost() -> None:
    """A block that was removed, not evicted, was never here."""
    policy = ARCCachePolicy(2)
    policy.insert(k("a"), BlockStatus(0))
    policy.remove(k("a"))
    assert [*policy.t1, *policy.t2, *policy.b1, *policy.b2] == []


def test_arc_a_block_not_there_yet_is_not_seen_again() -> None:
    """Touching a block that is still being written makes it T1's most recent, not one of T2."""
    policy = ARCCachePolicy(3)
    blocks = {key: BlockStatus(slot) for slot, key in enumerate(keys("a b c"))}
    policy.insert_all(blocks.items())
    policy.touch(keys("a b"), REQUEST)
    for block in blocks.values():
        block.ref_cnt = 0
    policy.mark_all_evictable(keys("a b c"))
    assert (list(policy.t1), not policy.t2) == (keys("c b a"), True)
    assert order(policy) == "c b a"


def test_arc_blocks_touched_together_come_back_in_turn() -> None:
    """Blocks touched while they were written all become evictable in their turn: nothing waits aside."""
    policy = ARCCachePolicy(8)
    for names in ("a b c d", "e f g h"):
        blocks = {key: BlockStatus(slot) for slot, key in enumerate(keys(names))}
        policy.insert_all(blocks.items())
        policy.touch(keys(names), REQUEST)
        for block in blocks.values():
            block.ref_cnt = 0
        policy.mark_all_evictable(keys(names))
    assert policy._order1._out_of_turn == {}
    assert order(policy) == "d c b a h g f e"


def test_arc_pinned_blocks_count_and_keep_their_place() -> None:
    """Pinned blocks of T1 count against its target, are not evicted, and come back where they were."""
    policy = ARCCachePolicy(4)
    blocks = filled(policy, "a b c d")
    policy.touch(keys("d"), REQUEST)
    policy.target_t1_size = 3.0
    pin(policy, blocks, "a b")
    # |T1| = 3 ≥ 3: c. Then |T1| = 2 < 3, the pinned ones counted: d of T2.
    assert [key for key, _ in policy.evict(2, frozenset()) or []] == keys("c d")
    unpin(policy, blocks, "b")
    unpin(policy, blocks, "a")
    policy.check_integrity()
    assert order(policy) == "a b"


def test_arc_falls_back_to_t1() -> None:
    """T1 below its target and T2 with nothing to give: T1 gives after all (vLLM #55461)."""
    policy = ARCCachePolicy(4)
    blocks = filled(policy, "a b c d")
    policy.touch(keys("c d"), REQUEST)
    policy.target_t1_size = 4.0
    pin(policy, blocks, "c d")
    assert [key for key, _ in policy.evict(2, frozenset()) or []] == keys("a b")
    assert policy.evict(1, frozenset()) is None
    policy.check_integrity()


def test_arc_ghosts_are_bounded() -> None:
    """Each list of ghosts holds as many keys as the cache blocks, the newest."""
    policy = ARCCachePolicy(3)
    for round_ in range(4):
        filled(policy, " ".join(f"{name}{round_}" for name in "abc"))
        assert policy.evict(3, frozenset()) is not None
        policy.check_integrity()
    assert list(policy.b1) == keys("a3 b3 c3")


@pytest.mark.parametrize("cls", POLICIES)
def test_clear_forgets_history(cls: type[CachePolicy]) -> None:
    """After clear a policy is as new."""
    policy = cls(2)
    filled(policy, "a b")
    policy.touch(keys("a"), REQUEST)
    policy.evict(1, frozenset())
    policy.clear()
    policy.check_integrity()
    assert (order(policy), policy.get(k("a"))) == ("", None)
    if isinstance(policy, ARCCachePolicy):
        assert (len(policy.b1), len(policy.b2), policy.target_t1_size) == (0, 0, 0.0)


class Counting(frozenset[OffloadKey]):
    """Nobody is protected; counts how many blocks were looked at."""

    looked_at: int

    def __contains__(self, key: object) -> bool:
        self.looked_at += 1
        return False


@pytest.mark.parametrize("cls", POLICIES)
@pytest.mark.parametrize("out_of_turn", [False, True])
def test_pinned_blocks_are_not_walked_over(cls: type[CachePolicy], out_of_turn: bool) -> None:
    """Evicting looks at as many blocks as leave, however many pinned ones are older."""
    policy, names = cls(1000), " ".join(map(str, range(1000)))
    blocks = filled(policy, names)
    pin(policy, blocks, " ".join(map(str, range(900))))
    if out_of_turn:
        unpin(policy, blocks, "899 500")
    protected = Counting()
    protected.looked_at = 0
    victims = policy.evict(10, protected)
    assert victims is not None
    assert protected.looked_at == 10


def test_order_sweeps_out_what_left() -> None:
    """Blocks that come and go out of turn leave nothing behind: the heap stays in proportion."""
    queue, last = EvictableOrder(), BlockStatus(0, 0, place=10**6)
    queue.add(k("last"), last)
    for place in range(10_000):
        block = BlockStatus(1, 0, place=place)
        queue.add(k("x"), block)
        assert queue.discard(k("x"), block)
    queue.check_integrity()
    assert len(queue) == 1
    assert len(queue._heap) < 100
    assert [key for key, _ in queue.walk(frozenset())] == [k("last")]


def test_order_knows_who_came_back_twice() -> None:
    """A block that leaves its place out of turn and comes back to it is there once."""
    queue, block = EvictableOrder(), BlockStatus(0, 0, place=3)
    queue.add(k("last"), BlockStatus(1, 0, place=9))
    for _ in range(3):
        queue.add(k("x"), block)
        queue.discard(k("x"), block)
    queue.add(k("x"), block)
    for _ in range(2):
        assert [key for key, _ in queue.walk(frozenset())] == keys("x last")


def test_order_walks_without_taking() -> None:
    """A walk that is broken off has changed nothing."""
    queue = EvictableOrder()
    for place in (5, 3, 9, 1, 7):
        queue.add(k(str(place)), BlockStatus(place, 0, place=place))
    for _ in range(3):
        walk = queue.walk({k("3")})
        assert [next(walk)[1].place for _ in range(2)] == [1, 5]
        walk.close()
        queue.check_integrity()
    assert [block.place for _, block in queue.walk(frozenset())] == [1, 3, 5, 7, 9]
    assert k("3") in queue
    assert k("2") not in queue
