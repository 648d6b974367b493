"""The views of a log: what became of blocks, as SQL, held against the fold and against small histories."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from msgspec.structs import replace

from kvbus.events import Undecodable
from kvbus.log import Entry, EpochBegan, Received, SourceId
from kvbus.residency import Residency
from kvbus.testing import block, history
from sinks.duckdb import DuckDBLog, open_log
from tests.logs import everything, histories, is_live, of_capture, received, stored

DOC = Path(__file__).resolve().parent.parent / "docs" / "log-schema.md"
CAPTURES = ["vllm032_gpu_int", "vllm032_kvmanager_oracle", "vllm032_restart", "sglang0523_radix"]


def entries_of(text: str) -> list[Entry]:
    return [at.entry for at in history(text)]


def ask(entries: Sequence[Entry], *questions: str) -> list[list[tuple[Any, ...]]]:
    """The answers to some SELECTs about a log of ``entries``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.duckdb"
        with DuckDBLog(path, answer_readers=False) as sink:
            sink.write(entries)
        with open_log(path) as reader:
            return [reader.rows(question) for question in questions]


def folded(entries: Iterable[Entry]) -> set[tuple[str, str | None, str, int, int]]:
    """Source, topic, medium, hash and copies of all that is resident, by the fold.

    It passes over what cannot be read, but an epoch is a new one whatever its first batch says.
    """
    residency = Residency()
    for entry in entries:
        if isinstance(entry, Received) and isinstance(entry.batch, Undecodable):
            residency.fold(EpochBegan(entry.source, entry.epoch, "seq", "", 0))
        residency.fold(entry)
    return {
        (source.source, source.topic_text, medium, found, copies)
        for source in residency.sources
        for medium in residency.tallies
        for found, copies in residency.copies(medium, source=source).items()
    }


RESIDENT = """SELECT source, topic, medium, hash, sum(copies)::BIGINT FROM residency JOIN sources
    USING (source_id) GROUP BY source_id, source, topic, medium, hash"""
HELD_NOW = """SELECT source_id, medium, group_idx, hash, stored_position, stored_event FROM lifetimes
    WHERE ended_by IS NULL ORDER BY ALL"""
SINCE = "SELECT source_id, medium, group_idx, hash, stored_position, stored_event FROM residency ORDER BY ALL"


@pytest.mark.parametrize("name", CAPTURES)
def test_residency_counts_as_the_fold_does(captures: Path, name: str) -> None:
    """Of a real engine's stream, restarts and copies included, the view and the fold hold the same blocks."""
    entries = list(of_capture(captures / f"{name}.frames"))
    found, held, since = ask(entries, RESIDENT, HELD_NOW, SINCE)
    assert set(found) == folded(entries)
    assert found
    assert held == since


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(entries=histories())
def test_any_history_counts_as_the_fold_does(entries: list[Entry]) -> None:
    """Whatever is said, epochs that interleave and removals of nothing included, view and fold agree."""
    found, held, since = ask(entries, RESIDENT, HELD_NOW, SINCE)
    assert set(found) == folded(entries)
    assert held == since


def test_every_view_can_be_asked_of_anything() -> None:
    """A log with one of everything, and one with nothing, answers every view."""
    views = ["resets", "copies", "lifetimes", "residency", "reuse_distance", "tier_flow", "violations"]
    for entries in ([], everything()):
        ask(entries, *(f"SELECT * FROM {view}" for view in views))


def lives(text: str) -> list[tuple[Any, ...]]:
    question = """SELECT hash, medium, stored_position, ended_position, ended_by, reason
        FROM lifetimes ORDER BY stored_position, stored_event, hash"""
    return ask(entries_of(text), question)[0]


def test_a_life_ends_with_the_last_copy() -> None:
    """Of two copies the first removal ends nothing; stored again, a block has another life."""
    a = block("a")
    assert lives("g:+a | g:+a | g:-a | g:-a | g:+a") == [
        (a, "GPU", 0, 3, "removal", None),
        (a, "GPU", 4, None, None, None),
    ]


def test_a_life_ends_with_a_clear_or_a_restart() -> None:
    """A clear ends lives in the GPU and nowhere else, a restart all of its source."""
    a = block("a")
    assert lives("g:+a c:+a | clear | g:+a | restart g:+a") == [
        (a, "GPU", 0, 1, "clear", None),
        (a, "CPU", 0, 3, "epoch", None),
        (a, "GPU", 2, 3, "epoch", None),
        (a, "GPU", 3, None, None, None),
    ]


def test_a_removal_of_nothing_ends_no_life() -> None:
    """What was never stored and is removed has no life, and takes nothing from the next store."""
    assert lives("c:-a | c:+a") == [(block("a"), "CPU", 1, None, None, None)]


def test_reuse_is_measured_in_other_blocks() -> None:
    """Between two stores of a lie b twice and c: two distinct blocks would have had to fit beside it."""
    question = (
        "SELECT hash, position, previous_position, distance, was_resident FROM reuse_distance ORDER BY ALL"
    )
    (found,) = ask(entries_of("c:+a | c:+b g:+x | c:-b | c:+b,c | c:-a | c:+a"), question)
    assert sorted(found, key=lambda row: row[1]) == [
        (block("b"), 3, 1, 0, False),
        (block("a"), 5, 0, 2, False),
    ]


def flows(text: str) -> list[tuple[Any, ...]]:
    question = """SELECT position, hash, from_medium, to_medium FROM tier_flow
        ORDER BY position, event, to_medium NULLS FIRST"""
    return ask(entries_of(text), question)[0]


def test_blocks_flow_from_tier_to_tier() -> None:
    """Computed, offloaded, evicted from above, loaded again, dropped at last: each step is a row."""
    a = block("a")
    assert flows("g:+a | c:+a | g:-a | g:+a | g:-a | c:-a") == [
        (0, a, None, "GPU"),
        (1, a, "GPU", "CPU"),
        (3, a, "CPU", "GPU"),
        (5, a, "CPU", None),
    ]


def test_a_tier_that_lets_go_in_the_same_drain_still_gave() -> None:
    """The removal stands before the store where tiers speak in order; the block came from there all the
    same, and was never gone.
    """
    a = block("a")
    assert flows("c:+a | c:-a s:+a")[1:] == [(1, a, "CPU", "STORAGE")]


def test_sources_of_one_engine_flow_into_each_other_and_no_others() -> None:
    """``e/cpu`` and ``e/fs`` are one engine; two engines with the same blocks are not."""

    def one(name: str, medium: str) -> Entry:
        return received(SourceId(name), 0, stored(7, medium=medium))

    question = "SELECT engine, from_medium, to_medium FROM tier_flow ORDER BY ALL"
    (found,) = ask([one("e/cpu", "CPU"), one("e/fs", "FS"), one("f/fs", "FS")], question)
    assert found == [("e", "CPU", "FS"), ("e", None, "CPU"), ("f", None, "FS")]
    (apart,) = ask([one("tcp://h:1", "CPU"), one("tcp://h:2", "FS")], question)
    assert [row[1] for row in apart] == [None, None]


# -- the version before ----------------------------------------------------------------------------------


def aged(path: Path) -> None:
    """Turn a log into one of version 1."""
    with duckdb.connect(str(path)) as connection:
        for view in (
            "violations",
            "tier_flow",
            "reuse_distance",
            "residency",
            "lifetimes",
            "copies",
            "resets",
        ):
            connection.execute(f"DROP VIEW {view}")
        connection.execute("DROP TABLE witnesses; DROP TABLE violation_rows; DROP TABLE capacities")
        connection.execute("UPDATE meta SET value = '1' WHERE key = 'schema_version'")


def without_capacities(entries: Iterable[Entry]) -> list[Entry]:
    """The same, as version 1 could keep it."""
    return [replace(e, capacity={}) if isinstance(e, EpochBegan) else e for e in entries]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "old.duckdb"
    with DuckDBLog(path) as sink:
        sink.write(everything())
    aged(path)
    return path


def test_a_log_of_version_1_is_read_as_it_is(old: Path) -> None:
    """Its views answer as those of a new log do, it has no violations, and not a byte of it changes."""
    before = old.read_bytes()
    with open_log(old) as reader:
        assert reader.rows("SELECT count(*) FROM lifetimes") == [(6,)]
        assert reader.rows("SELECT count(*), max(next_position) FROM violations") == [(0, None)]
        assert [at.entry for at in reader.entries()] == without_capacities(everything())
    assert old.read_bytes() == before


def test_a_log_of_version_1_is_brought_up_to_date_when_written(old: Path) -> None:
    """A recorder that goes on with it makes it a log like any other, with all that was in it."""
    with DuckDBLog(old) as sink:
        assert sink.batch_count == 8
        with open_log(old) as reader:
            assert is_live(reader)
            assert reader.rows("SELECT count(*) FROM lifetimes") == [(6,)]
    with duckdb.connect(str(old), read_only=True) as connection:
        (version,) = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchall()
        assert version == ("2",)
        assert connection.execute("SELECT count(*) FROM residency").fetchall() == [(3,)]
    with open_log(old) as reader:
        assert [at.entry for at in reader.entries()] == without_capacities(everything())


# -- the documentation -----------------------------------------------------------------------------------


def test_the_documented_questions_about_blocks_have_answers(captures: Path) -> None:
    """Each example of docs/log-schema.md on these views runs on a real stream and says something."""
    text = DOC.read_text().partition("## What became of blocks")[2].partition("## `meta`")[0]
    questions = [q for block in re.findall(r"```sql\n(.*?)```", text, re.DOTALL) for q in block.split(";")]
    questions = [question for question in questions if question.strip()]
    assert len(questions) >= 6
    entries = list(of_capture(captures / "vllm032_kvmanager_oracle.frames"))
    for question, answer in zip(questions, ask(entries, *questions), strict=True):
        assert answer or "violations" in question, question
