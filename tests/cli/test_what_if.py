"""``kvbus run --what-if``: lines, a table, and curves."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.curves import Curves, curves, draw, dress, longest, looks, the_figure
from cli.main import app
from tiers.serving.prompt import prompts
from tiers.serving.stack_spec import StackSpec, TierSpec
from tiers.serving.synthetic import synthetic
from tiers.serving.what_if import what_if
from tiers.serving.workload import RunCount

AXES = {"gpu-blocks", "cpu.blocks", "policy", "memory.max_blocks"}
WANTED = ("run", "--limit", "60", "--seed", "4", "--what-if", "gpu-blocks=64|128,policy=lru|arc")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.cpu_count", lambda: 1)


def test_a_line_a_run() -> None:
    """Each line has the sizes, the rate and the hits of each tier: those that the engine counts."""
    done = CliRunner().invoke(app, [*WANTED, "--tier", "cpu:blocks=90", "--tier", "memory", "--json"])
    assert done.exit_code == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["gpu-blocks"], line["policy"]) for line in lines] == [
        (64, "lru"),
        (64, "arc"),
        (128, "lru"),
        (128, "arc"),
    ]
    some = list(prompts(synthetic(4, requests=60), 16))
    for line in lines:
        spec = StackSpec(
            line["gpu-blocks"],
            line["cpu.blocks"],
            policy=line["policy"],
            behind=(TierSpec("memory", "memory"),),
        )
        assert list(line["hits"].values()) == what_if(spec, some).hits
        assert line.keys() == AXES | {"requests", "block_refs", "misses", "mismatches", "hit_rate", "hits"}
        assert line["hit_rate"] == sum(line["hits"].values()) / line["block_refs"]
        assert line["misses"] == line["block_refs"] - sum(line["hits"].values())
        assert (line["memory.max_blocks"], line["requests"]) == (None, 60)


def test_a_table_for_people() -> None:
    """A row a run, a column an axis, then the rates."""
    done = CliRunner().invoke(app, WANTED)
    assert done.exit_code == 0, done.stderr
    assert all(word in done.stdout for word in ("gpu-blocks", "policy", "hit rate", "gpu", "cpu"))
    assert done.stdout.count("arc") == 2


@pytest.mark.parametrize(("name", "begins"), [("c.svg", b"<?xml"), ("c.png", b"\x89PNG")])
def test_curves_are_drawn(name: str, begins: bytes, tmp_path: Path) -> None:
    """The picture is of the kind that its name says, an older one of ours is replaced, and the numbers are
    printed as well.
    """
    draw({"gpu-blocks": [1, 2]}, [(StackSpec(1, 5), counted(1))], tmp_path / name)
    older = (tmp_path / name).read_bytes()
    done = CliRunner().invoke(app, [*WANTED, "--plot", name, "--json"])
    assert done.exit_code == 0, done.stderr
    drawn = (tmp_path / name).read_bytes()
    assert drawn.startswith(begins)
    assert drawn != older
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert len(done.stdout.splitlines()) == 4
    assert f"drew {name}" in done.stderr


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is tried: the extra, and what works without it."""
    for module in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, module, None)
    done = CliRunner().invoke(app, [*WANTED, "--plot", "c.png"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "kvbus[plot]" in done.stderr


def test_publishing_nothing_is_said() -> None:
    """Flags that would have no effect are refused, not ignored."""
    moving = ("--record", "x.duckdb", "--publish", "ipc://x", "--speed", "max", "--device", "auto")
    done = CliRunner().invoke(app, [*WANTED, *moving])
    assert done.exit_code == 2
    for flag in moving[::2]:
        assert f"{flag}: expected without --what-if" in done.stderr


def test_a_speed_in_the_settings_does_not_concern_it(tmp_path: Path) -> None:
    """It is for runs; nobody said it of this one."""
    (tmp_path / "kvbus.toml").write_text('speed = "10"\n')
    assert CliRunner().invoke(app, [*WANTED, "--json"]).exit_code == 0


@pytest.mark.parametrize(
    ("plot", "says"),
    [
        ("no/such/c.png", "cannot write no/such/c.png: No such file"),
        ("folder.png", "folder.png exists already"),
        ("s/c.png", "cannot write s/c.png: Not a directory"),
        ("theirs.png", "theirs.png exists already, and is no plot of kvbus"),
        ("theirs.svg", "theirs.svg exists already, and is no plot of kvbus"),
    ],
)
def test_where_no_plot_can_be_is_found_before_anything_is_tried(plot: str, says: str, tmp_path: Path) -> None:
    """Minutes of work do not end in a place that cannot be written to, or holds somebody else's picture."""
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "s").touch()
    (tmp_path / "theirs.png").write_bytes(b"\x89PNG\r\n")
    (tmp_path / "theirs.svg").write_text("<?xml version='1.0'?><svg/>")
    done = CliRunner().invoke(app, [*WANTED, "--plot", plot])
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"--plot: {says}" in done.stderr
    assert (tmp_path / "theirs.png").read_bytes() == b"\x89PNG\r\n"


@pytest.mark.parametrize("content", [None, b"\x00\xff\x00", b""])
def test_a_trace_that_cannot_be_read_is_told_once(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read before any process begins: one message, whatever number of processes there would be."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    if content is not None:
        (tmp_path / "t.jsonl").write_bytes(content)
    done = CliRunner().invoke(app, ["run", "--trace", "t.jsonl", "--what-if", "gpu-blocks=64|128", "--json"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.count("kvbus: ") == 1


def test_a_trace_can_come_through_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What can be read only once is read once, for every process."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    line = b'{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}\n'
    writer = threading.Thread(target=lambda: pipe.write_bytes(line * 3))
    writer.start()
    done = CliRunner().invoke(app, ["run", "--trace", "pipe", "--what-if", "gpu-blocks=64|128", "--json"])
    writer.join()
    assert done.exit_code == 0, done.stderr
    assert [json.loads(line)["hit_rate"] for line in done.stdout.splitlines()] == [4 / 6, 4 / 6]


def counted(*hits: int) -> RunCount:
    return RunCount(block_refs=10, misses=10 - sum(hits), hits=list(hits))


def test_a_curve_for_each_combination_of_the_other_axes() -> None:
    """The axis with most numbers runs along the bottom; rates are in percent."""
    axes: dict[str, list[int | str]] = {"policy": ["lru", "arc", "mine"], "gpu-blocks": [1, 2]}
    found = [
        (StackSpec(blocks, 5, policy=policy), counted(blocks, blocks if policy == "arc" else 0))
        for policy in ("lru", "arc")
        for blocks in (1, 2)
    ]
    assert longest(axes) == "gpu-blocks"
    assert curves(found, "gpu-blocks", ["policy"], axes=axes) == {
        ("lru",): [(1, 10.0), (2, 20.0)],
        ("arc",): [(1, 20.0), (2, 40.0)],
    }


def test_words_along_the_bottom_stand_in_their_order() -> None:
    """Where nothing but policies is tried, each has its place."""
    axes: dict[str, list[int | str]] = {"policy": ["lru", "arc"]}
    found = [(StackSpec(1, 1, policy="lru"), counted(1)), (StackSpec(1, 1, policy="arc"), counted(2))]
    assert curves(found, "policy", [], axes=axes) == {(): [(0, 10.0), (1, 20.0)]}


def test_a_policy_is_a_line_style_and_the_rest_a_colour() -> None:
    """Curves of one policy have one style, curves of one size one colour."""
    drawn: Curves = {(size, policy): [(1, 1.0)] for size in (64, 128, None) for policy in ("lru", "arc")}
    assert looks(drawn, ["cpu.blocks", "policy"]) == [
        ("-", 0),
        ("--", 0),
        ("-", 1),
        ("--", 1),
        ("-", 2),
        ("--", 2),
    ]
    assert looks({(): []}, []) == [("-", 0)]


def test_the_sizes_that_were_tried_are_on_the_axis() -> None:
    """Ticks are the values as they may be written, no powers of two in between."""
    panel = the_figure()().subplots()
    dress(panel, "gpu-blocks", [1_000, 2_000, 4_000, 5])
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["1k", "2k", "4k", "5"]
    assert list(panel.get_xticks(minor=True)) == []
