"""``kvbus import``: captures, JSON lines and Dynamo recordings into a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Final, Literal

import typer
from msgspec import Struct

from cli import logs, options
from cli.exits import pipe_may_close
from cli.json_line import json_line
from cli.printer import NOTICE_LINE
from cli.record import Output
from cli.render import say
from kvbus.arrival import Arrival
from kvbus.capture import is_capture_head, read_capture, unreadable
from kvbus.config import faulty
from kvbus.dialects import DialectReader
from kvbus.dynamo import is_recording_line, read_recording
from kvbus.errors import CaptureError
from kvbus.known import Known
from kvbus.lines import LINE_BYTES_MAX, read_entries
from kvbus.log import Entry
from kvbus.pipeline import ingest, keep
from kvbus.sink import Sink
from kvbus.wire import Live, ReplayEnd, ReplayItem, read_live, read_reply

Form = Literal["capture", "lines", "recording"]

EPILOG: Final = """\
What a file is, is told from its content. Each is read to its end before the first entry goes in: a
torn file adds nothing. What the log has already is passed over. A Dynamo recording has no sequence
numbers, so its completeness stays UNKNOWN.

Examples:

\b
  kvbus import engine.frames -o day.duckdb
  kvbus import live.frames replay.frames --source engine-0 -o day.duckdb
  kvbus import day.jsonl -o day.duckdb             # as tail --json and export write it
  kvbus import dynamo-recording.jsonl -o day.duckdb"""

Files = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help=".frames captures, JSON lines, or recordings.")
]
Source = Annotated[
    str | None,
    typer.Option(
        "--source", metavar="NAME", help="Source name of captures and recordings. Default: the file's name."
    ),
]


class Imported(Struct, frozen=True):
    """What came of one file. ``already``: batches the log had; ``malformed``: not event messages."""

    file: str
    form: Form
    batches: int
    already: int
    lost_batches: int
    strays: int
    undecodable: int
    malformed: int


def import_(
    files: Files,
    output: Output = None,
    source: Source = None,
    as_json: options.Json = None,
    quiet: options.Quiet = None,
    config: options.Config = None,
) -> None:
    """Bring files into a log, in order and without doubles. --json: an object for each file on stdout."""
    given = options.settings(config, log=output, json=as_json, quiet=quiet)
    path = options.log_of(given)
    forms = [form_of(file) for file in files]
    if source is not None and "lines" in forms:
        raise faulty(["--source: expected only with captures and recordings; JSON lines have their sources"])
    for file, form in zip(files, forms, strict=True):
        verify(file, form, source)
    with logs.writer(path) as sink:
        # Only now: until we are the writer, another could add what we would then add again.
        known = Known(entries_of(path))
        for file, form in zip(files, forms, strict=True):
            refuse_conflict(file, form, known, source)
        for file, form in zip(files, forms, strict=True):
            done = bring(file, form, sink, known, source)
            if given.json:
                with pipe_may_close():
                    sys.stdout.write(json_line(done))
            elif not given.quiet:
                say(in_words(done))


def form_of(path: Path) -> Form:
    """What the file is, by its first bytes. Raises ``CaptureError`` when kvbus does not read it."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise CaptureError(
                f"{path} is not a file, but a pipe or a device",
                next_step="It is read more than once: write what comes out of it into a file, and name that.",
            )
        with path.open("rb") as file:
            head = file.read(4096)
            file.seek(0)
            line = file.readline(LINE_BYTES_MAX) if head.lstrip()[:1] == b"{" else b""
    except OSError as error:
        raise unreadable(path, error) from error
    if line:
        return "recording" if is_recording_line(line) else "lines"
    if is_capture_head(head) or (not head and path.suffix == ".frames"):
        return "capture"
    raise CaptureError(
        f"{path} begins with {head[:16].hex() or 'nothing'}: neither a capture nor JSON lines",
        next_step="Give .frames captures, lines as `kvbus tail --json` writes them, or Dynamo recordings.",
    )


def entries_of(path: Path) -> Iterator[Entry]:
    """What the log has, also while this process writes it. Raises ``LogError``."""
    with closing(logs.reader(path)) as reader:
        for positioned in reader.entries():
            yield positioned.entry


def name_of(path: Path, source: str | None) -> str:
    return source or path.stem


def verify(path: Path, form: Form, source: str | None) -> None:
    """Read the file to its end. Raises ``CaptureError`` for what would go wrong half way."""
    for _ in read_capture(path) if form == "capture" else entries_in(path, form, source):
        pass


def refuse_conflict(path: Path, form: Form, known: Known, source: str | None) -> None:
    """Raise ``CaptureError`` when the log has another recording under the name that this one would get."""
    if form != "recording":
        return
    for entry in entries_in(path, form, source):
        if known.conflict(entry):
            raise CaptureError(
                f"the log has another recording under {entry.source.source}",
                next_step=f"Give {path} a name of its own with --source.",
            )


def entries_in(path: Path, form: Form, source: str | None) -> Iterator[Entry]:
    """The entries of JSON lines or of a recording. Raises ``CaptureError``."""
    if form == "recording":
        return read_recording(path, source=name_of(path, source))
    return read_entries(lines_in(path), name=str(path))


def lines_in(path: Path) -> Iterator[bytes]:
    """The lines of a file without those of notices."""
    with path.open("rb") as file:
        while line := file.readline(LINE_BYTES_MAX):
            if not line.startswith(NOTICE_LINE):
                yield line


def bring(path: Path, form: Form, sink: Sink, known: Known, source: str | None) -> Imported:
    """Write what is new in a file to ``sink``. Raises ``LogError``."""
    before = known.already
    malformed = 0
    if form == "capture":
        name = name_of(path, source)

        def leave_out() -> None:
            nonlocal malformed
            malformed += 1

        progress = ingest(arrivals(path, name, known, leave_out), sink, source=name)
    else:
        progress = keep(known.fresh(entries_in(path, form, source)), sink)
    return Imported(
        file=str(path),
        form=form,
        batches=progress.batches,
        already=known.already - before,
        lost_batches=progress.lost_batches,
        strays=progress.strays,
        undecodable=progress.undecodable,
        malformed=malformed,
    )


def arrivals(path: Path, name: str, known: Known, leave_out: Callable[[], None]) -> Iterator[Arrival]:
    """The messages of a capture, live or replayed, that the log does not have."""
    reader = DialectReader()
    for record in read_capture(path):
        message = message_in(record.frames)
        if message is None:
            leave_out()
        elif isinstance(message, Live | ReplayItem) and not known.has(name, message.seq, message.payload):
            known.add(name, message.seq, message.payload)
            batch = reader.read(message.payload)
            yield Arrival(
                message.topic, message.seq, message.payload, record.received_ns, batch, reader.dialect
            )


def message_in(frames: Sequence[bytes]) -> Live | ReplayItem | ReplayEnd | None:
    """What a captured message is: live, or a client's side of a replay; None for anything else."""
    message = read_live(frames) if len(frames) == 3 and frames[0] else read_reply(frames)
    return message if isinstance(message, Live | ReplayItem | ReplayEnd) else None


def in_words(done: Imported) -> str:
    """A file's import in one line; only what there is."""
    parts = [f"{done.batches:,} batches"]
    for many, what in (
        (done.already, "already there"),
        (done.lost_batches, "lost"),
        (done.strays, "set aside"),
        (done.undecodable, "unreadable"),
        (done.malformed, "that are no event messages"),
    ):
        if many:
            parts.append(f"{many:,} {what}")
    kind = {"capture": "", "lines": "", "recording": "; completeness unknown"}[done.form]
    return f"{done.file}: {', '.join(parts)}{kind}"
