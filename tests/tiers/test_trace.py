"""Traces: what is read from files of each shape, and what a bad one says."""

from __future__ import annotations

import gzip
import json
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiers.errors import TierValueError
from tiers.serving.trace import BAILIAN, MOONCAKE, Request, format_of, read_trace, tokens_of

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"

MOONCAKE_LINES = (
    '{"timestamp": 0, "input_length": 900, "output_length": 3, "hash_ids": [0, 1]}\n'
    '{"timestamp": 27482, "input_length": 1200, "output_length": 50, "hash_ids": [0, 1, 2]}\n'
)
BAILIAN_LINE = (
    '{"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 21, "output_length": 132,'
    ' "type": "text", "turn": 2, "hash_ids": [1089, 13148]}\n'
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


def test_mooncake(trace: Path) -> None:
    """A Mooncake trace counts time in milliseconds."""
    trace.write_text(MOONCAKE_LINES)
    assert list(read_trace(trace)) == [Request(0.0, (0, 1), 900, 3), Request(27.482, (0, 1, 2), 1200, 50)]
    assert format_of(trace) == MOONCAKE
    assert MOONCAKE.block_size == 512


def test_bailian(trace: Path) -> None:
    """A Bailian trace, told by its chat ids, counts time in seconds; other keys are passed over."""
    trace.write_text(BAILIAN_LINE)
    assert list(read_trace(trace)) == [Request(61.114, (1089, 13148), 21, 132)]
    assert format_of(trace) == BAILIAN
    assert BAILIAN.block_size == 16


def test_the_first_line_decides(trace: Path) -> None:
    """One format holds for a whole trace, that of its first line."""
    trace.write_text(MOONCAKE_LINES + BAILIAN_LINE)
    assert [request.timestamp_s for request in read_trace(trace)] == [0.0, 27.482, 61.114 / 1000]
    trace.write_text(BAILIAN_LINE + MOONCAKE_LINES)
    assert [request.timestamp_s for request in read_trace(trace)] == [61.114, 0.0, 27482.0]


def test_packed(tmp_path: Path) -> None:
    """A trace whose name ends in .gz is unpacked as it is read."""
    packed = tmp_path / "trace.jsonl.gz"
    packed.write_bytes(gzip.compress(MOONCAKE_LINES.encode()))
    assert len(list(read_trace(str(packed)))) == 2
    packed.write_bytes(packed.read_bytes()[:-12])
    with pytest.raises(TierValueError, match="cannot be read"):
        list(read_trace(packed))
    packed.write_text(MOONCAKE_LINES)
    with pytest.raises(TierValueError, match="only if its name ends in"):
        list(read_trace(packed))


def test_a_limit(trace: Path) -> None:
    """No more requests than asked for are read: what is wrong behind them is not met."""
    trace.write_text(MOONCAKE_LINES + "torn")
    assert [len(list(read_trace(trace, limit=limit))) for limit in (0, 1, 2)] == [0, 1, 2]
    with pytest.raises(TierValueError, match="-1 requests"):
        read_trace(trace, limit=-1)


def test_no_limit_is_too_large(trace: Path) -> None:
    """More than a counter of the machine holds is as good as none."""
    trace.write_text(MOONCAKE_LINES)
    assert list(read_trace(trace, limit=10**23)) == list(read_trace(trace))


def test_a_line_nested_without_end_is_no_request(trace: Path) -> None:
    """Deeper than can be followed is a fault of the line, with its number."""
    trace.write_text('{"timestamp": 0, "hash_ids": ' + "[" * 100_000)
    with pytest.raises(TierValueError, match="line 1 is no request"):
        list(read_trace(trace))


def test_blank_lines_are_no_requests(trace: Path) -> None:
    """Blank lines are passed over, and counted as lines."""
    trace.write_text("\n" + MOONCAKE_LINES.replace("\n", "\n \r\n") + "torn")
    requests = read_trace(trace)
    assert len(list(islice(requests, 2))) == 2
    with pytest.raises(TierValueError, match="line 6 "):
        next(requests)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"timestamp": 0, "input_length": 1, "output_length": 1}', "hash_ids"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [-1]}', r"\$.hash_ids"),
        (
            '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [9223372036854775808]}',
            "hash_ids",
        ),
        ('{"timestamp": "0", "input_length": 1, "output_length": 1, "hash_ids": []}', r"\$.timestamp"),
        ('{"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": []}', r"\$.timestamp"),
        ('{"timestamp": 1e300, "input_length": 1, "output_length": 1, "hash_ids": []}', r"\$.timestamp"),
        ('{"timestamp": 0, "input_length": 1.5, "output_length": 1, "hash_ids": []}', r"\$.input_length"),
        ("[]", "object"),
        ('{"timestamp": 0, "input_len', "truncated"),
        ("\udcff", "no request"),
        ("", "holds no request"),
    ],
)
def test_a_bad_line(trace: Path, line: str, why: str) -> None:
    """A line that is no request says which line of which file it is, what is wrong, and what was expected."""
    trace.write_text(line, errors="surrogateescape")
    with pytest.raises(TierValueError, match=why) as caught:
        list(read_trace(trace))
    assert str(trace) in str(caught.value)
    assert "line" in str(caught.value)
    with pytest.raises(TierValueError):
        format_of(trace)


def test_a_line_without_end(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line longer than the limit is refused without being read whole."""
    monkeypatch.setattr("tiers.serving.trace.MAX_LINE_BYTES", 1 << 20)
    trace.write_text(MOONCAKE_LINES + " " * (3 << 20))
    with pytest.raises(TierValueError, match="line 3 is no request: longer than 1 MiB"):
        list(read_trace(trace))


def test_no_file(tmp_path: Path) -> None:
    """A file that is not there, and one that is a folder, are named."""
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(TierValueError, match=f"the trace {path} cannot be read"):
            next(read_trace(path))


@pytest.mark.parametrize(
    ("name", "requests", "references", "distinct"),
    [("mooncake_conversation", 12_031, 288_500, 182_790), ("mooncake_synthetic", 3_993, 121_877, 43_924)],
)
def test_the_published_traces(name: str, requests: int, references: int, distinct: int) -> None:
    """Mooncake's traces have the numbers published of them, and an id has one id before it, always."""
    path = TRACES / f"{name}.jsonl"
    if not path.exists():
        pytest.skip("the traces are not laid beside this checkout")
    read = list(read_trace(path))
    before: dict[int, int] = {}
    for request in read:
        for parent, block_id in zip((-1, *request.block_ids), request.block_ids, strict=False):
            assert before.setdefault(block_id, parent) == parent
    assert (len(read), sum(len(r.block_ids) for r in read), len(before)) == (requests, references, distinct)
    assert all(0 <= len(r.block_ids) * 512 - r.input_length < 512 for r in read)
    assert read == [by_another_reader(line) for line in path.read_text().splitlines()]


def by_another_reader(line: str) -> Request:
    keys = json.loads(line)
    return Request(
        keys["timestamp"] / 1000, tuple(keys["hash_ids"]), keys["input_length"], keys["output_length"]
    )


@given(st.integers(0, (1 << 64) - 1), st.integers(0, 600), st.integers(0, 600))
def test_tokens_are_made_of_the_id_alone(block_id: int, size: int, longer: int) -> None:
    """Tokens lie in the vocabulary, are the same each time, and a longer block begins with a shorter one."""
    ids = tokens_of(block_id, size)
    assert len(ids) == size
    assert all(type(token) is int and 0 <= token < 32_000 for token in ids)
    assert tokens_of(block_id, size + longer)[:size] == ids


def test_ids_do_not_share_tokens() -> None:
    """No two of 20 000 blocks of 16 tokens have the same ones, and their tokens are as good as random."""
    made = [tuple(tokens_of(block_id, 16)) for block_id in range(20_000)]
    assert len(set(made)) == len(made)
    mean = sum(map(sum, made)) / (16 * len(made))
    assert mean == pytest.approx(15_999.5, rel=0.01)
    assert tokens_of(0, 4) == [12922, 19674, 8899, 18429]  # on every machine
