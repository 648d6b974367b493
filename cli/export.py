"""``kvbus export``: a log in another form."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from cli import logs, options
from cli.exits import pipe_may_close
from cli.render import say
from cli.republish import chosen_sources
from cli.result_file import check_place, result_file
from kvbus.capture import CaptureWriter
from kvbus.config import faulty
from kvbus.log import Entry, LogReader, Received, SourceId
from kvbus.wire import live_frames

EPILOG: Final = """\
frames keeps batches exactly: topic, seq, payload, time of receipt. A capture has no place for a
source's name, so several sources become several files: day.0.frames, day.1.frames … What is no
batch (losses, strays) is left out and counted on stderr. jsonl keeps everything; parquet is the
rows, in a folder.

Examples:

\b
  kvbus export day.duckdb -o day.frames
  kvbus export day.duckdb -o day.jsonl
  kvbus export day.duckdb --format jsonl | gzip > day.jsonl.gz
  kvbus export day.duckdb -o day-parquet --format parquet"""


class Form(StrEnum):
    """What a log can be exported as."""

    FRAMES = "frames"
    JSONL = "jsonl"
    PARQUET = "parquet"


Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="PATH",
        help="Where to write; nothing there is overwritten. jsonl: default stdout.",
    ),
]
Format = Annotated[
    Form | None, typer.Option("--format", help="Default: by the name of PATH; a folder's name means parquet.")
]


def export(
    log: options.LogArgument = None,
    output: Output = None,
    form: Format = None,
    source: options.SourceFilter = None,
    config: options.Config = None,
) -> None:
    """Write a log as a capture, as JSON lines or as Parquet. Works while the log is being recorded to."""
    given = options.settings(config, log=log)
    chosen = form or form_of(output)
    if output is None and chosen is not Form.JSONL:
        raise faulty(["-o: expected a path to write to"])
    if output is not None:
        check_place(output)
    with closing(logs.reader(options.log_of(given))) as reader:
        if source:
            chosen_sources(reader, source)
        if chosen is Form.PARQUET:
            assert output is not None
            to_parquet(reader, output, source or [])
        elif chosen is Form.FRAMES:
            assert output is not None
            to_frames(reader, output, source or [])
        else:
            to_jsonl(reader, output, source or [])


def form_of(output: Path | None) -> Form:
    """The form that a path's name asks for. Raises ``ConfigError`` when it asks for none."""
    if output is None or logs.is_jsonl(output):
        return Form.JSONL
    if output.suffix == ".frames":
        return Form.FRAMES
    if output.suffix in ("", ".parquet"):
        return Form.PARQUET
    raise faulty(
        [f"-o {output}: the name does not say in which form; give --format frames, jsonl or parquet"]
    )


def entries_of(reader: LogReader, names: Sequence[str]) -> Iterator[Entry]:
    """The entries of these sources (none named: of all), in log order."""
    for positioned in reader.entries():
        if not names or positioned.entry.source.source in names:
            yield positioned.entry


def to_frames(reader: LogReader, output: Path, names: Sequence[str]) -> None:
    """One capture, or one for each source. Raises ``CaptureError``, ``ConfigError``, ``ResultFileError``."""
    paths = frame_paths(output, chosen_sources(reader, names))
    left_out = written = 0
    with ExitStack() as stack:
        drafts = {path: stack.enter_context(result_file(path)) for path in sorted(set(paths.values()))}
        writers = {
            path: stack.enter_context(CaptureWriter(draft, name=str(path))) for path, draft in drafts.items()
        }
        for entry in entries_of(reader, names):
            if isinstance(entry, Received):
                frames = live_frames(entry.source.topic, entry.seq, entry.payload)
                writers[paths[entry.source]].write(entry.received_ns, frames)
                written += 1
            else:
                left_out += 1
    for path in writers:
        held = sorted({source.source for source, its in paths.items() if its == path})
        say(f"{path}: {', '.join(held)}")
    say(f"wrote {written:,} batches; {left_out:,} losses, strays and epoch marks have no place in a capture")


def frame_paths(output: Path, sources: Sequence[SourceId]) -> Mapping[SourceId, Path]:
    """Which file each stream goes to: one holds topics and ranks apart, but not names and instances."""
    groups = sorted({(source.source, source.instance) for source in sources})
    if len(groups) <= 1:
        return dict.fromkeys(sources, output)
    numbered = {
        group: output.with_name(f"{output.stem}.{number}{output.suffix}")
        for number, group in enumerate(groups)
    }
    return {source: numbered[source.source, source.instance] for source in sources}


def to_jsonl(reader: LogReader, output: Path | None, names: Sequence[str]) -> None:
    """JSON lines, as ``tail --json`` prints them. Raises ``ResultFileError``."""
    from kvbus.lines import encode_line

    lines = (encode_line(entry, payload=True) for entry in entries_of(reader, names))
    if output is None:
        with pipe_may_close():
            sys.stdout.buffer.writelines(lines)
            sys.stdout.buffer.flush()
        return
    with result_file(output) as draft, draft.open("xb") as file:
        file.writelines(lines)


def to_parquet(reader: LogReader, output: Path, names: Sequence[str]) -> None:
    """Parquet files in a new folder."""
    from sinks.parquet import export as write

    write(entries_of(reader, names), output)
