"""``kvbus run``: what it prints, publishes, records, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.json import encode
from typer.testing import CliRunner, Result

from cli import logs
from cli.main import app
from cli.scoreboard import speed, trouble
from kvbus.events import BlockRemoved, BlockStored, EventBatch
from kvbus.log import LogReader, Loss, Received
from sinks.duckdb import open_log
from tests.cli.full_disk import FullDisk
from tests.cli.processes import TIMEOUT_S, Running, command, environment, until
from tiers.transfer_times import TransferTimes

Kvbus = Callable[..., Result]

KEYS = {"requests", "block_refs", "misses", "mismatches", "tiers"}
TIER_KEYS = {"tier", "medium", "hits", "stores", "evictions", "bytes_stored", "bytes_loaded", "events"}
SMALL = ("--block-bytes", "1KiB", "--device", "cpu", "--limit", "40")


def trace(path: Path, *prompts: list[int], every_ms: int = 0) -> Path:
    """A trace in Mooncake's form."""
    lines = (
        {"timestamp": n * every_ms, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}
        for n, ids in enumerate(prompts)
    )
    path.write_bytes(b"".join(encode(line) + b"\n" for line in lines))
    return path


@pytest.fixture
def kvbus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kvbus:
    """``kvbus(*args)`` runs the command in this process, which loads torch once, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*args: str | Path) -> Result:
        return CliRunner().invoke(app, list(map(str, args)))

    return run


def answer(done: Result) -> dict[str, Any]:
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_json_is_one_object(kvbus: Kvbus, tmp_path: Path) -> None:
    """The counts of a run that can be followed by eye, under the documented keys and no others."""
    path = trace(tmp_path / "t.jsonl", [1, 2, 3], [4, 5, 6], [1, 2, 3], [1, 2, 3])
    args = ("--trace", path, "--gpu-blocks", "3", "--tier", "cpu:blocks=3", "--tier", "memory", *SMALL)
    found = answer(kvbus("run", *args, "--json", "--quiet"))
    assert found.keys() == KEYS
    assert all(tier.keys() == TIER_KEYS for tier in found["tiers"])
    counts = {tier["tier"]: (tier["hits"], tier["stores"], tier["evictions"]) for tier in found["tiers"]}
    assert counts == {"gpu": (3, 9, 6), "cpu": (0, 9, 6), "memory": (3, 6, 0)}
    assert (found["requests"], found["block_refs"], found["misses"], found["mismatches"]) == (4, 12, 6, 0)
    assert [tier["medium"] for tier in found["tiers"]] == ["GPU", "CPU", "CPU"]
    assert [tier["bytes_loaded"] for tier in found["tiers"]] == [0, 3 * 1024, 3 * 1024]


def test_plain_run_shows_a_table(kvbus: Kvbus) -> None:
    """Without flags it serves made-up chats with a GPU and a CPU tier; data on stdout, notices on stderr."""
    done = kvbus("run", "--limit", "40")
    assert done.exit_code == 0
    assert "40 requests" in done.stdout
    assert all(f"│ {tier} " in done.stdout for tier in ("gpu", "cpu", "(misses)"))
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "kvbus tail --engine 'run=gpu@tcp://127.0.0.1:" in done.stderr


def entries(reader: LogReader) -> list[Received | Loss]:
    return [p.entry for p in reader.entries() if isinstance(p.entry, Received | Loss)]


def test_a_run_that_records_itself(kvbus: Kvbus, tmp_path: Path) -> None:
    """Everything published is in the log, drain by drain, tiers in order; it counts what the run counted, and
    its order holds.
    """
    behind = ("--tier", "cpu:blocks=80", "--tier", f"fs:path={tmp_path / 'kv'},max_blocks=100")
    found = answer(kvbus("run", *SMALL, "--gpu-blocks", "64", *behind, "--record", "run.duckdb", "--json"))
    reader = open_log(tmp_path / "run.duckdb")
    try:
        all_of_it = entries(reader)
    finally:
        reader.close()
    batches = [entry for entry in all_of_it if isinstance(entry, Received)]
    assert len(batches) == len(all_of_it), "something was lost"
    names = ["run/gpu", "run/cpu", "run/fs"]
    assert [b.source.source for b in batches] == names * (len(batches) // 3)
    stamps = [b.batch.ts for b in batches if isinstance(b.batch, EventBatch)]
    assert stamps[::3] == stamps[1::3] == stamps[2::3] == sorted(set(stamps))
    for number, tier in enumerate(found["tiers"]):
        mine = [b.batch for b in batches[number::3] if isinstance(b.batch, EventBatch)]
        said = [event for batch in mine for event in batch.events]
        stored = sum(len(e.block_hashes) for e in said if isinstance(e, BlockStored))
        removed = sum(len(e.block_hashes) for e in said if isinstance(e, BlockRemoved))
        assert (len(said), stored, removed) == (tier["events"], tier["stores"], tier["evictions"])
    checked = kvbus("check", "run.duckdb", "--strict")
    assert checked.exit_code == 0, checked.stdout


def test_a_recording_knows_what_fits(kvbus: Kvbus, tmp_path: Path) -> None:
    """Each tier's capacity is in the log, and `check` judges by it without a flag."""
    behind = ("--tier", "cpu:blocks=80", "--tier", f"fs:path={tmp_path / 'kv'},max_blocks=100")
    answer(kvbus("run", *SMALL, "--gpu-blocks", "64", *behind, "--record", "run.duckdb", "--json"))
    told = "SELECT medium, blocks FROM capacities JOIN epochs USING (marker) ORDER BY source_id"
    found = [json.loads(line) for line in kvbus("sql", "run.duckdb", told, "--json").stdout.splitlines()]
    sizes = {"GPU": 64, "CPU": 80, "STORAGE": 100}
    assert found == [{"medium": medium, "blocks": blocks} for medium, blocks in sizes.items()]
    assert kvbus("check", "run.duckdb", "--rule", "eviction").exit_code == 0
    assert kvbus("check", "run.duckdb", "--rule", "eviction", "--capacity", "CPU=79").exit_code == 1


def test_blocks_that_were_there_already_are_stores(kvbus: Kvbus, tmp_path: Path) -> None:
    """What a folder held at its opening, or another process put there meanwhile, became readable and was
    announced: it is counted, and moved no bytes.
    """
    path = trace(tmp_path / "t.jsonl", [1, 2, 3], [4, 5, 6], [1, 2, 3])
    behind = ("--tier", "cpu:blocks=3", "--tier", f"fs:path={tmp_path / 'kv'},shared=yes")
    args = ("run", "--trace", path, "--gpu-blocks", "3", *SMALL, *behind, "--json")
    first = answer(kvbus(*args))["tiers"][2]
    assert (first["stores"], first["bytes_stored"]) == (6, 6 * 1024)
    second = answer(kvbus(*args, "--record", "run.duckdb"))["tiers"][2]
    assert (second["stores"], second["bytes_stored"]) == (6, 0)
    reader = open_log(tmp_path / "run.duckdb")
    try:
        batches = [
            e.batch for e in entries(reader) if isinstance(e, Received) and e.source.source == "run/fs"
        ]
    finally:
        reader.close()
    said = [event for batch in batches if isinstance(batch, EventBatch) for event in batch.events]
    assert sum(len(e.block_hashes) for e in said if isinstance(e, BlockStored)) == second["stores"]


def test_a_second_run_goes_on_in_the_same_log(kvbus: Kvbus) -> None:
    """Another run is another epoch of the same tiers; nothing of the first is touched."""
    for _ in range(2):
        assert kvbus("run", *SMALL, "--record", "run.duckdb", "--json").exit_code == 0
    found = json.loads(kvbus("stat", "run.duckdb", "--json").stdout)
    epochs = {source["source"]: len(source["epochs"]) for source in found["sources"]}
    assert epochs == {"run/cpu": 2, "run/gpu": 2}


def test_others_can_watch(start: Callable[..., Running], sockets: Path, tmp_path: Path) -> None:
    """The tiers publish where they were told to; a tail that comes late shows what was said before."""
    path = trace(tmp_path / "t.jsonl", [1, 2], [3, 4], every_ms=1_000_000)
    base = f"ipc://{sockets}/kv"
    running = start("run", "--trace", path, *SMALL, "--speed", "1", "--publish", base, "--json", "--quiet")
    tiers = ",".join(f"{tier}@{base}-{tier}+{base}-{tier}-replay" for tier in ("gpu", "cpu"))
    code, out, err = start("tail", "--engine", f"run={tiers}", "--count", "3", "--json", "--quiet").finish()
    assert code == 0, err
    shown = [json.loads(line) for line in out.splitlines()]
    said = [(line["source"], line["kind"]) for line in shown if line["kind"].startswith("Block")]
    assert said == [("run/gpu", "BlockStored"), ("run/cpu", "BlockStored"), ("run/cpu", "BlockStored")]
    code, out, err = running.stop()
    assert code == 0, err
    assert [tier["events"] for tier in json.loads(out)["tiers"]] == [1, 2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_it_says_what_it_has(
    start: Callable[..., Running], tmp_path: Path, number: signal.Signals
) -> None:
    """A run at the trace's pace ends when told to: the counts so far on stdout, the log whole, 0."""
    path = trace(tmp_path / "t.jsonl", [1, 2], [3, 4], [1, 2], every_ms=1_000_000)
    log = tmp_path / "run.duckdb"
    running = start("run", "--trace", path, *SMALL, "--speed", "1", "--record", log, "--json")
    until(lambda: has_batches(log), 30)
    code, out, err = running.stop(number)
    assert code == 0, err
    assert json.loads(out)["requests"] == 1
    assert "stopped after 1 requests" in err
    assert has_batches(log)


def test_a_recording_that_fails_stops_the_run(
    kvbus: Kvbus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was served until then is told, then why it ended, and 2."""
    path = trace(tmp_path / "t.jsonl", [1, 2], [3, 4], [1, 2], every_ms=1_000_000)
    monkeypatch.setattr(logs, "writer", lambda *_, **__: FullDisk())
    done = kvbus("run", "--trace", path, *SMALL, "--speed", "1", "--record", "run.duckdb", "--json")
    assert done.exit_code == 2
    assert json.loads(done.stdout)["requests"] == 1
    assert "the disk is full" in done.stderr
    assert "recorded" not in done.stderr


def has_batches(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        reader = open_log(path)
    except Exception:  # it is just being made
        return False
    try:
        return reader.batch_count() >= 2
    finally:
        reader.close()


def test_a_wrong_block_is_named_and_makes_the_exit_code_1(
    kvbus: Kvbus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tier that hands out something else is caught when the block is loaded: named, counted, and 1."""
    (tmp_path / "lying.py").write_text(LYING)
    path = trace(tmp_path / "t.jsonl", [1, 2, 3], [4, 5, 6], [1, 2, 3])
    behind = ("--tier", "cpu:blocks=3", "--tier", "lying:Lying:max_blocks=100")
    args = ("--trace", path, "--gpu-blocks", "3", *behind, *SMALL, "--json")
    monkeypatch.syspath_prepend(tmp_path)
    done = kvbus("run", *args)
    assert done.exit_code == 1, done.stderr
    assert json.loads(done.stdout)["mismatches"] == 3
    assert done.stderr.count("is not what was stored") == 3
    assert [tier["tier"] for tier in json.loads(done.stdout)["tiers"]] == ["gpu", "cpu", "Lying"]


LYING = """
from tiers import MemoryTier

class Lying(MemoryTier):
    def _write(self, slot, row):
        super()._write(slot, row[:100] + b"?" + row[101:])
"""


def test_every_fault_is_named_at_once(kvbus: Kvbus) -> None:
    """Nothing is begun with flags that cannot be: all of them are listed, with what is expected."""
    done = kvbus(
        "run",
        *("--gpu-blocks", "many", "--block-bytes", "3 furlongs", "--device", "tpu", "--speed", "fast"),
        *("--tier", "cpu:block=7,policy=fifo", "--tier", "tape:reel=1", "--plot", "curve.gif"),
    )
    assert (done.exit_code, done.stdout) == (2, "")
    faults = [
        "--gpu-blocks",
        "--block-bytes",
        "--device: expected auto, cpu, cuda, got 'tpu'",
        "--speed: 'fast'",
        "block: not an option; did you mean blocks?",
        "policy: no cache policy 'fifo'",
        "--tier tape: no tier 'tape'",
        "--plot: expected together with --what-if",
        "--plot: expected a name in .png or .svg",
    ]
    assert f"{len(faults)} faults" in done.stderr
    assert [fault for fault in faults if fault not in done.stderr] == []


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--trace", "absent.jsonl"], "absent.jsonl cannot be read"),
        (["--publish", "tcp://127.0.0.1:5600"], "would be connected to"),
        (["--record", "no/such/folder/run.duckdb"], "no/such/folder"),
        (["--tier", "cpu", "--tier", "fs:path=/dev/null/kv"], "cannot keep blocks"),
        (["--trace", "torn.jsonl"], "torn.jsonl, line 2 is no request"),
    ],
)
def test_what_cannot_be_begun_ends_with_2(args: list[str], says: str, kvbus: Kvbus, tmp_path: Path) -> None:
    """The problem and a next step on stderr, nothing on stdout."""
    whole = trace(tmp_path / "torn.jsonl", [1, 2])
    whole.write_bytes(whole.read_bytes() + b'{"timestamp": 1')
    done = kvbus("run", "--limit", "9", *args)
    assert (done.exit_code, done.stdout) == (2, "")
    assert says in done.stderr
    assert len(done.stderr.splitlines()) >= 2


def test_without_torch_it_says_what_to_install(tmp_path: Path) -> None:
    """Only moving blocks needs torch: a run names the extra, a what-if goes on."""
    probe = (
        "import sys; sys.modules['torch'] = None; from cli.entry import main; sys.argv[1:] = {args}; main()"
    )
    for args, code in ((["run"], 2), (["run", "--limit", "5", "--what-if", "gpu-blocks=64"], 0)):
        done = subprocess.run(
            [command()[0], "-c", probe.format(args=args)],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert ("kvbus[tiers]" in done.stderr) == bool(code)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--what-if", "gpu-blocks=900000000000"), "--what-if: gpu-blocks: expected a number"),
        (("--gpu-blocks", "900000000000"), "--gpu-blocks: expected a number"),
        (("--gpu-blocks", "0"), "--gpu-blocks: expected 1 or more"),
        (("--tier", "cpu:blocks=900000000m"), "--tier cpu: blocks: expected a number"),
        (("--block-bytes", "8EiB"), "--block-bytes: expected a size in bytes"),
        (("--block-bytes", "1TiB"), "--block-bytes: expected a multiple of 8 from 64 to 1.0 GiB"),
    ],
)
def test_sizes_that_no_machine_has_are_faults_of_the_flag(
    args: tuple[str, str], says: str, kvbus: Kvbus
) -> None:
    """A number too large is refused where it was given, not met as a want of memory later."""
    done = kvbus("run", "--limit", "2", *args)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "1 fault:" in done.stderr
    assert says in done.stderr


def test_more_requests_than_can_be_are_a_fault_of_the_flag(kvbus: Kvbus) -> None:
    """A limit that no counter holds is refused like any other number."""
    done = kvbus("run", "--limit", "9" * 23)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--limit" in done.stderr


def test_a_name_cannot_steer_the_terminal(kvbus: Kvbus) -> None:
    """What a file is called is shown, not obeyed."""
    done = kvbus("run", "--trace", "\x1b[2J.jsonl")
    assert done.exit_code == 2
    assert "\\x1b[2J.jsonl cannot be read" in done.stderr
    assert "\x1b" not in done.stderr


def test_an_address_that_nobody_could_be_told_is_refused(kvbus: Kvbus, tmp_path: Path) -> None:
    """Whether or not it would have been told."""
    for quiet in ([], ["--quiet"]):
        done = kvbus("run", *SMALL, "--publish", f"ipc://{tmp_path}/a,b@c", *quiet)
        assert (done.exit_code, done.stdout) == (2, "")
        assert "--engine cannot say" in done.stderr


def test_sockets_leave_no_files(kvbus: Kvbus, tmp_path: Path) -> None:
    """A run that is over has cleared away what it published at."""
    (tmp_path / "s").mkdir()
    assert kvbus("run", *SMALL, "--publish", f"ipc://{tmp_path}/s/kv").exit_code == 0
    assert list((tmp_path / "s").iterdir()) == []


def test_made_up_tokens_are_told(kvbus: Kvbus, tmp_path: Path) -> None:
    """Where events give a trace's blocks another size than the trace, stderr says both; else nothing."""
    path = trace(tmp_path / "t.jsonl", [1, 2])
    said = "blocks of 512 tokens in the trace have 16 made-up ones in events"
    assert said in kvbus("run", "--trace", path, *SMALL).stderr
    assert "made-up" not in kvbus("run", "--trace", path, "--block-tokens", "512", *SMALL).stderr


def test_a_trace_can_come_through_a_pipe(kvbus: Kvbus, tmp_path: Path) -> None:
    """What can be read only once is read once."""
    path = trace(tmp_path / "t.jsonl", [1, 2], [1, 2])
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(path.read_bytes()))
    writer.start()
    assert answer(kvbus("run", "--trace", pipe, *SMALL, "--json"))["requests"] == 2
    writer.join()


def test_a_reader_who_leaves_is_no_trouble(tmp_path: Path) -> None:
    """With stdout closed the run is still served to its end, and ends with 0."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        command("run", "--limit", "5", "--json", "--quiet"),
        cwd=tmp_path,
        env=environment(),
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=TIMEOUT_S,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


# For people


def test_rates_and_times_in_words() -> None:
    """Rates in GB/s, times in ms, nothing where nothing was transferred."""
    times = TransferTimes()
    assert speed(times) == ("", "", "")
    times.add(3_000_000, 0.0015)
    assert speed(times) == ("2", "1.50", "1.50")


def test_trouble_is_only_what_there_was() -> None:
    """A counter of nothing says nothing."""
    stats = {"load_failures": 0, "stores_given_up": 1_234, "2:s3.store_failures.ECONNREFUSED": 7}
    assert trouble({**stats, "1:fs.load_failures.EIO": 0, "2:s3.stores": 9}) == [
        "1,234 blocks found no room in the CPU tier",
        "s3: 7 store failures: ECONNREFUSED",
    ]


def test_what_a_tier_does_not_count_itself_is_told_too() -> None:
    """Copies that failed and blocks that were refused are the composing manager's to count, for any tier."""
    stats = {
        "cascade_failures.1:Mine.OSError": 3,
        "promotion_failures.1:Mine.partial": 2,
        "stores_dropped.1:Mine.backpressure": 5,
        "blocks_dropped.1:Mine.backpressure": 1_600,
    }
    assert trouble(stats) == [
        "Mine: 3 jobs into it failed: OSError",
        "Mine: 2 jobs out of it failed: partial",
        "Mine: 1,600 blocks not offered to it: backpressure",
    ]
