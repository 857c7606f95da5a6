"""Combine requests that arrive close together into batches, and run these on one thread, in order of arrival."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

from trueloop.core.errors import TrueloopError

if TYPE_CHECKING:
    from trueloop.export.exported_model import Outputs
    from trueloop.export.request_samples import Sample


class QueueFull(Exception):
    """The queue of waiting samples is full."""


class BatcherStopped(Exception):
    """The batcher accepts no more requests."""


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """One request."""

    samples: Sequence[Sample]
    arrived_s: float = field(default_factory=perf_counter)
    future: Future[list[Outputs]] = field(default_factory=Future["list[Outputs]"])


class Batcher:
    """Combines waiting requests into batches, and runs the batches.

    Args:
        run: function from samples to outputs in the same order; it is called on only one thread.
        max_batch: maximum number of samples per batch.
        delay_s: seconds that the first request of a batch waits for others.
        max_waiting: maximum number of waiting samples; further requests are refused.
        on_batch: function that is called with the number of samples and the seconds of each batch.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Sample]], list[Outputs]],
        *,
        max_batch: int,
        delay_s: float,
        max_waiting: int,
        on_batch: Callable[[int, float], None] = lambda samples, seconds: None,
    ) -> None:
        self._run, self._on_batch = run, on_batch
        self._max_batch, self._delay_s, self._max_waiting = max_batch, delay_s, max_waiting
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._waiting = 0
        self._thread = threading.Thread(target=self._run_jobs, name="model", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Number of waiting samples."""
        return self._waiting

    def submit(self, samples: Sequence[Sample]) -> Future[list[Outputs]]:
        """Queue samples and return a future of their outputs; cancelling it in time removes the samples.

        Raises:
            QueueFull: too many samples are waiting.
            BatcherStopped: `stop` was called.
        """
        job = _Job(samples)
        with self._changed:
            if self._stopping:
                raise BatcherStopped
            if self._waiting + len(samples) > self._max_waiting:
                raise QueueFull
            self._jobs.append(job)
            self._waiting += len(samples)
            self._changed.notify()
        return job.future

    def stop(self) -> None:
        """Answer all waiting requests, refuse further requests, and end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def _run_jobs(self) -> None:
        while batch := self._next_batch():
            jobs = [job for job in batch if job.future.set_running_or_notify_cancel()]
            if jobs:
                self._answer(jobs)

    def _next_batch(self) -> list[_Job]:
        """Wait for requests and return the next batch; empty after `stop`."""
        with self._changed:
            while not self._jobs and not self._stopping:
                self._changed.wait()
            if not self._jobs:
                return []
            deadline_s = self._jobs[0].arrived_s + self._delay_s
            while self._waiting < self._max_batch and not self._stopping:
                remaining_s = deadline_s - perf_counter()
                if remaining_s <= 0 or not self._changed.wait(remaining_s):
                    break
            batch = [self._jobs.popleft()]
            total = len(batch[0].samples)
            while self._jobs and total + len(self._jobs[0].samples) <= self._max_batch:
                batch.append(self._jobs.popleft())
                total += len(batch[-1].samples)
            self._waiting -= total
            return batch

    def _answer(self, jobs: Sequence[_Job]) -> None:
        samples = [sample for job in jobs for sample in job.samples]
        start_s = perf_counter()
        try:
            outputs = self._run(samples)
        except TrueloopError as error:
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
                return
            for job in jobs:  # run each request alone, so that only the failing one gets the error
                self._answer([job])
            return
        except BaseException as error:  # noqa: BLE001 - every request must be answered, and the thread must continue
            for job in jobs:
                job.future.set_exception(error)
            return
        self._on_batch(len(samples), perf_counter() - start_s)
        remaining = iter(outputs)
        for job in jobs:
            job.future.set_result([next(remaining) for _ in job.samples])
