"""The views of a log: what people ask of it, in SQL that any DuckDB from 1.2 on runs.

``VIEWS`` put the tables together (version 1); ``ADDED`` (version 2) say what became of blocks: ``resets`` and
``copies`` count as ``kvbus/residency`` does, the others rest on them. A test holds both counts together.
Text only: nothing is opened here.
"""

from __future__ import annotations

from typing import Final

VIEWS: Final = """
CREATE VIEW events AS
SELECT position, event, source_id, epoch, seq, ts, kind, medium, medium_raw, hashes, parent_hash, token_count,
    block_size, group_idx, kv_cache_spec_kind, kv_cache_spec_sliding_window, lora_id, lora_name, locality,
    ownership, session_id, cache_salt, emit_seq, reason, extra, event_extras.error AS error
FROM event_rows
JOIN event_shapes USING (shape)
JOIN batches USING (position)
LEFT JOIN event_extras USING (position, event);

CREATE VIEW blocks AS
SELECT * EXCLUDE (hashes, parent_hash, nth),
    CAST(nth - 1 AS UINTEGER) AS block,
    hashes[nth] AS hash,
    CASE WHEN nth = 1 THEN parent_hash WHEN token_count = block_size * len(hashes) AND block_size > 0
        THEN hashes[nth - 1] END AS parent_hash
FROM (SELECT *, unnest(range(1, len(hashes) + 1)) AS nth FROM events);

CREATE VIEW standings AS
WITH heard AS (
    SELECT source_id, epoch, max(seq) AS seq, arg_max(ts, seq) AS ts FROM batches GROUP BY ALL
), lost AS (
    SELECT source_id, epoch, max(last_seq) AS seq FROM losses GROUP BY ALL
), begun AS (
    SELECT source_id, epoch, arg_max(incarnation, marker) AS incarnation FROM epochs GROUP BY ALL
), known AS (
    SELECT source_id, epoch FROM heard UNION SELECT source_id, epoch FROM lost
    UNION SELECT source_id, epoch FROM begun
)
SELECT source_id, epoch,
    greatest(coalesce(heard.seq + 1, 0), coalesce(lost.seq + 1, 0))::UBIGINT AS next_seq,
    coalesce(heard.ts, 0) AS last_ts,
    coalesce(begun.incarnation, '') AS incarnation
FROM known
LEFT JOIN heard USING (source_id, epoch)
LEFT JOIN lost USING (source_id, epoch)
LEFT JOIN begun USING (source_id, epoch);
"""

RESETS: Final = """
CREATE VIEW resets AS
WITH heard AS (
    SELECT source_id, epoch, position AS spot, NULL AS marker FROM batches
    UNION ALL SELECT source_id, epoch, next_position, marker FROM epochs
), turns AS (
    SELECT *, lag(epoch) OVER (PARTITION BY source_id ORDER BY spot, marker NULLS LAST) AS before FROM heard
), emptied AS (
    SELECT source_id, unnest([true, false]) AS is_gpu, spot AS position, 0 AS event, NULL AS cleared,
        epoch, 'epoch' AS because
    FROM turns WHERE epoch <> before
    UNION ALL SELECT source_id, true, position, event, event, epoch, 'clear'
    FROM events WHERE kind = 'AllBlocksCleared'
), once AS (
    SELECT source_id, is_gpu, position, event, min(cleared) AS cleared, max(epoch) AS epoch,
        max(because) AS because
    FROM emptied GROUP BY source_id, is_gpu, position, event
)
SELECT source_id, is_gpu,
    row_number() OVER (PARTITION BY source_id, is_gpu ORDER BY position, once.event) AS number,
    position, CASE WHEN because = 'clear' THEN cleared END::UINTEGER AS event, epoch, ts, because
FROM once LEFT JOIN (SELECT position, ts FROM batches) AS batch USING (position);
"""
"""``max(because)``: a clear at the head of an epoch empties what the epoch has emptied already."""

COPIES: Final = """
CREATE VIEW copies AS
WITH said AS (
    SELECT position, event, source_id, epoch, seq, ts, kind, medium, group_idx, reason, hashes,
        position * 4294967296 + event AS spot, medium = 'GPU' AS is_gpu
    FROM event_rows
    JOIN event_shapes USING (shape)
    JOIN batches USING (position)
    WHERE kind IN ('BlockStored', 'BlockRemoved')
), placed AS (
    SELECT said.*, coalesce(reset.number, 0) AS resets
    FROM said ASOF LEFT JOIN (
        SELECT source_id, is_gpu, number, position * 4294967296 + coalesce(event, 0) AS spot FROM resets
    ) AS reset
        ON said.source_id = reset.source_id AND said.is_gpu = reset.is_gpu AND said.spot >= reset.spot
), changes AS (
    SELECT * EXCLUDE (hashes, is_gpu), CAST(unnest(range(len(hashes))) AS UINTEGER) AS block,
        unnest(hashes) AS hash
    FROM placed
), summed AS (
    SELECT *, sum(CASE WHEN kind = 'BlockStored' THEN 1 ELSE -1 END) OVER (
        PARTITION BY source_id, medium, group_idx, resets, hash ORDER BY spot, block
        ROWS UNBOUNDED PRECEDING) AS total
    FROM changes
)
SELECT position, event, block, source_id, epoch, seq, ts, kind, medium, group_idx, hash, reason, resets,
    CAST(total - least(0, min(total) OVER (
        PARTITION BY source_id, medium, group_idx, resets, hash ORDER BY spot, block
        ROWS UNBOUNDED PRECEDING)) AS BIGINT) AS copies
FROM summed;
"""

LIFETIMES: Final = """
CREATE VIEW lifetimes AS
WITH edges AS (
    SELECT * FROM copies WHERE copies = CASE WHEN kind = 'BlockStored' THEN 1 ELSE 0 END
), lives AS (
    SELECT *, lead(position) OVER life AS left_position, lead(event) OVER life AS left_event,
        lead(ts) OVER life AS left_ts, lead(reason) OVER life AS left_reason
    FROM edges
    WINDOW life AS (PARTITION BY source_id, medium, group_idx, resets, hash ORDER BY position, event, block)
    QUALIFY kind = 'BlockStored'
)
SELECT lives.source_id AS source_id, lives.epoch AS epoch, medium, group_idx, hash,
    lives.position AS stored_position, lives.event AS stored_event, lives.ts AS stored_ts,
    CASE WHEN left_position IS NULL THEN resets.position ELSE left_position END AS ended_position,
    CASE WHEN left_position IS NULL THEN resets.event ELSE left_event END AS ended_event,
    CASE WHEN left_position IS NULL THEN resets.ts ELSE left_ts END AS ended_ts,
    CASE WHEN left_position IS NULL THEN resets.because ELSE 'removal' END AS ended_by,
    left_reason AS reason,
    ended_ts - stored_ts AS seconds
FROM lives LEFT JOIN resets
    ON lives.source_id = resets.source_id AND (medium = 'GPU') = resets.is_gpu
    AND lives.resets + 1 = resets.number;
"""

RESIDENCY: Final = """
CREATE VIEW residency AS
WITH over_there AS (SELECT source_id, is_gpu, max(number) AS number FROM resets GROUP BY ALL),
held AS (
    SELECT source_id, medium, group_idx, hash, resets, max(epoch) AS epoch,
        arg_max(copies, (position, event, block)) AS copies,
        max((position, event, ts)) FILTER (kind = 'BlockStored' AND copies = 1) AS since
    FROM copies GROUP BY source_id, medium, group_idx, hash, resets
)
SELECT held.source_id AS source_id, epoch, medium, group_idx, hash, copies,
    since[1] AS stored_position, since[2] AS stored_event, since[3] AS stored_ts
FROM held LEFT JOIN over_there
    ON held.source_id = over_there.source_id AND (medium = 'GPU') = over_there.is_gpu
WHERE copies > 0 AND resets = coalesce(over_there.number, 0);
"""

REUSE: Final = """
CREATE VIEW reuse_distance AS
WITH stores AS (
    SELECT *, row_number() OVER (
        PARTITION BY source_id, epoch, medium, group_idx ORDER BY position, event, block) AS nth
    FROM copies WHERE kind = 'BlockStored'
), linked AS (
    SELECT *, lag(nth) OVER again AS earlier, lag(position) OVER again AS previous_position,
        lag(event) OVER again AS previous_event, lag(ts) OVER again AS previous_ts
    FROM stores
    WINDOW again AS (PARTITION BY source_id, epoch, medium, group_idx, hash ORDER BY nth)
), measured AS (
    SELECT *, count(DISTINCT hash) OVER (
        PARTITION BY source_id, epoch, medium, group_idx ORDER BY nth
        ROWS BETWEEN coalesce(nth - earlier - 1, 0) PRECEDING AND 1 PRECEDING) AS distance
    FROM linked
)
SELECT source_id, epoch, medium, group_idx, hash, position, event, ts,
    previous_position, previous_event, previous_ts, distance, copies > 1 AS was_resident
FROM measured WHERE earlier IS NOT NULL;
"""

FLOW: Final = """
CREATE VIEW tier_flow AS
WITH lives AS (
    SELECT lifetimes.*, rank,
        CASE WHEN medium = 'GPU' THEN 0 WHEN medium IN ('CPU', 'CPU_PINNED', 'CPU_TIER1') THEN 1 ELSE 2 END
            AS depth,
        CASE WHEN contains(source, '://') THEN source ELSE regexp_extract(source, '^[^/]*') END AS engine,
        CASE WHEN contains(source, '://') OR NOT contains(source, '/') THEN source_id END AS alone
    FROM lifetimes JOIN sources USING (source_id)
), beside AS (
    SELECT engine, alone, rank, medium, depth, hash, stored_position, stored_event, stored_ts,
        ended_position, ended_event, ended_ts
    FROM lives
), came AS (
    SELECT new.engine, new.rank, new.stored_position AS position, new.stored_event AS event,
        new.stored_ts AS ts, new.group_idx AS group_idx, new.hash AS hash, new.medium AS to_medium,
        arg_min(other.medium, (abs(other.depth - new.depth), -other.stored_position::HUGEINT)) AS from_medium
    FROM lives AS new LEFT JOIN beside AS other
        ON new.engine = other.engine AND new.hash = other.hash AND new.medium <> other.medium
        AND new.alone IS NOT DISTINCT FROM other.alone AND new.rank IS NOT DISTINCT FROM other.rank
        AND (other.stored_position, other.stored_event) < (new.stored_position, new.stored_event)
        AND (other.ended_position IS NULL OR other.ended_ts = new.stored_ts
            OR (other.ended_position, coalesce(other.ended_event, 0))
                > (new.stored_position, new.stored_event))
    GROUP BY new.engine, new.rank, new.source_id, new.medium, new.group_idx, new.hash, new.stored_position,
        new.stored_event, new.stored_ts
), gone AS (
    SELECT engine, rank, ended_position AS position, ended_event AS event, ended_ts AS ts, group_idx, hash,
        medium
    FROM lives AS old
    WHERE ended_position IS NOT NULL AND NOT EXISTS (
        FROM beside AS other
        WHERE old.engine = other.engine AND old.hash = other.hash
        AND old.alone IS NOT DISTINCT FROM other.alone AND old.rank IS NOT DISTINCT FROM other.rank
        AND ((other.stored_position, other.stored_event) < (old.ended_position, coalesce(old.ended_event, 0))
            OR other.stored_ts = old.ended_ts)
        AND (other.ended_position IS NULL OR (other.ended_position, coalesce(other.ended_event, 0))
            > (old.ended_position, coalesce(old.ended_event, 0))))
)
SELECT engine, rank, position, event, ts, group_idx, hash, from_medium, to_medium FROM came
UNION ALL SELECT engine, rank, position, event, ts, group_idx, hash, medium, NULL FROM gone;
"""

VIOLATIONS: Final = """
CREATE VIEW violations AS
WITH last AS (
    SELECT number, arg_max(witnesses, nth) AS witness, count(*) AS witness_count
    FROM witnesses GROUP BY number
)
SELECT number, rule, id, because, count, coalesce(witness_count, 0) AS witness_count,
    witness.source AS source, witness.topic AS topic, witness.rank AS rank, witness.epoch AS epoch,
    witness.seq AS seq, witness.event AS event, witness.position AS position, next_position, found_ns
FROM violation_rows LEFT JOIN last USING (number);
"""

ADDED: Final = RESETS + COPIES + LIFETIMES + RESIDENCY + REUSE + FLOW + VIOLATIONS
"""What version 2 adds."""
