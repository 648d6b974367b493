"""Threads that do a tier's blocking work, those that load before those that store.

Somebody waits for a load, nobody for a store. Some threads therefore take from the loads first, the others
from the stores first, and each helps with the other kind when its own has nothing: stores cannot hold loads
up, and loads cannot starve stores. What a task gives comes back to the one thread that submits and takes.
Nothing here knows what a task does; it owns the threads and the two queues.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Final, Generic, Protocol, TypeVar

from tiers.argument import whole_number
from tiers.errors import TierContractError

T = TypeVar("T")

THREADS_MAX: Final = 1_024
"""Of a kind. More gain nothing, and a process full of threads can hardly be ended."""


class Workers(Protocol[T]):
    """Something that runs tasks and gives back what they return. For one thread's use."""

    outstanding: int
    """Tasks submitted whose results were not yet taken."""

    def submit(self, tasks: Iterable[Callable[[], T]], *, is_load: bool) -> None:
        """Have ``tasks`` done, in any order and at the same time."""
        ...

    def take(self) -> list[T]:
        """The results that are there now, without waiting. Raises what a task raised."""
        ...

    def wait(self) -> list[T]:
        """At least one result, if any is outstanding; blocks until it is there. Raises what a task raised."""
        ...

    def shutdown(self) -> None:
        """Drop what has not begun, wait for what has. Results are not had any more."""
        ...


class ReadPriorityPool(Generic[T]):
    """``read_threads`` prefer loads, ``write_threads`` prefer stores; they live from the first task until
    ``shutdown``. Raises ``TierValueError`` for fewer than one of a kind, or more than 1 024.
    """

    def __init__(self, read_threads: int, write_threads: int, *, name: str = "tier") -> None:
        whole_number("read_threads", read_threads, at_least=1, at_most=THREADS_MAX)
        whole_number("write_threads", write_threads, at_least=1, at_most=THREADS_MAX)
        self.outstanding = 0
        self._loads: deque[Callable[[], T]] = deque()
        self._stores: deque[Callable[[], T]] = deque()
        self._something_to_do = threading.Condition()
        self._is_closed = False
        self._ended: SimpleQueue[Callable[[], T]] = SimpleQueue()
        own_first = [(self._loads, self._stores)] * read_threads + [
            (self._stores, self._loads)
        ] * write_threads
        self._unstarted = [
            threading.Thread(target=self._work, args=queues, name=f"{name}-{n}", daemon=True)
            for n, queues in enumerate(own_first)
        ]
        self._started: list[threading.Thread] = []

    def submit(self, tasks: Iterable[Callable[[], T]], *, is_load: bool) -> None:
        """Queue ``tasks``. ``TierContractError`` after ``shutdown``."""
        more = list(tasks)
        with self._something_to_do:
            if self._is_closed:
                raise TierContractError("the tier was shut down", next_step="Submit nothing after shutdown.")
            (self._loads if is_load else self._stores).extend(more)
            self._something_to_do.notify(len(more))
        self.outstanding += len(more)
        self._start()

    def _start(self) -> None:
        while self._unstarted:
            thread = self._unstarted.pop()
            thread.start()
            self._started.append(thread)

    def take(self) -> list[T]:
        taken: list[T] = []
        while not self._ended.empty():
            taken.append(self._next())
        return taken

    def wait(self) -> list[T]:
        return [self._next(), *self.take()] if self.outstanding else []

    def _next(self) -> T:
        result = self._ended.get()
        self.outstanding -= 1
        return result()

    def shutdown(self) -> None:
        """Safe to call twice."""
        with self._something_to_do:
            self._is_closed = True
            self._something_to_do.notify_all()
        for thread in self._started:
            thread.join()
        self._started.clear()
        self._forget_results()
        self.outstanding = 0

    def _forget_results(self) -> None:
        while True:
            try:
                self._ended.get_nowait()
            except Empty:
                return

    def _work(self, first: deque[Callable[[], T]], second: deque[Callable[[], T]]) -> None:
        """One thread's life."""
        while True:
            with self._something_to_do:
                while not (self._is_closed or first or second):
                    self._something_to_do.wait()
                if self._is_closed:
                    return
                task = (first or second).popleft()
            self._ended.put(outcome_of(task))


def outcome_of(task: Callable[[], T]) -> Callable[[], T]:
    """Run ``task``; what is returned gives its result, or raises its error, on the thread that asks."""
    try:
        result = task()
    except BaseException as error:
        failure = error

        def fail() -> T:
            raise failure

        return fail
    return lambda: result
