"""Violations as rows of a log and back: ``violation_rows`` and their ``witnesses``.

Forms only; what a violation is, is ``kvbus/violation``'s matter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

import duckdb
import msgspec
import pyarrow as pa

from kvbus.columns import Tables
from kvbus.verdict import Witness
from kvbus.violation import Violation

VIOLATIONS: Final = pa.schema(
    {
        "number": pa.uint64(),
        "next_position": pa.uint64(),
        "rule": pa.string(),
        "id": pa.string(),
        "because": pa.string(),
        "count": pa.uint64(),
        "found_ns": pa.int64(),
    }
)
WITNESSES: Final = pa.schema(
    {
        "number": pa.uint64(),
        "nth": pa.uint32(),
        "source": pa.string(),
        "topic": pa.string(),
        "rank": pa.int32(),
        "instance": pa.int32(),
        "epoch": pa.int32(),
        "seq": pa.uint64(),
        "event": pa.uint32(),
        "position": pa.uint64(),
    }
)


def tables_of(violations: Sequence[Violation], *, first: int) -> Tables:
    """The rows of ``violations``, numbered from ``first``; nothing for none."""
    if not violations:
        return {}
    numbered = list(enumerate(violations, first))
    rows = [{"number": n, **msgspec.structs.asdict(one)} for n, one in numbered]
    seen = [
        {"number": n, "nth": nth, **msgspec.structs.asdict(witness)}
        for n, one in numbered
        for nth, witness in enumerate(one.witnesses)
    ]
    for row in rows:
        del row["witnesses"]
    return {
        "violation_rows": pa.Table.from_pylist(rows, VIOLATIONS),
        "witnesses": pa.Table.from_pylist(seen, WITNESSES),
    }


def kept(connection: duckdb.DuckDBPyConnection) -> Iterator[Violation]:
    """All violations of the log that a connection has attached, in order. Raises ``duckdb.Error``."""
    columns = ", ".join(Witness.__struct_fields__)
    witnesses = defaultdict(list)
    for number, *row in connection.execute(
        f"SELECT number, {columns} FROM witnesses ORDER BY number, nth"
    ).fetchall():
        witnesses[number].append(Witness(*row))
    for number, rule, rule_id, because, *rest in connection.execute(
        "SELECT number, rule, id, because, count, next_position, found_ns FROM violation_rows ORDER BY number"
    ).fetchall():
        yield Violation(rule, rule_id, because, tuple(witnesses[number]), *rest)
