"""Made-up chat traffic, for where there is no trace: the same requests for the same seed, on every machine.

What a cache sees of a chat service: system prompts that many conversations share, some far more than others;
conversations that come back, the recent ones more often, each time longer by the last answer and a new
question; and documents that are asked about once. Arrivals are a Poisson process. Nothing here knows of
caches; the defaults give hits in each of a GPU tier of 256 blocks, a CPU tier of 1000, and one behind them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, count, islice
from random import Random
from typing import Final

from tiers.errors import TierValueError
from tiers.serving.trace import Request

MICROSECONDS_A_SECOND: Final = 1_000_000
WEIGHT_OF_FIRST: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTraffic:
    """What the traffic is like. Raises ``TierValueError`` for numbers that do not go together.

    ``document_share`` of the requests are documents of ``turn_blocks`` … ``max_blocks`` blocks;
    ``return_share`` are the next turn of one of the last ``conversations`` conversations; the others begin
    one, behind one of ``system_prompts`` prompts of ``system_blocks`` blocks. A question, and an answer, has
    1 … ``turn_blocks`` blocks of ``block_size`` tokens; a conversation is over when its next prompt could be
    longer than ``max_blocks``. How often a system prompt, or a conversation, is picked goes with 1/rank: the
    first prompt and the latest conversation lead. ``requests_per_s`` is the mean.
    """

    requests_per_s: float = 20.0
    block_size: int = 16
    system_prompts: int = 8
    system_blocks: int = 8
    conversations: int = 128
    turn_blocks: int = 4
    max_blocks: int = 64
    return_share: float = 0.7
    document_share: float = 0.08

    def __post_init__(self) -> None:
        counts = (self.block_size, self.system_prompts, self.conversations, self.turn_blocks)
        shares = (self.return_share, self.document_share)
        wrong = {
            f"{self.requests_per_s} requests a second": not 0 < self.requests_per_s < math.inf,
            "a count that is too small": min(counts) < 1 or self.system_blocks < 0,
            f"{self.max_blocks} blocks for a prompt": self.max_blocks < self.system_blocks + self.turn_blocks,
            f"shares of {shares}": not (min(shares) >= 0 and sum(shares) <= 1),
        }
        for what, is_wrong in wrong.items():
            if is_wrong:
                raise TierValueError(
                    f"chat traffic with {what}",
                    next_step="Give positive numbers, shares that make at most 1 together, and a max_blocks "
                    "that holds a system prompt and a question.",
                )


CHAT: Final = ChatTraffic()


def synthetic(seed: int, *, requests: int | None = None, traffic: ChatTraffic = CHAT) -> Iterator[Request]:
    """``requests`` requests, without end if None; ids count from 0 as blocks first appear.

    Prompts are whole blocks; the blocks of an answer are in the next turn's prompt. Raises
    ``TierValueError`` for a negative number of requests.
    """
    if requests is not None and requests < 0:
        raise TierValueError(f"{requests} requests", next_step="Give 0 or more, or none for no end.")
    return islice(_requests(Dice(seed), traffic), requests)


class Dice:
    """Random choices from ``Random.random`` alone, the one method whose sequence Python promises to keep."""

    def __init__(self, seed: int) -> None:
        self._draw = Random(seed).random

    def share(self) -> float:
        """0 ≤ x < 1."""
        return self._draw()

    def between(self, least: int, most: int) -> int:
        return least + int(self._draw() * (most - least + 1))

    def rank(self, cumulated: list[int], ranks: int) -> int:
        """A rank below ``ranks``, as likely as its weight."""
        return bisect_right(cumulated, int(self._draw() * cumulated[ranks - 1]), hi=ranks - 1)

    def wait_us(self, per_s: float) -> int:
        """Until the next event of a Poisson process. Whole µs: no machine's logarithm is that far off."""
        return round(-math.log(1.0 - self._draw()) / per_s * MICROSECONDS_A_SECOND)


def _requests(dice: Dice, traffic: ChatTraffic) -> Iterator[Request]:
    ids, now_us = count(), 0
    most = max(traffic.system_prompts, traffic.conversations)
    weights = list(accumulate(WEIGHT_OF_FIRST // rank for rank in range(1, most + 1)))
    systems = [list(islice(ids, traffic.system_blocks)) for _ in range(traffic.system_prompts)]
    recent: list[list[int]] = []  # conversations that can come back, with their last answer, the latest last
    while True:
        now_us += dice.wait_us(traffic.requests_per_s)
        what, answer = dice.share(), dice.between(1, traffic.turn_blocks)
        if what < traffic.document_share:
            prompt = list(islice(ids, dice.between(traffic.turn_blocks, traffic.max_blocks)))
        else:
            if recent and what < traffic.document_share + traffic.return_share:
                history = recent.pop(-1 - dice.rank(weights, len(recent)))
            else:
                history = systems[dice.rank(weights, len(systems))]
            prompt = [*history, *islice(ids, dice.between(1, traffic.turn_blocks))]
            if len(prompt) + answer + traffic.turn_blocks <= traffic.max_blocks:
                recent.append([*prompt, *islice(ids, answer)])
                del recent[: -traffic.conversations]
        size = traffic.block_size
        yield Request(now_us / MICROSECONDS_A_SECOND, tuple(prompt), len(prompt) * size, answer * size)
