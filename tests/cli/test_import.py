"""``kvbus import`` and ``kvbus export``: files in, files out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import Kvbus, cut_out, messages

SMALL = ("sglang0523_radix", "vllm011_gpu_int", "vllm032_gpu_int", "vllm032_restart")


def stat(kvbus: Kvbus, log: Path | str) -> dict[str, Any]:
    done = kvbus("stat", log, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert isinstance(told, dict)
    return told


def brought(kvbus: Kvbus, *args: Path | str) -> list[dict[str, Any]]:
    done = kvbus("import", *args, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", SMALL)
def test_an_imported_capture_counts_what_its_oracle_counts(name: str, captures: Path, kvbus: Kvbus) -> None:
    """Messages, events and blocks by kind and medium, first and last seq: as counted without kvbus."""
    meta = json.loads((captures / f"{name}.meta.json").read_text())
    brought(kvbus, captures / f"{name}.frames", "-o", "x.duckdb")
    told = stat(kvbus, "x.duckdb")
    assert told["batches"] == meta["messages"]
    for ours, theirs in (("events", "events_by_type_medium"), ("blocks", "block_hashes_by_type_medium")):
        flat = {
            f"{kind}/{medium}": many
            for kind, media in told[ours].items()
            if isinstance(media, dict)
            for medium, many in media.items()
        }
        if ours == "events" and told[ours]["AllBlocksCleared"]:
            flat["AllBlocksCleared"] = told[ours]["AllBlocksCleared"]
        assert flat == {key: many for key, many in meta[theirs].items() if many}
    epochs = told["sources"][0]["epochs"]
    assert (epochs[0]["first_seq"], epochs[-1]["last_seq"]) == (meta["seq_first"], meta["seq_last"])
    assert told["undecoded"] == 0


def test_the_same_file_again_adds_nothing(captures: Path, kvbus: Kvbus) -> None:
    """Twice in one command, or again later: nothing is doubled, even where the engine restarted."""
    capture = captures / "vllm032_restart.frames"
    first, second = brought(kvbus, capture, capture, "-o", "x.duckdb")
    (third,) = brought(kvbus, capture, "-o", "x.duckdb")
    assert (first["batches"], first["already"]) == (566, 0)
    assert [(one["batches"], one["already"], one["strays"]) for one in (second, third)] == [(0, 566, 0)] * 2
    assert stat(kvbus, "x.duckdb")["batches"] == 566


def test_a_hole_is_a_loss_and_a_violation(captures: Path, kvbus: Kvbus, tmp_path: Path) -> None:
    """Messages missing from a capture become exactly that loss, and check answers no, with witnesses."""
    cut_out(captures / "vllm011_gpu_int.frames", tmp_path / "holed.frames", set(range(100, 120)))
    brought(kvbus, "holed.frames", "-o", "x.duckdb")
    (loss,) = stat(kvbus, "x.duckdb")["sources"][0]["losses"]
    assert (loss["first_seq"], loss["last_seq"]) == (100, 119)
    done = kvbus("check", "x.duckdb", "--json")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert told["verdict"] == "VIOLATED"
    rule = next(rule for rule in told["rules"] if rule["rule"] == "sequence")
    assert [witness["seq"] for witness in rule["violations"][0]["witnesses"]] == [99, 120]
    people = kvbus("check", "x.duckdb")
    assert people.returncode == 1
    assert people.stdout.startswith("VIOLATED\n")
    assert "epoch 0 seq 99" in people.stdout


def test_unknown_is_no_violation_unless_strict(captures: Path, kvbus: Kvbus, tmp_path: Path) -> None:
    """A log that begins late is UNKNOWN: exit code 0, with --strict 1."""
    cut_out(captures / "vllm011_gpu_int.frames", tmp_path / "late.frames", set(range(300)))
    brought(kvbus, "late.frames", "-o", "x.duckdb")
    done = kvbus("check", "x.duckdb", "--json")
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (0, "UNKNOWN")
    assert kvbus("check", "x.duckdb", "--strict").returncode == 1
    assert kvbus("check", "x.duckdb", env={"KVBUS_STRICT": "1"}).returncode == 1


def test_a_torn_file_adds_nothing(captures: Path, kvbus: Kvbus, tmp_path: Path) -> None:
    """A torn capture among good ones: 2, the byte is named, and nothing of any file goes in."""
    whole = (captures / "vllm011_gpu_int.frames").read_bytes()
    (tmp_path / "torn.frames").write_bytes(whole[:-3])
    done = kvbus("import", captures / "sglang0523_radix.frames", "torn.frames", "-o", "x.duckdb")
    assert done.returncode == 2
    assert "torn.frames: the record at byte" in done.stderr
    assert not (tmp_path / "x.duckdb").exists()


@pytest.mark.parametrize("content", [b"", b"hello\n", b"\x00" * 40, b"[1,2]\n"])
def test_what_is_no_capture_is_refused(content: bytes, kvbus: Kvbus, tmp_path: Path) -> None:
    """Other files are refused by their content, whatever their name."""
    (tmp_path / "x.dat").write_bytes(content)
    done = kvbus("import", "x.dat", "-o", "x.duckdb")
    assert done.returncode == 2
    assert "neither a capture nor JSON lines" in done.stderr or "record at byte 0" in done.stderr


def test_an_empty_capture_is_a_capture(kvbus: Kvbus, tmp_path: Path) -> None:
    """A subscriber that received nothing left an empty file; importing it makes an empty log."""
    (tmp_path / "none.frames").write_bytes(b"")
    (one,) = brought(kvbus, "none.frames", "-o", "x.duckdb")
    assert one["batches"] == 0


def test_a_replay_capture_is_read_as_well(captures: Path, kvbus: Kvbus, tmp_path: Path) -> None:
    """Frames as a replay client got them give the same batches; the live capture then adds none."""
    from kvbus.capture import CaptureWriter, read_capture

    live = captures / "vllm011_gpu_int.frames"
    with CaptureWriter(tmp_path / "replay.frames") as writer:
        for record in read_capture(live):
            writer.write(record.received_ns, [b"", *record.frames])
        writer.write(0, [b"", b"", b"\xff" * 8, b""])
        writer.write(0, [b"", b"nonsense"])
    first, second = brought(kvbus, "replay.frames", live, "--source", "one", "-o", "x.duckdb")
    assert (first["batches"], first["malformed"]) == (703, 1)
    assert (second["batches"], second["already"]) == (0, 703)


def test_dynamo_recordings_are_marked(kvbus: Kvbus, tmp_path: Path) -> None:
    """A KvRecorder file goes in with its completeness unknown, twice adds nothing, and strict says no."""
    data = {
        "stored": {"parent_hash": None, "start_position": 0, "blocks": [{"block_hash": 5, "tokens_hash": 6}]}
    }
    lines = [
        {"timestamp": at, "event": {"worker_id": 1, "event": {"event_id": at, "data": what, "dp_rank": 0}}}
        for at, what in enumerate((data, {"removed": {"block_hashes": [5]}}))
    ]
    (tmp_path / "rec.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for already in (0, 2):
        (one,) = brought(kvbus, "rec.jsonl", "-o", "x.duckdb")
        assert (one["form"], one["already"]) == ("recording", already)
    assert stat(kvbus, "x.duckdb")["batches"] == 2
    assert json.loads(kvbus("check", "x.duckdb", "--json").stdout)["verdict"] == "UNKNOWN"
    assert kvbus("check", "x.duckdb", "--strict").returncode == 1
    (tmp_path / "rec.jsonl").write_text(json.dumps(lines[1]) + "\n")
    other = kvbus("import", "rec.jsonl", "-o", "x.duckdb")
    assert other.returncode == 2
    assert "--source" in other.stderr


@pytest.mark.parametrize("form", ["frames", "jsonl"])
def test_an_export_brings_the_same_log(form: str, captures: Path, kvbus: Kvbus, tmp_path: Path) -> None:
    """A log exported and imported again says and holds the same, with its two epochs."""
    capture = captures / "vllm032_restart.frames"
    brought(kvbus, capture, "--source", "one", "-o", "a.duckdb")
    assert kvbus("export", "a.duckdb", "-o", f"one.{form}").returncode == 0
    brought(kvbus, f"one.{form}", "-o", "b.duckdb")
    assert stat(kvbus, "a.duckdb") == stat(kvbus, "b.duckdb")
    assert kvbus("export", "b.duckdb", "-o", "b.frames").returncode == 0
    assert (tmp_path / "b.frames").read_bytes() == capture.read_bytes()


def test_several_sources_are_several_captures(captures: Path, kvbus: Kvbus, tmp_path: Path) -> None:
    """Each source gets a file of its own, told on stderr; --source takes one, under the given name."""
    names = ("sglang0523_radix", "vllm011_gpu_int")
    brought(kvbus, *(captures / f"{name}.frames" for name in names), "-o", "two.duckdb")
    done = kvbus("export", "two.duckdb", "-o", "two.frames")
    assert done.returncode == 0
    for number, name in enumerate(names):
        assert f"two.{number}.frames: {name}\n" in done.stderr
        assert (tmp_path / f"two.{number}.frames").read_bytes() == (captures / f"{name}.frames").read_bytes()
    assert kvbus("export", "two.duckdb", "-o", "one.frames", "--source", names[1]).returncode == 0
    assert messages(tmp_path / "one.frames") == messages(captures / f"{names[1]}.frames")


def test_an_export_never_overwrites(log: Path, kvbus: Kvbus, tmp_path: Path) -> None:
    """Whatever the form, a file that is there stays as it is."""
    for name in ("x.frames", "x.jsonl", "x.parquet"):
        (tmp_path / name).write_text("precious")
        assert kvbus("export", log, "-o", name).returncode == 2
        assert (tmp_path / name).read_text() == "precious"


def test_parquet_has_a_row_for_each_batch(log: Path, kvbus: Kvbus, tmp_path: Path) -> None:
    """The parquet export is a folder with the log's tables."""
    import pyarrow.parquet as pq

    done = kvbus("export", log, "-o", "out", env={"PYTHONWARNINGS": "default"})
    assert done.returncode == 0, done.stderr
    assert pq.read_table(tmp_path / "out" / "batches.parquet").num_rows == 703


def test_stat_for_people_has_the_numbers(log: Path, kvbus: Kvbus) -> None:
    """The tables show batches, kinds with their counts, and the source."""
    done = kvbus("stat", log)
    told = stat(kvbus, log)
    assert done.returncode == 0
    for text in ("703 batches", "BlockStored", "engine", f"{told['resident']['GPU']:,}"):
        assert text in done.stdout
