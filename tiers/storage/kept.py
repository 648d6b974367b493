"""The entries in a shelf's books: a block that is kept, one that is landing, and the room made for one."""

from __future__ import annotations

from msgspec import Struct

from tiers.keys import OffloadKey
from tiers.policy import BlockStatus
from tiers.storage.amount import NOTHING, Amount


class Kept(BlockStatus, eq=False, gc=False):
    """A resident block; ``ref_cnt`` counts the loads that read it."""

    size: Amount = NOTHING


class Landing(Struct, eq=False, gc=False):
    """A block on its way in; ``reserved`` is what it takes beyond what its victims still take."""

    size: Amount
    reserved: Amount


class Room(Struct, frozen=True):
    """The blocks that must be deleted on the medium before the room is there, in the order of eviction."""

    victims: list[OffloadKey]
