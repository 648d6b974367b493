"""Copies between a CUDA device and pinned memory, on a stream of their own.

The stream keeps the order of a direction. Each transfer first waits for what the engine has queued so far
on its own (current) stream: a store must not read a block before it is computed, a load must not be
overwritten by a zeroing queued earlier. Whoever submits lets no block be reused before the end.
"""

from __future__ import annotations

import logging

import torch

from tiers.transfer.block_copies import BlockCopies
from tiers.transfer.copier import CopyOutcome

log = logging.getLogger(__name__)


class StreamCopier:
    """One stream, and as many pairs of timing events as transfers were ever under way at once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._idle: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def begin(self, copies: BlockCopies) -> StreamOutcome:
        start, end = self._idle.pop() if self._idle else (timing_event(), timing_event())
        failure = None
        try:
            self._queue(copies, start, end)
        except Exception as error:
            log.warning("a copy of %d bytes failed: %s", copies.nbytes, error, exc_info=True)
            failure = type(error).__name__
        return StreamOutcome(self, start, end, failure)

    def _queue(self, copies: BlockCopies, start: torch.cuda.Event, end: torch.cuda.Event) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            start.record()
            try:
                copies.run()
            finally:
                self._end_at(end)  # also behind a failure: part of the copies may be queued already

    def _end_at(self, end: torch.cuda.Event) -> None:
        """Where there is no event to tell the end, wait for it: the blocks are given to others afterwards."""
        try:
            end.record()
        except RuntimeError:
            self._stream.synchronize()
            raise

    def give_back(self, start: torch.cuda.Event, end: torch.cuda.Event) -> None:
        self._idle.append((start, end))

    def shutdown(self) -> None:
        try:
            self._stream.synchronize()
        except RuntimeError as error:  # each transfer's own outcome says so too
            log.warning("copies on %s failed: %s", self.device, error)


class StreamOutcome:
    """Copies on a stream. CUDA reports trouble late: it may come up when the end is asked for."""

    def __init__(
        self, copier: StreamCopier, start: torch.cuda.Event, end: torch.cuda.Event, failure: str | None
    ) -> None:
        self._copier = copier
        self._start = start
        self._end = end
        self._failure = failure
        self._outcome: CopyOutcome | None = None

    def done(self) -> bool:
        if self._outcome is not None:
            return True
        try:
            return bool(self._end.query())  # type: ignore[no-untyped-call]
        except RuntimeError:
            return True  # ``outcome`` meets it again, and says so

    def outcome(self) -> CopyOutcome:
        if self._outcome is None:
            self._outcome = self._finish()
        return self._outcome

    def _finish(self) -> CopyOutcome:
        try:
            self._end.synchronize()
            seconds = self._start.elapsed_time(self._end) / 1000
        except RuntimeError as error:
            log.warning("a copy on %s failed: %s", self._copier.device, error)
            return CopyOutcome(0.0, self._failure or type(error).__name__)
        self._copier.give_back(self._start, self._end)
        return CopyOutcome(seconds, self._failure)


def timing_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
