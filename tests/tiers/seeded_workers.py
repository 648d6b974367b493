"""Workers without threads: a task runs when the test says so, and which one is a matter of a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from tiers.storage.block_work import Done


class SeededWorkers:
    """Runs any of the waiting tasks. With a seed of None: the oldest one, and all of them before a take."""

    def __init__(self, seed: int | None = None) -> None:
        self.outstanding = 0
        self.waiting: list[Callable[[], Done]] = []
        self.taken: list[Done] = []
        """Everything that was ever handed out, for who wants to look."""
        self._random = random.Random(seed)
        self._is_eager = seed is None
        self._done: list[Done] = []

    def submit(self, tasks: Iterable[Callable[[], Done]], *, is_load: bool) -> None:  # noqa: ARG002
        more = list(tasks)
        self.waiting += more
        self.outstanding += len(more)

    def step(self) -> None:
        """Run one task, if there is any."""
        if self.waiting:
            self.run(0 if self._is_eager else self._random.randrange(len(self.waiting)))

    def run(self, number: int) -> None:
        """Run this one of the waiting tasks."""
        self._done.append(self.waiting.pop(number)())

    def take(self) -> list[Done]:
        while self._is_eager and self.waiting:
            self.step()
        done, self._done = self._done, []
        self.outstanding -= len(done)
        self.taken += done
        return done

    def wait(self) -> list[Done]:
        if not self._done:
            self.step()
        return self.take()

    def shutdown(self) -> None:
        self.waiting.clear()
        self._done.clear()
        self.outstanding = 0
