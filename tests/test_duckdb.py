"""The DuckDB log: its schema, what a crash leaves, who may open it, and reading it while it is written."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import duckdb
import pytest

from kvbus.errors import KvbusError, LogError, LogLockedError, LogVersionError
from kvbus.events import EventBatch, canonical_medium
from kvbus.log import Entry, Received
from sinks.answers import SESSIONS_MAX, Answers
from sinks.duckdb import DuckDBLog, DuckDBReader, open_log
from sinks.session import Session, address
from tests.logs import A, everything, is_live, numbered, of_capture, received, removed, stored

ROOT = Path(__file__).resolve().parent.parent
DOC = ROOT / "docs" / "log-schema.md"

WRITER = """
import sys, time
from pathlib import Path
from sinks.duckdb import DuckDBLog
from tests.logs import of_capture
entries = list(of_capture(Path(sys.argv[2])))
with DuckDBLog(sys.argv[1], flush_batches=int(sys.argv[3]), flush_s=0.005, wal_limit=sys.argv[4]) as log:
    start = log.batch_count
    print("ready", flush=True)
    for at in range(start, len(entries), 3):
        log.write(entries[at : at + 3])
        time.sleep(float(sys.argv[5]))
    log.flush()
    print("done", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def writing(
    path: Path, capture: Path, *, pause_s: float = 0.0, wal: str = "64MB"
) -> Iterator[subprocess.Popen[str]]:
    """A process that records ``capture`` into ``path``, resuming; it holds the log until its stdin closes."""
    command = [sys.executable, "-c", WRITER, str(path), str(capture), "64", wal, str(pause_s)]
    with subprocess.Popen(command, cwd=ROOT, stdin=-1, stdout=-1, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait(10)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def run(code: str, *arguments: object, **extra: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False, **extra)  # type: ignore[call-overload, no-any-return]


def payloads(reader: DuckDBReader) -> list[bytes]:
    return [found.entry.payload for found in reader.entries() if isinstance(found.entry, Received)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A closed log with one of everything in it."""
    path = tmp_path / "log.duckdb"
    with DuckDBLog(path) as sink:
        sink.write(everything())
    return path


# -- the schema ------------------------------------------------------------------------------------------


def documented() -> dict[str, dict[str, str]]:
    tables: dict[str, dict[str, str]] = {}
    name = ""
    for line in DOC.read_text().splitlines():
        if heading := re.fullmatch(r"###? `(\w+)`", line):
            name = heading[1]
        elif (row := re.match(r"\| `(\w+)` \| ([A-Z\[\]]+) \| .+\|", line)) and name:
            tables.setdefault(name, {})[row[1]] = row[2]
    return tables


def test_the_schema_is_as_documented(log: Path) -> None:
    """Every table, view, column and type of a log is in docs/log-schema.md, and nothing else is."""
    with duckdb.connect(str(log), read_only=True) as connection:
        found: dict[str, dict[str, str]] = {}
        for table, column, kind in connection.execute(
            """SELECT table_name, column_name, data_type FROM information_schema.columns
            ORDER BY ordinal_position"""
        ).fetchall():
            found.setdefault(table, {})[column] = kind
    wanted = documented()
    without_hashes = {name: kind for name, kind in wanted["events"].items() if name != "hashes"}
    wanted["blocks"] = without_hashes | wanted["blocks"]
    assert found == wanted


def test_any_duckdb_reads_it_by_its_documentation(log: Path) -> None:
    """The queries in docs/log-schema.md run as they stand on a plain DuckDB connection."""
    blocks = re.findall(r"```sql\n(.*?)```", DOC.read_text(), re.DOTALL)
    with duckdb.connect(str(log), read_only=True) as connection:
        statements = [statement for block in blocks for statement in block.split(";") if statement.strip()]
        assert len(statements) == 11
        for statement in statements:
            connection.execute(statement).fetchall()
        assert connection.execute(
            "SELECT kind, medium, count(*) FROM events GROUP BY ALL ORDER BY ALL"
        ).fetchall()


def test_events_by_kind_and_medium_equal_a_count(captures: Path, tmp_path: Path) -> None:
    """The ``events`` and ``blocks`` views count a real stream as a loop over its events does."""
    entries = list(of_capture(captures / "vllm032_gpu_int.frames"))
    with DuckDBLog(tmp_path / "log.duckdb") as sink:
        sink.write(entries)
    events: dict[tuple[str, str | None], int] = {}
    blocks: dict[tuple[str, str | None], int] = {}
    for entry in entries:
        assert isinstance(entry.batch, EventBatch)
        for event in entry.batch.events:
            medium = canonical_medium(event.medium) if hasattr(event, "medium") else None
            key = (type(event).__name__, medium)
            events[key] = events.get(key, 0) + 1
            hashes = getattr(event, "block_hashes", [])
            if hashes:
                blocks[key] = blocks.get(key, 0) + len(hashes)
    with open_log(tmp_path / "log.duckdb") as reader:
        for view, wanted in (("events", events), ("blocks", blocks)):
            rows = reader.rows(f"SELECT kind, medium, count(*) FROM {view} GROUP BY ALL")
            assert {(kind, medium): count for kind, medium, count in rows} == wanted


def test_blocks_know_their_parents_where_the_chain_is_known(tmp_path: Path) -> None:
    """In a dense store each block's parent is the one before; where blocks may be skipped it is null."""
    placeholder = stored(4, 5)
    placeholder = type(placeholder)([4, 5], 3, block_size=0)
    with DuckDBLog(tmp_path / "log.duckdb") as sink:
        sink.write([received(A, 0, stored(1, 2, 3, parent=9), placeholder, removed(1, 2))])
    with open_log(tmp_path / "log.duckdb") as reader:
        rows = reader.rows("SELECT event, block, hash, parent_hash FROM blocks ORDER BY event, block")
    assert rows == [
        (0, 0, 1, 9),
        (0, 1, 2, 1),
        (0, 2, 3, 2),
        (1, 0, 4, 3),
        (1, 1, 5, None),
        (2, 0, 1, None),
        (2, 1, 2, None),
    ]


# -- what is not a log -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0", "3", "banana"])
def test_other_versions_are_refused(log: Path, version: str) -> None:
    """An older, newer or nonsensical schema version is refused for reading and writing, and left as it is."""
    with duckdb.connect(str(log)) as connection:
        connection.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", [version])
    before = log.read_bytes()
    with pytest.raises(LogVersionError, match=f"schema {version}"):
        open_log(log)
    with pytest.raises(LogVersionError):
        DuckDBLog(log)
    assert log.read_bytes() == before


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    """An empty file, a text, a folder, another's database and nothing at all are refused in plain words."""
    empty, text, other = tmp_path / "empty", tmp_path / "text", tmp_path / "other.duckdb"
    empty.touch()
    text.write_text("position,seq\n" * 5000)
    with duckdb.connect(str(other)) as connection:
        connection.execute("CREATE TABLE meta (a INTEGER)")
    for path, words in (
        (empty, "empty"),
        (text, "not a DuckDB file"),
        (tmp_path, "folder"),
        (other, "not a kvbus log"),
        (tmp_path / "none", "no log at"),
        (tmp_path / "no" / "folder", "no log at"),
    ):
        with pytest.raises(LogError, match=words) as reading:
            open_log(path)
        assert not isinstance(reading.value, LogLockedError)
        if words != "no log at":
            with pytest.raises(LogError):
                DuckDBLog(path, lock_wait_s=0)
    with pytest.raises(LogError, match=r'cannot be opened: IO Error: Cannot open file ".*/no/folder"'):
        DuckDBLog(tmp_path / "no" / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "other.duckdb", "text"]


# -- a crash ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_killed_at_any_moment_it_resumes(tmp_path: Path, captures: Path, seed: int) -> None:
    """Killed again and again while it writes, the log is a clean prefix each time and whole in the end."""
    path, capture = tmp_path / "log.duckdb", captures / "vllm032_gpu_int.frames"
    entries = list(of_capture(capture))
    rng = random.Random(seed)
    for _ in range(4):
        with writing(path, capture, pause_s=0.001, wal=rng.choice(["64KB", "64MB"])) as process:
            assert said(process) == "ready"
            time.sleep(rng.uniform(0, 0.4))
            process.send_signal(signal.SIGKILL)
            process.wait(10)
        with open_log(path) as reader:
            found = payloads(reader)
            assert reader.batch_count() == len(found)
            counts = reader.rows(
                "SELECT (SELECT count(*) FROM events), (SELECT sum(event_count) FROM batches)"
            )
        assert found == [entry.payload for entry in entries[: len(found)]]
        assert counts[0][0] == (counts[0][1] or 0)
    with writing(path, capture) as process:
        assert (said(process), said(process)) == ("ready", "done")
        process.communicate("\n", timeout=30)
        assert process.returncode == 0
    with open_log(path) as reader:
        assert [found.entry for found in reader.entries()] == entries


def test_a_killed_recorders_socket_disturbs_nobody(tmp_path: Path, captures: Path) -> None:
    """After SIGKILL its socket file is still there; readers and the next recorder go on regardless."""
    path, capture = tmp_path / "log.duckdb", captures / "vllm032_gpu_int.frames"
    with writing(path, capture) as process:
        assert (said(process), said(process)) == ("ready", "done")
        process.kill()
        process.wait(10)
    assert address(path).exists()
    with open_log(path) as reader:
        assert not is_live(reader)
        count = reader.batch_count()
    with DuckDBLog(path) as log, open_log(path) as reader:
        assert is_live(reader)
        assert reader.batch_count() == count == log.batch_count
    assert not address(path).exists()


FULL = """
import msgspec, resource, sys
from pathlib import Path
from kvbus.errors import LogError
from sinks.duckdb import DuckDBLog
from tests.logs import of_capture
entries = list(of_capture(Path(sys.argv[2])))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
log = DuckDBLog(sys.argv[1], flush_batches=16, flush_s=0.001)
durable = 0
try:
    for turn in range(100):
        again = [msgspec.structs.replace(entry, epoch=turn) for entry in entries]
        for at in range(0, len(again), 16):
            log.write(again[at : at + 16])
            log.flush()
            durable = log.batch_count
except LogError as error:
    print(durable, error.problem, sep="|", flush=True)
for _ in range(2):
    try:
        log.flush()
        print("flushed")
    except LogError:
        print("still")
try:
    log.close()
except LogError:
    print("closed")
log.close()
"""


def test_a_full_disk_loses_nothing_committed(tmp_path: Path, captures: Path) -> None:
    """When the file cannot grow, write, flush and close say so, and all that was flushed before is there."""
    path = tmp_path / "log.duckdb"
    done = run(FULL, path, captures / "vllm032_gpu_int.frames", 3 << 20)
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    durable, problem = first.split("|")
    assert "could not be written" in problem
    assert rest == ["still", "still", "closed"]
    with open_log(path) as reader:
        assert reader.batch_count() >= int(durable) > 0
        assert len(payloads(reader)) == reader.batch_count()
    with DuckDBLog(path) as log:
        assert log.batch_count >= int(durable)


# -- who may open it -------------------------------------------------------------------------------------


def test_two_recorders_exclude_each_other(tmp_path: Path, captures: Path) -> None:
    """The second recorder of a log is told at once that another process records it."""
    path = tmp_path / "log.duckdb"
    with writing(path, captures / "vllm032_gpu_int.frames") as process:
        assert said(process) == "ready"
        began = time.monotonic()
        with pytest.raises(LogLockedError, match="being recorded by another process"):
            DuckDBLog(path, lock_wait_s=30)
        assert time.monotonic() - began < 20


def test_a_recorder_with_too_many_readers_is_one_still(tmp_path: Path, captures: Path) -> None:
    """A second recorder is told of the first one also while that takes no more readers."""
    path = tmp_path / "log.duckdb"
    with writing(path, captures / "vllm032_gpu_int.frames") as process, ExitStack() as readers:
        assert said(process) == "ready"
        for _ in range(SESSIONS_MAX):
            readers.enter_context(closing(Session(path)))
        with pytest.raises(LogLockedError, match="being recorded by another process"):
            DuckDBLog(path, lock_wait_s=0)


def test_a_wrong_question_is_answered_alike_by_file_and_recorder(tmp_path: Path) -> None:
    """What DuckDB says of it, in one line, without the drawing of the place."""
    path, problems = tmp_path / "log.duckdb", []
    with DuckDBLog(path), open_log(path) as live:
        with pytest.raises(LogError) as said_live:
            live.rows("SELECT poistion FROM batches")
        problems.append(said_live.value.problem.removeprefix(f"{path}: "))
    with open_log(path) as direct, pytest.raises(LogError) as said_direct:
        direct.rows("SELECT poistion FROM batches")
    assert [*problems, said_direct.value.problem] == [said_direct.value.problem] * 2
    assert "\n" not in said_direct.value.problem


HOLDER = """
import sys, duckdb
connection = duckdb.connect(sys.argv[1], read_only=sys.argv[2] == "reading")
print("ready", flush=True)
sys.stdin.readline()
"""


def test_a_recorder_waits_for_a_reader(log: Path) -> None:
    """While another process has the file open for reading, a recorder waits, and starts when it is let go."""
    command = [sys.executable, "-c", HOLDER, str(log), "reading"]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        assert said(process) == "ready"
        with pytest.raises(LogLockedError, match=f"process {process.pid}"):
            DuckDBLog(log, lock_wait_s=0.3)
        release = threading.Timer(0.5, process.communicate, ["\n"])
        release.start()
        with DuckDBLog(log, lock_wait_s=30) as sink:
            assert sink.batch_count == 8
        release.join()


def test_a_holder_that_does_not_answer_is_named(log: Path) -> None:
    """A log that somebody else's program holds for writing is refused with that process's number."""
    command = [sys.executable, "-c", HOLDER, str(log), "writing"]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        try:
            assert said(process) == "ready"
            with pytest.raises(LogLockedError, match=f"process {process.pid}"):
                open_log(log, lock_wait_s=0.2)
        finally:
            process.communicate("\n", timeout=30)


UNPRIVILEGED = """
import os, sys, duckdb, pyarrow, pyarrow.ipc, numpy, stat
from kvbus.errors import KvbusError
from sinks.duckdb import DuckDBLog, open_log
try:
    if os.getuid() == 0:
        os.setgid(65534), os.setuid(65534)
    if sys.argv[2] == "read":
        with open_log(sys.argv[1]) as reader:
            print(reader.batch_count(), len(list(reader.entries())))
    else:
        DuckDBLog(sys.argv[1], lock_wait_s=0).close()
except KvbusError as error:
    print(type(error).__name__, error.problem)
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that an unprivileged user can reach (pytest's own are private)."""
    folder = Path(f"/tmp/kvbus-test-{os.getpid()}-{random.randrange(1 << 32):x}")
    folder.mkdir(mode=0o755)
    yield folder
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def test_a_log_in_a_read_only_folder_is_read(open_folder: Path, captures: Path) -> None:
    """A log left by a killed recorder in a folder nobody may write is read, its write-ahead log included."""
    path = open_folder / "log.duckdb"
    with writing(path, captures / "vllm032_gpu_int.frames") as process:
        assert (said(process), said(process)) == ("ready", "done")
        process.kill()
        process.wait(10)
    for left in open_folder.iterdir():
        left.chmod(0o444)
    open_folder.chmod(0o555)
    with open_log(path) as reader:
        count = reader.batch_count()
    assert run(UNPRIVILEGED, path, "read").stdout.split() == [str(count), str(count)]
    refused = run(UNPRIVILEGED, path, "write").stdout
    assert refused.startswith("LogError"), refused


def test_a_log_that_may_not_be_read_says_so(open_folder: Path) -> None:
    """Another user's log is refused with a word about permissions, not as locked."""
    path = open_folder / "log.duckdb"
    DuckDBLog(path).close()
    path.chmod(0)
    if os.getuid() == 0:
        assert "may not be read" in run(UNPRIVILEGED, path, "read").stdout
    else:
        with pytest.raises(LogError, match="may not be read"):
            open_log(path)


def test_all_files_are_private(tmp_path: Path) -> None:
    """Under any umask the log, its write-ahead log and its socket are for their owner alone."""
    before = os.umask(0)
    try:
        with DuckDBLog(tmp_path / "log.duckdb", flush_batches=1, wal_limit="1KB") as sink:
            for seq in range(30):
                sink.write([received(A, seq, stored(seq))])
                sink.flush()
                for path in tmp_path.iterdir():
                    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
        assert os.umask(0) == 0
    finally:
        os.umask(before)


# -- reading while it is written -------------------------------------------------------------------------


def test_readers_of_a_log_that_grows_see_one_state_each(tmp_path: Path, captures: Path) -> None:
    """Readers in other processes see a prefix that does not change under them, later ones a longer one."""
    path, capture = tmp_path / "log.duckdb", captures / "vllm032_gpu_int.frames"
    entries = list(of_capture(capture))
    counts = []
    with writing(path, capture, pause_s=0.003, wal="64KB") as process:
        assert said(process) == "ready"
        readers = []
        for _ in range(5):
            reader = open_log(path)
            assert is_live(reader)
            readers.append(reader)
            counts.append(reader.batch_count())
            time.sleep(0.05)
        assert said(process) == "done"
        for reader, count in zip(readers, counts, strict=True):
            assert reader.rows("SELECT count(*) FROM batches") == [(count,)]
            assert payloads(reader) == [entry.payload for entry in entries[:count]]
            assert reader.rows("SELECT count(*) FROM events")[0][0] == sum(
                len(entry.batch.events) for entry in entries[:count] if isinstance(entry.batch, EventBatch)
            )
        with open_log(path) as last:
            assert last.batch_count() == len(entries)
        process.communicate("\n", timeout=30)
        assert process.returncode == 0
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]
    with pytest.raises(LogError, match="went away"):
        readers[0].rows("SELECT 1")
    for reader in readers:
        reader.close()


def test_only_selects_pass(tmp_path: Path) -> None:
    """Nothing but a single SELECT is taken, through the socket as from the file; the log stays as it is."""
    path = tmp_path / "log.duckdb"
    bad = [
        "DELETE FROM batches",
        "INSERT INTO meta VALUES ('a', 'b')",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP TABLE batches",
        "ATTACH '/tmp/x.duckdb'",
        "COPY batches TO '/tmp/x.csv'",
        "SET threads = 1",
        "CHECKPOINT",
        "ROLLBACK",
        "CREATE TEMP TABLE t (i INTEGER)",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM glob('/*')",
        "SELECT nothing FROM batches",
        "SELEC",
        "",
    ]
    with DuckDBLog(path) as sink:
        sink.write(everything())
        sink.flush()
        with open_log(path) as live:
            assert is_live(live)
            for sql in bad:
                with pytest.raises(LogError):
                    live.rows(sql)
            assert live.rows("SELECT count(*) FROM batches WHERE seq = ?", [4]) == [(1,)]
    with open_log(path) as direct:
        assert not is_live(direct)
        for sql in bad:
            with pytest.raises(LogError):
                direct.rows(sql)
        assert direct.rows("WITH a AS (SELECT 1 AS x) SELECT x + ? FROM a", [2]) == [(3,)]
        assert [found.entry for found in direct.entries()] == everything()


def test_a_reader_that_dies_leaves_nothing(tmp_path: Path) -> None:
    """Readers that vanish in the middle of an answer free their session, and the recorder does not notice."""
    path = tmp_path / "log.duckdb"
    with DuckDBLog(path, flush_s=0.01) as sink:
        answers = sink._answers
        assert isinstance(answers, Answers)
        sink.write([received(A, seq, *[stored(*range(50))] * 20) for seq in range(500)])
        sink.flush()
        for _ in range(40):
            session = Session(path)
            next(session.query("SELECT * FROM events, range(1000)"))
            session.close()
        sink.write([received(A, 500 + seq, stored(seq)) for seq in range(100)])
        sink.flush()
        deadline = time.monotonic() + 20
        while answers.sessions and time.monotonic() < deadline:
            time.sleep(0.01)
        assert answers.sessions == 0
        with open_log(path) as reader:
            assert reader.batch_count() == 600


def test_sessions_are_bounded(tmp_path: Path) -> None:
    """One reader too many is refused in words; when one leaves, there is room."""
    path = tmp_path / "log.duckdb"
    with DuckDBLog(path, answer_readers=False) as sink:
        answers = Answers(sink._connection, path, sessions_max=2)
        try:
            first, second = Session(path), Session(path)
            with pytest.raises(LogError, match="2 readers have this log open"):
                Session(path)
            first.close()
            deadline = time.monotonic() + 10
            while answers.sessions == 2 and time.monotonic() < deadline:
                time.sleep(0.01)
            Session(path).close()
            second.close()
        finally:
            answers.close()


def test_idle_sessions_end(tmp_path: Path) -> None:
    """A session that asks nothing for too long is ended, and its reader is told when it asks."""
    path = tmp_path / "log.duckdb"
    with DuckDBLog(path, answer_readers=False) as sink:
        answers = Answers(sink._connection, path, idle_s=0.1)
        try:
            session = Session(path)
            deadline = time.monotonic() + 10
            while answers.sessions and time.monotonic() < deadline:
                time.sleep(0.01)
            with pytest.raises(LogError, match="went away"):
                list(session.query("SELECT 1"))
            session.close()
        finally:
            answers.close()


def test_closing_ends_sessions_in_the_middle_of_an_answer(tmp_path: Path) -> None:
    """The recorder closes although readers are in the middle of something, and lets go of the file."""
    path = tmp_path / "log.duckdb"
    sink = DuckDBLog(path)
    sink.write(everything())
    sink.flush()
    reading, idle, busy = Session(path), Session(path), Session(path)
    rows = reading.query("SELECT repeat('x', 1000) FROM range(10000000)")
    next(rows)
    told: list[LogError] = []

    def ask() -> None:
        try:
            list(busy.query("SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000) b"))
        except LogError as error:
            told.append(error)

    waiting = threading.Thread(target=ask)
    waiting.start()
    time.sleep(0.2)
    began = time.monotonic()
    sink.close()
    assert time.monotonic() - began < 30
    with pytest.raises(LogError):
        list(rows)
    waiting.join(30)
    assert not waiting.is_alive()
    assert len(told) == 1
    for session in (reading, idle, busy):
        session.close()
    with open_log(path) as reader:
        assert not is_live(reader)


def test_a_later_query_ends_an_earlier_one(tmp_path: Path) -> None:
    """Two queries of one live reader do not mix: the later one gets its rows, the earlier one says it was
    ended.
    """
    path = tmp_path / "log.duckdb"
    with DuckDBLog(path) as sink:
        sink.write([received(A, seq, removed(seq)) for seq in range(6000)])
        sink.flush()
        with open_log(path) as reader:
            early = reader.query("SELECT position, payload FROM batches ORDER BY position")
            assert next(early).num_rows > 0
            assert reader.rows("SELECT count(*) FROM batches") == [(6000,)]
            with pytest.raises(LogError, match="ended by a later one"):
                next(early)
            assert len(list(reader.entries())) == 6000


def test_a_path_too_long_for_a_socket_has_another(tmp_path: Path) -> None:
    """Where the system's limit on socket addresses is passed, both sides meet in a private folder."""
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    path = folder / "log.duckdb"
    with DuckDBLog(path) as sink:
        where = address(path)
        assert where.parent != folder
        assert stat.S_IMODE(where.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(where.stat().st_mode) == 0o600
        sink.write(everything())
        sink.flush()
        with open_log(path) as reader:
            assert is_live(reader)
            assert [(found.position, found.entry) for found in reader.entries()] == numbered(everything())
    assert not where.exists()


def test_a_log_is_found_by_any_of_its_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path or a symbolic link leads to the same recorder."""
    path = tmp_path / "log.duckdb"
    link = tmp_path / "link.duckdb"
    monkeypatch.chdir(tmp_path)
    with DuckDBLog("log.duckdb") as sink:
        link.symlink_to(path)
        sink.write(everything())
        sink.flush()
        for name in (Path("log.duckdb"), link, path):
            with open_log(name) as reader:
                assert is_live(reader)
                assert reader.batch_count() == 8


def test_what_answers_nonsense_is_not_believed(tmp_path: Path) -> None:
    """Something else on the socket, silent or talking, does not make a reader wait for ever or crash."""
    path = tmp_path / "log.duckdb"
    for greeting in (b"", b"\0\0\0\2E{}", b"\xff\xff\xff\xffH", b"SSH-2.0-x\r\n"):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(address(path)))
            listener.listen()

            def greet(listener: socket.socket = listener, greeting: bytes = greeting) -> None:
                peer, _ = listener.accept()
                peer.sendall(greeting)
                peer.close()

            thread = threading.Thread(target=greet)
            thread.start()
            with pytest.raises(KvbusError):
                Session(path)
            thread.join(10)
        address(path).unlink()


# -- the sink's own ways ---------------------------------------------------------------------------------


def test_a_small_write_is_durable_soon(tmp_path: Path) -> None:
    """Without any flush, what was written is visible to a reader after about ``flush_s``."""
    path = tmp_path / "log.duckdb"
    with DuckDBLog(path, flush_s=0.05) as sink:
        sink.write([received(A, 0, stored(1))])
        deadline = time.monotonic() + 20
        count = 0
        while not count and time.monotonic() < deadline:
            with open_log(path) as reader:
                count = reader.batch_count()
        assert count == 1


def test_a_fast_writer_is_held_back_not_dropped(tmp_path: Path) -> None:
    """More than can wait makes ``write`` wait: memory is bounded and everything arrives."""
    entries: list[Entry] = [received(A, seq, stored(seq)) for seq in range(400)]
    with DuckDBLog(tmp_path / "log.duckdb", flush_batches=4, flush_s=60) as sink:
        for entry in entries:
            sink.write([entry])
    with open_log(tmp_path / "log.duckdb") as reader:
        assert [found.entry for found in reader.entries()] == entries


def test_an_error_inside_the_with_block_is_the_one_seen(tmp_path: Path) -> None:
    """What went wrong in the caller's block comes out; what was written before it is kept."""

    def fail() -> None:
        with DuckDBLog(tmp_path / "log.duckdb") as sink:
            sink.write(everything())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with open_log(tmp_path / "log.duckdb") as reader:
        assert reader.batch_count() == 8


def test_payloads_of_megabytes_are_read_in_bounded_pieces(tmp_path: Path) -> None:
    """Entries with large payloads come back whole, through the socket and from the file."""
    entries: list[Entry] = [received(A, seq, stored(*range(seq, seq + 20_000))) for seq in range(12)]
    path = tmp_path / "log.duckdb"
    with DuckDBLog(path) as sink:
        sink.write(entries)
        sink.flush()
        with open_log(path) as reader:
            assert [found.entry for found in reader.entries()] == entries
    with open_log(path) as reader:
        assert [found.entry for found in reader.entries(5, 7)] == entries[5:8]
        assert not is_live(reader)
        assert reader.sources() == {0: A}


@pytest.mark.parametrize(
    "harm",
    [
        "DELETE FROM sources",
        "DROP TABLE losses CASCADE",
        "DROP VIEW standings",
        "UPDATE batches SET source_id = 7",
    ],
)
def test_a_damaged_log_says_so(harm: str, tmp_path: Path) -> None:
    """A log that lacks a part of itself is refused by readers and writers, not called a fault of kvbus."""
    path = tmp_path / "log.duckdb"
    with DuckDBLog(path) as log:
        log.write(everything())
    with duckdb.connect(str(path)) as connection:
        connection.execute(harm)
    with pytest.raises(LogError):
        DuckDBLog(path).close()
    if "standings" not in harm:
        with pytest.raises(LogError), closing(open_log(path)) as reader:
            list(reader.entries())
