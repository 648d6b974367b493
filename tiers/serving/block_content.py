"""What a block's bytes have to be: made from its key, so that any copy of it can be compared at any time.

The key stands in the first 40 bytes; behind it comes a piece of one fixed random buffer, from a place that
the key chooses. A block in the wrong slot, a byte gone astray, half a copy: each makes a difference. It is
no model's output; it only has to be told apart from every other block's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from tiers.errors import TierValueError
from tiers.keys import OffloadKey

WORD: Final = 8
HEADER_BYTES: Final = 40
SPREAD_BYTES: Final = 1 << 20
"""From how many bytes of the buffer a piece may begin, in steps of a word: 131 072 places."""

SEED: Final = 20_260_724


class BlockContent:
    """The content of blocks of ``block_bytes`` bytes, on ``device``. Holds a mebibyte more than one block.

    Raises ``TierValueError`` unless the size is a multiple of 8 and leaves room behind the key.
    """

    def __init__(self, block_bytes: int, *, device: torch.device) -> None:
        if block_bytes % WORD or block_bytes <= HEADER_BYTES:
            raise TierValueError(
                f"blocks of {block_bytes} bytes",
                next_step=f"Give a multiple of {WORD} above {HEADER_BYTES}, 64KiB say.",
            )
        generator = torch.Generator().manual_seed(SEED)
        words = (block_bytes - HEADER_BYTES + SPREAD_BYTES) // WORD
        limits = torch.iinfo(torch.int64)
        noise = torch.randint(limits.min, limits.max, (words,), generator=generator, dtype=torch.int64)
        self._noise = noise.to(device)
        self._body_words = (block_bytes - HEADER_BYTES) // WORD

    def write(self, memory: torch.Tensor, slots: Sequence[int], keys: Sequence[OffloadKey]) -> None:
        """Make slot i of ``memory`` (int8, slots × bytes) the block of key i."""
        if not slots:
            return
        words = memory.view(torch.int64)
        words[torch.tensor(slots, device=memory.device), : HEADER_BYTES // WORD] = self._headers(keys)
        for slot, key in zip(slots, keys, strict=True):
            words[slot, HEADER_BYTES // WORD :].copy_(self._body(key))

    def differing(self, memory: torch.Tensor, slots: Sequence[int], keys: Sequence[OffloadKey]) -> list[int]:
        """The positions in ``slots`` that hold anything but the block of their key."""
        if not slots:
            return []
        words = memory.view(torch.int64)
        headers = words[torch.tensor(slots, device=memory.device), : HEADER_BYTES // WORD]
        named: list[bool] = (headers == self._headers(keys)).all(dim=1).tolist()
        return [
            position
            for position, (slot, key) in enumerate(zip(slots, keys, strict=True))
            if not (named[position] and torch.equal(words[slot, HEADER_BYTES // WORD :], self._body(key)))
        ]

    def _headers(self, keys: Sequence[OffloadKey]) -> torch.Tensor:
        """Keys as rows of words."""
        packed = bytearray(b"".join(key.ljust(HEADER_BYTES, b"\0") for key in keys))
        rows = torch.frombuffer(packed, dtype=torch.int64).view(len(keys), HEADER_BYTES // WORD)
        return rows.to(self._noise.device)

    def _body(self, key: OffloadKey) -> torch.Tensor:
        first = int.from_bytes(key[:WORD], "big") % (SPREAD_BYTES // WORD)
        return self._noise[first : first + self._body_words]
