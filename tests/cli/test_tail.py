"""``kvbus tail``, on a real publisher."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.span import EndOfFeeds, LastBatches, start_of
from kvbus.errors import ConfigError
from kvbus.events import EventBatch
from kvbus.feed import Notice
from kvbus.log import Entry, Loss, Received, SourceId
from tests.cli.processes import TIMEOUT_S, Engine, Kvbus, Message, Running, command, environment, messages

FIELDS = "%s %i %k %m %n"


def batch(seq: int, source: str = "a", rank: int = 0) -> Received:
    return Received(SourceId(source, b"", rank), 0, seq, b"", 0, False, EventBatch(0.0, []), "map")


def seqs(items: list[Entry | Notice]) -> list[int]:
    return [item.seq for item in items if isinstance(item, Received)]


def caught_up(source: str = "a") -> Notice:
    return Notice("caught_up", source, "")


def test_from_begins_where_it_says(engine: Engine, said: list[Message], kvbus: Kvbus) -> None:
    """beginning shows all the replay has, N begins at seq N, -N with the last N batches, end with none."""
    engine.play(said[:50], wait=False)
    for start, first in (("beginning", 0), ("20", 20), ("-7", 43), ("-500", 0)):
        done = kvbus(
            "tail", engine.endpoint, "--replay", engine.replay, "--from", start, "-e", "--format", "%s"
        )
        shown = [int(line) for line in done.stdout.split()]
        assert (done.returncode, sorted(set(shown))) == (0, list(range(first, 50))), start
        assert shown == sorted(shown)
    done = kvbus("tail", engine.endpoint, "--replay", engine.replay, "--from", "end", "-e")
    assert (done.returncode, done.stdout) == (0, "")


def test_exit_comes_when_nobody_is_there(sockets: Path, kvbus: Kvbus) -> None:
    """With --exit, an endpoint at which nobody answers has nothing: 0, and a word about it on stderr."""
    done = kvbus("tail", f"ipc://{sockets}/nobody", "--exit")
    assert (done.returncode, done.stdout) == (0, "")
    assert "nobody answered" in done.stderr


def test_live_lines_come_as_they_are_said(
    engine: Engine, said: list[Message], start: Callable[..., Running]
) -> None:
    """Without a replay socket, what is published from the subscription on is shown, to -n lines exactly."""
    running = start("tail", engine.endpoint, "-n", "40", "--format", FIELDS)
    engine.play(said)
    code, out, _ = running.finish()
    lines = out.splitlines()
    assert (code, len(lines)) == (0, 40)
    assert lines[0].startswith("0 0 BlockStored GPU ")


def test_json_lines_bring_the_same_log(
    engine: Engine, said: list[Message], kvbus: Kvbus, tmp_path: Path
) -> None:
    """tail --json, imported, holds every payload byte for byte."""
    engine.play(said[:60], wait=False)
    done = kvbus("tail", engine.endpoint, "--replay", engine.replay, "--exit", "--json")
    objects = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["kind"] for line in objects} >= {"EpochBegan", "BlockStored"}
    (tmp_path / "x.jsonl").write_text(done.stdout)
    imported = kvbus("import", "x.jsonl", "-o", "x.duckdb", "--json")
    assert json.loads(imported.stdout)["batches"] == 60
    assert kvbus("export", "x.duckdb", "-o", "x.frames").returncode == 0
    assert messages(tmp_path / "x.frames") == said[:60]


def test_filters_choose_events_in_every_form(engine: Engine, said: list[Message], kvbus: Kvbus) -> None:
    """The same events pass as JSON, in a template and as human lines."""
    engine.play(said[:60], wait=False)
    feed = ("tail", engine.endpoint, "--replay", engine.replay, "-e", "--kind", "removed")
    objects = [json.loads(line) for line in kvbus(*feed, "--json").stdout.splitlines()]
    events = [(line["seq"], line["event"]) for line in objects if "event" in line]
    lines = kvbus(*feed, "--format", "%s %i").stdout.splitlines()
    people = kvbus(*feed).stdout.splitlines()
    assert events
    assert [tuple(map(int, line.split())) for line in lines] == events
    assert len(people) == len(events)
    assert all("BlockRemoved" in line for line in people)
    assert kvbus(*feed, "--rank", "5").stdout == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_is_the_usual_end(
    number: signal.Signals, engine: Engine, said: list[Message], start: Callable[..., Running]
) -> None:
    """Ctrl-C and SIGTERM end a tail with 0, without a traceback."""
    running = start("tail", engine.endpoint)
    engine.play(said[:5])
    assert running.process.stdout is not None
    running.process.stdout.readline()
    code, _, err = running.stop(number)
    assert code == 0
    assert "Traceback" not in err


def test_losses_and_silence_are_told_on_stderr(
    engine: Engine, said: list[Message], start: Callable[..., Running]
) -> None:
    """A hole that nobody can fill and a feed that falls silent are said aloud, but not among the data."""
    running = start("tail", engine.endpoint, "--idle", "0.3", "--format", "%s")
    engine.play([*said[:3], *said[6:9]])
    assert running.process.stderr is not None
    told = ""
    while "nothing heard" not in told or "lost:" not in told:
        line = running.process.stderr.readline()
        assert line, told
        told += line
    code, out, _ = running.stop()
    assert code == 0
    assert "seq 3 to 5 (3 batches)" in told
    assert sorted({int(line) for line in out.split()}) == [0, 1, 2, 6, 7, 8]


def test_ranks_read_consecutive_addresses(
    sockets: Path, said: list[Message], start: Callable[..., Running]
) -> None:
    """--ranks 2 reads two publishers from one address."""
    from kvbus.publisher import Publisher

    base = f"ipc://{sockets}/dp"
    both = [Publisher(base, data_parallel_rank=rank) for rank in (0, 1)]
    running = start("tail", base, "--ranks", "2", "-n", "2", "--format", "%S")
    for one in both:
        assert one.wait_for_subscriber(TIMEOUT_S)
    for one in both:
        one.forward(*next(message for message in said if message[1] == 0))
    code, out, err = running.finish()
    for one in both:
        one.close(0)
    assert code == 0, err
    assert set(out.split()) <= {base, base + "_dp1"}


def test_engines_may_connect(sockets: Path, said: list[Message], start: Callable[..., Running]) -> None:
    """--bind waits for an engine that connects."""
    import time

    import zmq

    running = start("tail", "--bind", f"ipc://{sockets}/sub", "-n", "3", "--format", "%s")
    with zmq.Context() as context, context.socket(zmq.PUB) as publisher:
        publisher.linger = 0
        publisher.connect(f"ipc://{sockets}/sub")
        deadline = time.monotonic() + TIMEOUT_S
        number = 0
        while running.process.poll() is None and time.monotonic() < deadline:
            topic, seq, payload = said[number]
            publisher.send_multipart([topic, seq.to_bytes(8, "big"), payload])
            number = min(number + 1, len(said) - 1)
            time.sleep(0.02)
    code, out, _ = running.finish()
    assert (code, len(out.split())) == (0, 3)


def test_a_terminal_gets_colour(log: Path, tmp_path: Path) -> None:
    """On a terminal kinds are coloured."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        command("replay", log, "-n", "2", "--quiet"),
        cwd=tmp_path,
        env=environment(TERM="xterm"),
        stdout=slave,
    )
    os.close(slave)
    read = b""
    done = threading.Event()

    def drain() -> None:
        nonlocal read
        while True:
            try:
                data = os.read(master, 4096)
            except OSError:
                break
            if not data:
                break
            read += data
        done.set()

    threading.Thread(target=drain, daemon=True).start()
    assert process.wait(timeout=TIMEOUT_S) == 0
    assert done.wait(TIMEOUT_S)
    os.close(master)
    assert b"\x1b[32m" in read


def test_start_of() -> None:
    """--from has four forms; its default depends on whether there is a replay socket to ask."""
    assert start_of(None, has_replay=True).origin == 0
    assert start_of(None, has_replay=False).origin is None
    assert (start_of("12", has_replay=False).origin, start_of("-3", has_replay=False).last) == (12, 3)
    for text in ("-", "1.5", "", "--5", "9" * 30):
        with pytest.raises(ConfigError, match="--from"):
            start_of(text, has_replay=True)


def test_the_last_batches_of_each_stream_are_kept_until_the_history_is_through() -> None:
    """Of what was there before only the last N batches a stream are shown, in order; later ones all."""
    history = LastBatches(["a", "b"], 2)
    before: list[Entry | Notice] = [
        batch(0),
        batch(7, rank=1),
        batch(1),
        batch(0, "b"),
        batch(2),
        batch(8, rank=1),
    ]
    assert list(history.take(before)) == []
    shown = list(history.take([caught_up("a"), batch(3)]))
    assert seqs(shown) == [7, 1, 2, 8, 3]
    assert seqs(list(history.take([batch(1, "b"), caught_up("b"), batch(2, "b")]))) == [0, 1, 2]


def test_marks_stay_with_the_batches_they_stand_before() -> None:
    """A loss among the last batches is kept, one long before them is not."""
    source = SourceId("a", b"", 0)
    old, new = Loss(source, 0, 0, 1, "too_old", 0), Loss(source, 0, 3, 4, "too_old", 0)
    history = LastBatches(["a"], 2)
    shown = list(history.take([old, batch(2), new, batch(5), batch(6), caught_up()]))
    assert shown[:-1] == [new, batch(5), batch(6)]


def test_the_end_is_a_silence_after_every_feed_is_through() -> None:
    """--exit waits for connections and replays, then for a second of nothing; five for who is absent."""
    end = EndOfFeeds(["a", "b"], now=0.0)
    assert not end.reached(4.9)
    assert end.reached(5.0)
    end.note([Notice("connected", "a", ""), caught_up("a"), caught_up("b")], 5.0)
    assert not end.reached(9.9)
    end.note([Notice("connected", "b", "")], 9.9)
    assert not end.reached(10.8)
    end.note([batch(0)], 10.8)
    end.note([Notice("idle", "a", "")], 11.7)
    assert not end.reached(11.7)
    assert end.reached(11.8)
