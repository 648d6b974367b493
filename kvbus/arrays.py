"""Columns of Arrow tables as numpy arrays. A table that is absent (None) is one without rows.

What is null becomes -1 among signed numbers, 0 among unsigned ones, NaN among times. Nothing is named here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


def rows(table: pa.Table | None) -> list[dict[str, Any]]:
    """The rows one by one: of tables that have few."""
    return [] if table is None else list(table.to_pylist())


def signed(table: pa.Table | None, name: str) -> npt.NDArray[np.int64]:
    if table is None:
        return np.zeros(0, np.int64)
    column = table[name].combine_chunks()
    if column.null_count:
        column = pc.fill_null(column.cast(pa.int64(), safe=False), -1)
    found: npt.NDArray[np.int64] = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return found


def unsigned(table: pa.Table | None, name: str) -> npt.NDArray[np.uint64]:
    if table is None:
        return np.zeros(0, np.uint64)
    column = pc.fill_null(table[name].combine_chunks(), 0)
    found: npt.NDArray[np.uint64] = column.to_numpy(zero_copy_only=False).astype(np.uint64, copy=False)
    return found


def times(table: pa.Table | None, name: str) -> npt.NDArray[np.float64]:
    if table is None:
        return np.zeros(0)
    column = pc.fill_null(table[name].combine_chunks(), float("nan"))
    found: npt.NDArray[np.float64] = column.to_numpy(zero_copy_only=False)
    return found


def present(table: pa.Table | None, name: str) -> npt.NDArray[np.bool_]:
    """Where a column is not null."""
    if table is None:
        return np.zeros(0, np.bool_)
    found: npt.NDArray[np.bool_] = table[name].combine_chunks().is_valid().to_numpy(zero_copy_only=False)
    return found


def lists(table: pa.Table | None, name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    """Lists end to end, and where each begins, with one entry more for the end of the last."""
    if table is None:
        return np.zeros(1, np.int64), np.zeros(0, np.uint64)
    column = table[name].combine_chunks()
    offsets = column.offsets.to_numpy().astype(np.int64)
    flat = column.values.to_numpy(zero_copy_only=False)
    return offsets - offsets[0], flat[offsets[0] : offsets[-1]]
