"""What a log answers about blocks without being read as a whole: SQL over its columns.

The questions are those of ``kvbus.block_log.BlockLog``; whoever asks puts them to ``DuckDBReader``. What a
source's present life is, and what of it was missed, is what ``kvbus/shelves`` and the rules make of a log; a
test holds the two together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kvbus.block_log import BlockRows, SourceLife
from kvbus.chunk import KINDS, Ints
from sinks.question import Asked, Parameter

_ROWS: Final = """SELECT position, event, shape, unnest(hashes) AS hash FROM event_rows
WHERE position BETWEEN ? AND ?"""

_MISSED: Final = """WITH life AS (SELECT * FROM (VALUES {lives}) AS life(source_id, epoch, began)),
heard AS (
    SELECT position, source_id, epoch, seq, error,
        lag(seq) OVER (PARTITION BY source_id ORDER BY position) AS before
    FROM batches JOIN life USING (source_id, epoch) WHERE position BETWEEN began AND {last}
), missed AS (
    SELECT source_id, position, -1 AS event FROM heard
    WHERE error IS NOT NULL OR seq <> coalesce(before + 1, CASE WHEN seq = 1 AND position IN (
        SELECT position FROM event_extras WHERE contains(extra, '"event_type"')) THEN 1 ELSE 0 END)
    UNION ALL
    SELECT source_id, position, event::INTEGER FROM event_rows JOIN batches USING (position)
    JOIN life USING (source_id, epoch) WHERE shape IN ({strange}) AND position BETWEEN began AND {last}
    UNION ALL
    SELECT source_id, next_position, -2 FROM strays JOIN life USING (source_id, epoch)
    WHERE reason = 'conflict' AND next_position BETWEEN began AND {through}
    UNION ALL
    SELECT source_id, next_position, -2 FROM losses JOIN life USING (source_id, epoch)
    WHERE next_position BETWEEN began AND {through}
        AND last_seq > (SELECT arg_max(seq, position) FROM heard
            WHERE heard.source_id = losses.source_id AND heard.position < losses.next_position)
)
SELECT source_id, max({{'position': position, 'event': event}}) FROM missed GROUP BY source_id"""

_CLEARED: Final = """SELECT source_id, max({{'position': position, 'event': event::INTEGER}})
FROM event_rows JOIN batches USING (position) WHERE shape IN ({clears}) AND position <= {last}
GROUP BY source_id"""

NO_SHAPE: Final = (-1,)
"""In place of an empty list, which SQL has not."""


def naming_filter(naming: Sequence[int]) -> str:
    """The condition under which an event bears on some blocks: it names one, or none at all."""
    hashes = ", ".join(f"{block}::UBIGINT" for block in naming)
    return f"(len(hashes) = 0 OR list_has_any(hashes, [{hashes}]::UBIGINT[]))"


def block_rows(asked: Asked, first: int, last: int, *, part: int, parts: int) -> BlockRows:
    """See ``BlockLog.block_rows``."""
    sql = _ROWS if parts == 1 else f"SELECT * FROM ({_ROWS}) WHERE hash % {parts} = {part}"
    batches = list(asked.query(sql, [first, last]))
    position, event, shape = (_joined(batches, n).astype(np.int64) for n in range(3))
    block = _joined(batches, 3)
    behind = np.diff(position)
    if (behind < 0).any() or ((behind == 0) & (np.diff(event) < 0)).any():  # rows have no order of their own
        order = np.lexsort((event, position))
        position, event, shape, block = position[order], event[order], shape[order], block[order]
    return position, event, shape, block


def _joined(batches: list[pa.RecordBatch], column: int) -> Any:
    parts = [batch.column(column).to_numpy(zero_copy_only=False) for batch in batches]
    return np.concatenate(parts) if parts else np.zeros(0, np.uint64)


def column(asked: Asked, sql: str, *parameters: Parameter) -> Ints:
    """The only column of a question's answer, of integers."""
    found: Ints = _joined(list(asked.query(sql, parameters)), 0).astype(np.int64)
    return found


def one(asked: Asked, sql: str, *parameters: Parameter) -> int | None:
    """The single number that a question has for an answer; null is None."""
    ((value,),) = asked.rows(sql, parameters)
    return None if value is None else int(value)


def source_lives(asked: Asked, last: int, through: int) -> list[SourceLife]:
    """See ``BlockLog.source_lives``: batches count up to position ``last``, marks that stand before
    ``through`` or earlier.
    """
    turns: dict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
    for source, epoch, position in asked.rows(
        "SELECT source_id, epoch, max(position) FROM batches WHERE position <= ? GROUP BY ALL", [last]
    ):
        turns[source].append((position, 1, 0, epoch))
    for source, epoch, position, marker in asked.rows(
        "SELECT source_id, epoch, next_position, marker FROM epochs WHERE next_position <= ?", [through]
    ):
        turns[source].append((position, 0, marker, epoch))
    began = {source: _began(sorted(mine)) for source, mine in turns.items()}
    if not began:
        return []
    clears, strange = _shapes(asked)
    cleared = _by_source(asked.rows(_CLEARED.format(clears=_listed(clears), last=last)))
    lives = ", ".join(f"({source}, {epoch}, {first})" for source, (epoch, first) in began.items())
    sql = _MISSED.format(lives=lives, strange=_listed(strange), last=last, through=through)
    missed = _by_source(asked.rows(sql))
    found = []
    for source, (epoch, first) in sorted(began.items()):
        clear = cleared.get(source)
        kept = clear if clear is not None and clear[0] >= first else None
        found.append(SourceLife(source, epoch, first, kept, missed.get(source)))
    return found


def _began(turns: list[tuple[int, int, int, int]]) -> tuple[int, int]:
    """The epoch that speaks last, and the position behind everything of another one."""
    epoch = turns[-1][3]
    others = [position + is_batch for position, is_batch, _, other in turns if other != epoch]
    return epoch, max(others, default=0)


def _shapes(asked: Asked) -> tuple[list[int], list[int]]:
    """The shapes of clears, and those of events that nobody can read."""
    rows = asked.rows("SELECT shape, kind FROM event_shapes")
    clears = [shape for shape, kind in rows if kind == "AllBlocksCleared"]
    return clears, [shape for shape, kind in rows if kind not in KINDS]


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, [*numbers] or NO_SHAPE))


def _by_source(rows: list[tuple[Any, ...]]) -> dict[int, tuple[int, int]]:
    return {source: (place["position"], place["event"]) for source, place in rows}
