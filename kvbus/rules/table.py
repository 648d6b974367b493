"""Every rule in one table: what it is, how bad a breach is, where it comes from; and what its findings count
as.

``KINDS`` names every kind of finding, ``rule.kind``; a profile (``kvbus/profile``) may count one otherwise,
since what is a fault of one engine is another's habit. Only words here: the functions that find are beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from kvbus.errors import KvbusError
from kvbus.verdict import Level


class UnknownRuleError(KvbusError):
    """A rule was asked for that kvbus does not have."""


class About(Struct, frozen=True):
    """What a rule is. ``id`` as in the literature of kvbus's rules, ``severity`` of a breach at its worst.

    ``clouded_by``: what makes it UNKNOWN, or keeps it from telling what it cannot be sure of; ``source``:
    where the rule comes from (files, issues).
    """

    id: str
    name: str
    means: str
    severity: Literal["violation", "warning", "information"]
    clouded_by: str
    source: str


_HOLES: Final = "Late joins, holes, what cannot be read, unknown tags; until a new epoch or a clear."
_NOTHING: Final = "Nothing: it speaks of what is there."

_TABLE: Final = (
    About(
        "T1",
        "sequence",
        "Within one source and epoch, batches are numbered without a hole, a double or a step back.",
        "violation",
        "An epoch whose beginning was not seen: a late join, a replay that begins too late.",
        "vLLM kv_events.py (one counter a process); vllm#53883; llm-d-router#1737",
    ),
    About(
        "T2",
        "epoch",
        "Numbers begin anew only where the engine does: no block of the epoch before is spoken of again.",
        "violation",
        "A new epoch that was not seen from its beginning.",
        "dynamo DEP #13044 (a lower number alone proves no restart); smg#742; llm-d-router#2853",
    ),
    About(
        "T3",
        "beginning",
        "An epoch is seen from its first batch: 0, or 1 from Mooncake's master.",
        "warning",
        "A late join: what came before, and what is resident from it, is unknown.",
        "ZeroMQ's slow joiner: vllm#18722; dynamo#7463, #14737",
    ),
    About(
        "T4",
        "bytes",
        "One number of one epoch stands for the same bytes, live and replayed.",
        "violation",
        _NOTHING,
        "dynamo zmq_bootstrap.rs; llm-d-router#1887",
    ),
    About(
        "T5",
        "replay",
        "A replay reaches back to what was asked for, has no hole, and ends with its marker.",
        "violation",
        "A hole before the first batch that was seen.",
        "vllm 0.33 ROUTER SNDHWM; vllm#40363, #45174; sglang#38945; Mooncake#3616",
    ),
    About(
        "T6",
        "burned",
        "Every number a publisher gives out is sent or can be replayed.",
        "violation",
        _NOTHING,
        "vLLM _publisher_thread (a failed encode uses up its number); vllm#53883; TensorRT-LLM publish()",
    ),
    About(
        "T7",
        "rank",
        "An endpoint speaks for one data-parallel rank: each rank has its own port and its own numbers.",
        "violation",
        "Endpoints that several engines share: ranks from their beginning are legal, others doubtful.",
        "vLLM port + rank; sglang#29211, #29491; vllm#55679",
    ),
    About(
        "T8",
        "clock",
        "A publisher's clock does not go back, and its batches do not come long after their time.",
        "warning",
        _NOTHING,
        "vLLM EventBatch.ts (wall clock); vllm#53859; dynamo#12643",
    ),
    About(
        "D1",
        "decode",
        "Every batch and event can be read, and a stream speaks one generation of the schema.",
        "violation",
        _NOTHING,
        "vllm#42892; kthena#1535; aibrix#1720; sglang#38561; llm-d-kv-cache#661",
    ),
    About(
        "O1",
        "refcount",
        "No block is removed from a tier more often than it was stored there.",
        "violation",
        _HOLES,
        "Dynamo dedup.rs; vLLM docs/features/kv_offloading_usage.md; llm-d-kv-cache#680; sglang#38486",
    ),
    About(
        "O2",
        "eviction",
        "Room is made before it is taken: no tier holds more blocks than fit into it at any event, and no "
        "block is stored and removed in one drain without cause.",
        "violation",
        _HOLES,
        "vLLM block_pool.get_new_blocks, cpu/manager.prepare_store; TensorRT-LLM#11883",
    ),
    About(
        "O3",
        "tier_order",
        "Inside a drain the GPU speaks first, then the primary tier, then each secondary in its turn.",
        "violation",
        _NOTHING,
        "vLLM scheduler.update_from_output, TieringOffloadingManager.take_events; vllm#46544",
    ),
    About(
        "O4",
        "parent",
        "A block's parent is there before the block is.",
        "violation",
        _HOLES,
        "Dynamo ParentBlockNotFound; llm-d-kv-cache#372; vllm-ascend#12002; vllm#58119",
    ),
    About(
        "O5",
        "chain",
        "No store names a block twice, and no block is its own parent.",
        "violation",
        _NOTHING,
        "dynamo convert.rs, #4395; sglang#13488",
    ),
    About(
        "O6",
        "copies",
        "A block that is resident is not stored again, where producers hold each block once.",
        "violation",
        _HOLES,
        "vLLM BlockHashToBlockMap (copies are legal there); vllm#45261; dynamo#8012",
    ),
    About(
        "O7",
        "remaining",
        "A removal takes the last copy: the block is gone from the tier.",
        "information",
        _HOLES,
        "vllm#48933, #55092",
    ),
    About(
        "O8",
        "clear",
        "AllBlocksCleared empties its source's GPU, once: no block from before it is spoken of again.",
        "violation",
        _HOLES,
        "vllm#57296, #57727; Mooncake#3818; tokenspeed#166",
    ),
    About(
        "O9",
        "owner",
        "Nobody speaks for another's storage: of one engine, one source has the say of a tier.",
        "violation",
        _NOTHING,
        "vllm#46544 (each tier is responsible for its own events)",
    ),
    About(
        "P1",
        "dense",
        "A store has block_size tokens for each of its blocks.",
        "warning",
        _NOTHING,
        "vllm#44451, #43468, #52068; smg#2495",
    ),
    About(
        "P2",
        "content",
        "One hash means one content: the same parent, LoRA, salt, block size and number of tokens.",
        "violation",
        _NOTHING,
        "sglang#24568, #13488; dynamo#693",
    ),
    About(
        "P3",
        "size",
        "A tier's blocks have one size.",
        "warning",
        _NOTHING,
        "llm-d-router#2373; vllm#51614",
    ),
    About(
        "P4",
        "group",
        "A group is stored to before it is removed from.",
        "warning",
        _HOLES,
        "vLLM block_pool; llm-d kv-cache (unknown group)",
    ),
    About(
        "P5",
        "resolvable",
        "A store without tokens names a block that the source has shown with tokens.",
        "warning",
        _HOLES,
        "llm-d-kv-cache#561; llm-d-router#878; vllm#43468",
    ),
    About(
        "L1",
        "lifetime",
        "Blocks that are stored are removed some day: a tier does not only grow.",
        "violation",
        "Whatever was missed in the epoch; without a capacity nobody can tell a large tier from a leak.",
        "TensorRT-LLM#16335; vllm#47923; LMCache#1846, #5076; Mooncake#2214",
    ),
    About(
        "L2",
        "silence",
        "A source does not fall silent while others speak, and a declared tier is heard.",
        "warning",
        _NOTHING,
        "dynamo#11984, #11194; LMCache#3532; sglang#29709, #26387; aibrix#2287",
    ),
    About(
        "L3",
        "demotion",
        "Where there is a lower tier, a block that leaves the GPU is in it.",
        "information",
        "Nothing: what it tells is never more than worth knowing.",
        "sglang#39604",
    ),
)

RULES: Final[Mapping[str, About]] = {about.name: about for about in _TABLE}
"""Every rule by its name, in the order of a report."""

KINDS: Final[Mapping[str, Level]] = {
    "sequence.hole": "violation",
    "sequence.back": "violation",
    "sequence.beginning": "unknown",
    "sequence.moot": "information",
    "sequence.restart": "information",
    "sequence.late": "information",
    "epoch.survivor": "violation",
    "beginning.late": "unknown",
    "bytes.conflict": "violation",
    "replay.too_old": "violation",
    "replay.incomplete": "violation",
    "replay.beginning": "unknown",
    "burned.numbers": "violation",
    "rank.stranger": "violation",
    "rank.doubtful": "unknown",
    "rank.several": "information",
    "clock.back": "warning",
    "clock.lag": "warning",
    "decode.payload": "violation",
    "decode.event": "violation",
    "decode.tag": "information",
    "decode.keys": "information",
    "decode.generation": "warning",
    "refcount.below": "violation",
    "refcount.doubtful": "unknown",
    "refcount.missed": "unknown",
    "refcount.tag": "information",
    "eviction.over": "violation",
    "eviction.doubtful": "unknown",
    "eviction.at_once": "warning",
    "tier_order.turned": "violation",
    "parent.absent": "warning",
    "parent.below": "information",
    "parent.doubtful": "unknown",
    "chain.twice": "violation",
    "chain.own_parent": "violation",
    "copies.again": "information",
    "copies.doubtful": "information",
    "remaining.copies": "information",
    "remaining.doubtful": "information",
    "clear.survivor": "violation",
    "clear.storm": "warning",
    "clear.others": "information",
    "owner.foreign": "violation",
    "dense.empty": "information",
    "dense.placeholder": "information",
    "dense.long": "information",
    "dense.short": "warning",
    "content.differs": "violation",
    "size.mixed": "warning",
    "group.unstored": "warning",
    "resolvable.unseen": "warning",
    "lifetime.leak": "violation",
    "lifetime.doubtful": "unknown",
    "lifetime.kept": "information",
    "silence.source": "warning",
    "silence.gone": "warning",
    "silence.tier": "warning",
    "demotion.lost": "information",
}
"""What each kind of finding counts as, unless the stream's profile says otherwise."""
