"""A log as JSON lines: append-only, readable with any tool, exact because every batch carries its payload.

What a crash left half written at the end (a torn line, some lines of a batch) is cut off on opening; anything
unreadable before that is an error, not a guess. One process writes (``flock``), any number read; where a
stream stands is found by reading the file.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

from kvbus.errors import CaptureError, LogError, LogLockedError
from kvbus.lines import LINE_BYTES_MAX, LineReader, encode_line
from kvbus.log import Entry, PositionedEntry, Received, SourceId, Standing
from sinks.ledger import Ledger, Standings

COPY_BYTES: Final = 1 << 20
BEGINNING: Final = b'{"source":'
"""How every line begins."""


class JsonlLog:
    """A ``Sink`` on the file at ``path``, made (mode 0600) if it is not there.

    Raises ``LogLockedError`` when another process writes it, ``LogError`` when it is not such a log.
    """

    def __init__(self, path: str | os.PathLike[str], /, *, flush_s: float = 0.25) -> None:
        self.path = Path(path)
        self._flush_s = flush_s
        self._flushed = time.monotonic()
        self._file = _writing(self.path)
        self._failure: OSError | None = None
        try:
            standings = Standings()
            end = 0
            for upto, entry in _whole_entries(self._file, self.path):
                standings.add(entry)
                end = upto
            self._file.truncate(end)
            self._file.seek(end)
            self._standings = standings.result()
            self._ledger = Ledger(standings.next_seqs)
        except BaseException:
            self._file.close()
            raise

    def standings(self) -> Mapping[SourceId, Standing]:
        """Where each source stood when the log was opened."""
        return self._standings

    def write(self, entries: Sequence[Entry], /) -> None:
        """Append ``entries``; raises ``LogError`` and takes none of them when one cannot be."""
        self._check()
        self._ledger.admit(entries)
        try:
            for entry in entries:
                self._file.write(encode_line(entry, payload=True))
        except OSError as error:
            raise self._failed(error) from error
        if time.monotonic() - self._flushed >= self._flush_s:
            self.flush()

    def flush(self) -> None:
        """Return when everything written is on the disk."""
        self._check()
        self._flushed = time.monotonic()
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Flush and let go."""
        if self._file.closed:
            return
        try:
            if self._failure is None:
                self.flush()
        finally:
            try:
                self._file.close()
            except OSError as error:  # what could not be written before still cannot
                if self._failure is None:
                    raise self._failed(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check(self) -> None:
        if self._file.closed:
            raise LogError(f"{self.path} is closed", next_step="Open it again.")
        if self._failure is not None:
            raise self._failed(self._failure) from self._failure

    def _failed(self, error: OSError) -> LogError:
        self._failure = error
        return LogError(
            f"{self.path} could not be written: {error.strerror}",
            next_step="Make room or mend the disk, then start again: what was flushed is kept.",
        )


class JsonlReader:
    """A ``LogReader`` on the whole entries the file holds now; what is appended later is not seen.

    It keeps hold of the file, so as to know it again each time it is read.
    """

    def __init__(self, path: Path, /) -> None:
        self.path = path
        self._file = _reading(path)
        try:
            self._end = self._count = 0
            for end, entry in _whole_entries(self._file, path):
                self._count += isinstance(entry, Received)
                self._end = end
        except BaseException:
            self._file.close()
            raise

    def batch_count(self) -> int:
        return self._count

    def entries(self, first: int = 0, last: int | None = None) -> Iterator[PositionedEntry]:
        """Entries in order, read from the file's beginning each time. Raises ``LogError`` where the file is
        gone, or another by now.
        """
        upto = self._count if last is None or last >= self._count else last
        position = 0
        with _reading(self.path) as file:
            if not os.path.sameopenfile(file.fileno(), self._file.fileno()):
                raise LogError(f"{self.path} is another file by now", next_step="Open the log again.")
            for end, entry in _whole_entries(file, self.path):
                if position > upto or end > self._end:
                    return
                if position >= first:
                    yield PositionedEntry(position, entry)
                position += isinstance(entry, Received)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def open_log(path: str | os.PathLike[str], /) -> JsonlReader:
    """Open the JSON lines log at ``path`` for reading. Raises ``LogError``."""
    return JsonlReader(Path(path))


def _reading(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise _unreadable(path, error) from error


def _writing(path: Path) -> BinaryIO:
    try:
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unreadable(path, error) from error
    file = os.fdopen(number, "r+b", buffering=COPY_BYTES)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise LogLockedError(
            f"{path} is being written by another process", next_step="Stop it, or write into another file."
        ) from error
    return file


def _whole_entries(file: BinaryIO, path: Path) -> Iterator[tuple[int, Entry]]:
    """The entries from the beginning, each with the offset of its end; a half one at the end is left out."""
    reader = LineReader(str(path))
    file.seek(0)
    end = 0
    while line := file.readline(LINE_BYTES_MAX):
        end += len(line)
        try:
            entry = reader.read(line)
        except CaptureError as error:
            if _may_be_torn(line, is_first=end == len(line)):
                return
            raise LogError(
                error.problem, next_step="Mend or move the file; nothing in it was changed."
            ) from error
        if entry is not None:
            yield end, entry


def _may_be_torn(line: bytes, *, is_first: bool) -> bool:
    """Whether a crash can have left ``line``, the last of a file. With nothing of ours before it, it must
    begin as ours do: the file may be somebody else's.
    """
    if line.endswith(b"\n") or len(line) >= LINE_BYTES_MAX:
        return False
    return not is_first or line.startswith(BEGINNING[: len(line)])


def _unreadable(path: Path, error: OSError) -> LogError:
    return LogError(
        f"{path} cannot be opened: {error.strerror}", next_step="Check its name, folder and rights."
    )
