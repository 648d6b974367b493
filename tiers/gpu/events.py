"""What the GPU tier says of its own blocks, as events of the wire, and the buffer in which it says it.

The sibling of ``tiers/offloading_event``: there keys are handed on to be described, here the block, its
tokens and what came before it are at hand, so the event is whole at once. Everything is encoded when it is
said: an event that cannot be encoded is refused before the books change.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, canonical_hash, tokens
from tiers.errors import TierValueError
from tiers.gpu.block_hash import ExtraKeys
from tiers.medium import Medium
from tiers.numbered_buffer import EVENTS_MAX, NumberedBuffer
from tiers.offloading_event import Reason

GPU: Final = Medium.GPU.value


class GPUEventBuffer(NumberedBuffer[Event]):
    """The events of the GPU tier. Not enabled, it keeps nothing and looks at nothing; never more than
    ``events_max`` events.
    """

    def __init__(self, *, enabled: bool, events_max: int = EVENTS_MAX) -> None:
        super().__init__(replace, whose=GPU, enabled=enabled, events_max=events_max)

    def stored(
        self,
        block_hashes: Sequence[bytes],
        *,
        parent: bytes | None,
        token_ids: Sequence[Sequence[int]],
        block_size: int,
        group_idx: int,
        extra_keys: Sequence[ExtraKeys | None] | None,
    ) -> None:
        """Blocks that follow each other became readable. No blocks, no event.

        Raises ``TierValueError`` for tokens or extra keys that do not belong to the blocks.
        """
        if not block_hashes or not self.enabled:
            return
        if len(token_ids) != len(block_hashes) or any(len(ids) != block_size for ids in token_ids):
            raise TierValueError(
                f"{len(token_ids)} lists of tokens for {len(block_hashes)} blocks of {block_size} tokens",
                next_step="Give the tokens of each block, a list a block.",
            )
        if extra_keys is not None and len(extra_keys) != len(block_hashes):
            raise TierValueError(
                f"{len(extra_keys)} extra keys for {len(block_hashes)} blocks",
                next_step="Give one entry a block, None where it has no extra keys.",
            )
        keys = None if extra_keys is None else Raw(msgspec.msgpack.encode(list(extra_keys)))
        stored = BlockStored(
            list(map(canonical_hash, block_hashes)),
            None if parent is None else canonical_hash(parent),
            tokens(list(itertools.chain.from_iterable(token_ids))),
            block_size,
            medium=GPU,
            group_idx=group_idx,
            emit_seq=next(self._numbers),
        )
        self._add(stored if keys is None else replace(stored, extra_keys=keys))

    def removed(self, block_hashes: Sequence[bytes], reason: Reason, *, group_idx: int) -> None:
        """These blocks, a mention for each slot, are no longer there. No blocks, no event."""
        if not block_hashes or not self.enabled:
            return
        self._add(
            BlockRemoved(
                list(map(canonical_hash, block_hashes)),
                medium=GPU,
                group_idx=group_idx,
                emit_seq=next(self._numbers),
                reason=reason,
            )
        )

    def cleared(self) -> None:
        """No block of any group is there any more."""
        if self.enabled:
            self._add(AllBlocksCleared(emit_seq=next(self._numbers)))
