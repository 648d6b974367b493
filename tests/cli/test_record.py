"""``kvbus record``, on a real publisher."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.processes import Engine, Kvbus, Message, Running, messages, until


def logged(kvbus: Kvbus, log: Path) -> int:
    done = kvbus("stat", log, "--json")
    assert done.returncode == 0, done.stderr
    batches = json.loads(done.stdout)["batches"]
    assert isinstance(batches, int)
    return batches


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", ["day.duckdb", "day.jsonl"])
def test_a_stop_keeps_everything(
    number: signal.Signals,
    name: str,
    engine: Engine,
    said: list[Message],
    start: Callable[..., Running],
    kvbus: Kvbus,
    tmp_path: Path,
) -> None:
    """After SIGINT or SIGTERM the log holds, byte for byte, all that was received; the exit code is 0."""
    running = start("record", engine.endpoint, "--replay", engine.replay, "-o", name, "--flush", "0.05")
    engine.play(said)
    until(lambda: logged(kvbus, tmp_path / name) == len(said))
    code, out, err = running.stop(number)
    assert (code, out) == (0, ""), err
    assert f"recorded {len(said)} batches" in err
    assert kvbus("export", name, "-o", "out.frames").returncode == 0
    assert messages(tmp_path / "out.frames") == said


def test_count_ends_a_recording(
    engine: Engine, said: list[Message], start: Callable[..., Running], kvbus: Kvbus, tmp_path: Path
) -> None:
    """--count N stops by itself when N batches are in."""
    running = start("record", engine.endpoint, "--replay", engine.replay, "-o", "x.duckdb", "-n", "30")
    engine.play(said[:30])
    code, _, err = running.finish()
    assert code == 0, err
    assert logged(kvbus, tmp_path / "x.duckdb") == 30


def test_time_ends_a_recording(engine: Engine, kvbus: Kvbus, tmp_path: Path) -> None:
    """--for SECONDS stops by itself, with a log that can be read even when nothing came."""
    done = kvbus("record", engine.endpoint, "-o", "x.duckdb", "--for", "0.5", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert logged(kvbus, tmp_path / "x.duckdb") == 0


def test_a_recording_can_be_judged_while_it_is_made(
    engine: Engine, said: list[Message], start: Callable[..., Running], kvbus: Kvbus, tmp_path: Path
) -> None:
    """--check tells a violation when it is seen, keeps it in the log, and makes the exit code 1; a recorder
    that goes on knows it already.
    """
    feed = ("record", engine.endpoint, "--replay", engine.replay, "-o", "x.duckdb", "--check")
    running = start(*feed, "--capacity", "GPU=20", "--flush", "0.05")
    engine.play(said)
    query = "SELECT count(*)::INT AS n FROM violations WHERE rule = 'eviction'"
    until(lambda: '"n":0' not in (kvbus("sql", "x.duckdb", query, "--json").stdout or '"n":0'))
    until(lambda: logged(kvbus, tmp_path / "x.duckdb") == len(said))
    code, out, err = running.stop(signal.SIGINT)
    assert (code, out) == (1, ""), err
    assert "VIOLATED eviction" in err
    again = kvbus(*feed, "--for", "0.5", env={"KVBUS_CAPACITY": "GPU=20"})
    assert again.returncode == 1
    assert "VIOLATED eviction" not in again.stderr
    assert kvbus(*feed[:5], "y.duckdb", "--check", "-n", "30").returncode == 0


def test_a_silent_feed_leaves_the_check_unknown(
    engine: Engine, said: list[Message], sockets: Path, kvbus: Kvbus
) -> None:
    """With --check nothing holds of a feed that said nothing: it is named, and the word is UNKNOWN."""
    engine.play(said[:30], wait=False)
    feeds = [engine.endpoint, f"ipc://{sockets}/nobody", "--replay", engine.replay]
    feeds += ["--replay", f"ipc://{sockets}/none"]
    done = kvbus("record", *feeds, "-o", "x.duckdb", "--check", "-n", "30")
    assert done.returncode == 0, done.stderr
    assert f"nothing was heard from ipc://{sockets}/nobody: it is not judged" in done.stderr
    assert "UNKNOWN, with 0 violations" in done.stderr


def test_a_recorder_goes_on_where_it_stood(
    engine: Engine, said: list[Message], start: Callable[..., Running], kvbus: Kvbus, tmp_path: Path
) -> None:
    """What was said while no recorder ran comes from the replay: nothing missing, nothing twice."""
    feed = ("record", engine.endpoint, "--replay", engine.replay, "-o", "x.duckdb")
    first = start(*feed, "-n", "20")
    engine.play(said[:20])
    assert first.finish()[0] == 0
    engine.play(said[20:50], wait=False)
    second = start(*feed, "-n", "40")
    engine.play(said[50:60])
    code, _, err = second.finish()
    assert code == 0, err
    assert kvbus("export", "x.duckdb", "-o", "out.frames").returncode == 0
    assert messages(tmp_path / "out.frames") == said[:60]
    assert kvbus("check", "x.duckdb", "--strict").returncode == 0


def test_settings_may_come_from_a_file(
    engine: Engine, said: list[Message], start: Callable[..., Running], kvbus: Kvbus, tmp_path: Path
) -> None:
    """With kvbus.toml, `kvbus record` needs no flags, and `kvbus stat` knows the log."""
    feed = f'endpoint = "{engine.endpoint}"\nreplay = "{engine.replay}"\nname = "engine-0"\n'
    (tmp_path / "kvbus.toml").write_text(f'log = "x.duckdb"\n[[feed]]\n{feed}')
    running = start("record", "-n", "10")
    engine.play(said[:10])
    assert running.finish()[0] == 0
    told = json.loads(kvbus("stat", "--json").stdout)
    assert (told["batches"], told["sources"][0]["source"]) == (10, "engine-0")


def test_every_fault_of_the_configuration_is_told(kvbus: Kvbus, tmp_path: Path) -> None:
    """A bad file ends with 2 and one message that has every fault."""
    (tmp_path / "kvbus.toml").write_text("idel = 1\nflush = -1\n")
    done = kvbus("record", env={"KVBUS_SPEED": "fast"})
    assert (done.returncode, done.stdout) == (2, "")
    for place in ("kvbus.toml: idel", "kvbus.toml: flush", "KVBUS_SPEED"):
        assert place in done.stderr


def test_a_log_is_recorded_by_one_process(
    engine: Engine, start: Callable[..., Running], kvbus: Kvbus, tmp_path: Path
) -> None:
    """A second recorder on the same log ends with 2 and leaves the first alone."""
    running = start("record", engine.endpoint, "-o", "x.duckdb")
    until((tmp_path / "x.duckdb").exists)
    assert engine.publisher.wait_for_subscriber(60)
    done = kvbus("record", engine.endpoint, "-o", "x.duckdb", "--for", "1")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert running.process.poll() is None
    assert running.stop()[0] == 0


def test_reading_does_not_disturb_a_recorder(
    engine: Engine, said: list[Message], start: Callable[..., Running], kvbus: Kvbus, tmp_path: Path
) -> None:
    """stat, check, replay and export of a log work while it is recorded to."""
    running = start("record", engine.endpoint, "--replay", engine.replay, "-o", "x.duckdb", "--flush", "0.05")
    engine.play(said[:40])
    until(lambda: logged(kvbus, tmp_path / "x.duckdb") == 40)
    assert kvbus("check", "x.duckdb", "--strict").returncode == 0
    assert kvbus("replay", "x.duckdb", "--json").stdout.count('"events":') >= 40
    assert kvbus("export", "x.duckdb", "-o", "out.frames").returncode == 0
    assert messages(tmp_path / "out.frames") == said[:40]
    engine.play(said[40:], wait=False)
    until(lambda: logged(kvbus, tmp_path / "x.duckdb") == len(said))
    assert running.stop()[0] == 0
