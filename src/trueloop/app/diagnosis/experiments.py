"""Run the experiments: each change under two seeds, side by side, until the budget is spent or Ctrl-C comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from trueloop.sanitizer.experiments.fork_server import ForkServer, RerunHandle

SEEDS: Final = (0, 1)


class LossCurve(NamedTuple):
    """One loss of an experiment, in the program's units."""

    kind: str
    """The loss: "nll", "mse"; "" = the value that the program called `backward` on."""
    location: str
    """The line of the backward pass, "/path/train.py:14"."""
    updates: Sequence[int]
    values: Sequence[float]
    constant: float | None
    """Loss of the best answer that does not depend on the input; None = not known."""


class ChangeFacts(NamedTuple):
    """What is said of a change."""

    key: str
    title: str
    advice: str = ""
    location: str = ""
    after: str = ""
    """Key of the change that this one goes further than."""


class Trial(NamedTuple):
    """A change that was tried under every seed."""

    change: ChangeFacts
    curves: Sequence[Sequence[LossCurve]]
    """The losses, for each seed."""
    ended: Sequence[str]
    """Why the program ended before all updates, for each seed; "" = it did not."""


class Trials(NamedTuple):
    """All that was tried."""

    baseline: Trial | None
    """The unchanged program; None = it could not be run again."""
    changes: Sequence[Trial]
    one_batch: Sequence[Trial]
    """One batch again and again, at several rates; empty = not tried."""
    random_labels: dict[str, Trial]
    """Key of a change -> the change together with labels that are random, but the same for the same input."""
    possible: int
    """Number of changes that apply to the program."""
    stopped: str
    """Why not all was tried: "the budget is spent", "interrupted"; "" = all was tried."""
    failed: str
    """Why the program could not be run again; "" = it could."""
    optimizers: int = 1
    """Number of optimizers that the program has at its first backward pass."""


class _Seed:
    """The reruns of the program with one seed."""

    def __init__(self, server: ForkServer, seed: int) -> None:
        self._server, self._seed = server, seed
        self._handle: RerunHandle = server.start(seed)
        self._forks, self._used = True, False
        self.facts: dict[str, Any] = {}
        self.failed = ""

    def wait_ready(self, deadline_s: float) -> None:
        """Wait for the first backward pass of the program."""
        message = self._handle.receive(deadline_s) or {"failed": "its process was ended"}
        self.failed = message.get("failed", "")
        self.facts, self._forks = message.get("ready", {}), message.get("forks", True)

    def send(self, order: dict[str, Any], deadline_s: float) -> None:
        """Start an experiment."""
        if self._used and not self._forks:
            self._handle.close()
            self._handle = self._server.start(self._seed)
            self.wait_ready(deadline_s)
        self._used = True
        self._handle.send(order)

    def result(self, deadline_s: float) -> tuple[Sequence[LossCurve], str]:
        """Wait for the end of an experiment; return its losses, and why it ended early."""
        found: tuple[Sequence[LossCurve], str] = (), "its process was ended"
        while (message := self._handle.receive(deadline_s)) is not None:
            if "result" in message:
                found = [LossCurve(**each) for each in message["result"]], message["ended"]
                if not self._forks:
                    break
            if "done" in message or "failed" in message:
                break
        return found

    def close(self) -> None:
        self._handle.close()


class ExperimentRunner:
    """Runs experiments until the budget is spent.

    Args:
        server: starts the reruns.
        updates: length of each experiment.
        budget_s: time for all experiments; one that has begun is ended.
        on_trial: called with the title of each experiment before it starts, and with the number of those to come.
        on_result: called with each experiment when it has ended.
    """

    def __init__(
        self,
        server: ForkServer,
        *,
        updates: int,
        budget_s: float,
        on_trial: Callable[[str, int], None],
        on_result: Callable[[Trial], None] = lambda trial: None,
    ) -> None:
        self._updates, self._on_trial, self._on_result = updates, on_trial, on_result
        self._deadline_s = time.monotonic() + budget_s
        self._seeds = [_Seed(server, seed) for seed in SEEDS]
        self._number = 0

    def run(
        self,
        *,
        promising: Callable[[Trial, Sequence[Trial]], Sequence[str]],
        is_worse: Callable[[Trial, Trial], bool],
    ) -> Trials:
        """Try everything that applies to the program.

        Args:
            promising: returns the keys of those changes that seem to help, given the baseline and the changes.
            is_worse: returns whether a change raises the loss, given the baseline and the change.
        """
        baseline, changes, one_batch, random_labels = None, list[Trial](), list[Trial](), dict[str, Trial]()
        possible, stopped, failed = list[ChangeFacts](), "", ""
        try:
            failed = self._wait_ready()
            if not failed:
                facts = self._seeds[0].facts
                possible = [ChangeFacts(**each) for each in facts["changes"]]
                baseline = self._try(ChangeFacts("", "the unchanged script"), len(possible) + 1)
                if facts["one_batch"]:
                    one_batch.append(self._try(ChangeFacts("one batch", "one batch only"), len(possible)))
                for index, change in enumerate(possible):
                    weaker = next((each for each in changes if each.change.key == change.after), None)
                    if not change.after or (weaker is not None and not is_worse(baseline, weaker)):
                        changes.append(self._try(change, len(possible) - index))
                if facts["one_batch"] and not promising(baseline, changes):
                    one_batch.extend(self._one_batch_at_other_rates())
                if facts["random_labels"]:
                    for key in promising(baseline, changes):
                        random_labels[key] = self._try(ChangeFacts(key, "random labels"), 0, also="random labels")
        except TimeoutError:
            stopped = "the budget is spent"
        except KeyboardInterrupt:
            stopped = "interrupted"
        finally:
            self._close()
        optimizers = self._seeds[0].facts.get("optimizers", 1) if self._seeds else 1
        return Trials(baseline, changes, one_batch, random_labels, len(possible), stopped, failed, optimizers)

    def _wait_ready(self) -> str:
        """Wait for all reruns, and leave out those that fail; return the reason if all do."""
        self._on_trial("running the script again, up to its first update", 0)
        for seed in self._seeds:
            seed.wait_ready(self._deadline_s)
        failed = self._seeds[0].failed
        for seed in [each for each in self._seeds if each.failed]:
            seed.close()
            self._seeds.remove(seed)
        return "" if self._seeds else failed or "its process was ended"

    def _one_batch_at_other_rates(self) -> Iterable[Trial]:
        for key in ("one batch 10.0", "one batch 0.1"):
            yield self._try(ChangeFacts(key, "one batch only"), 0)

    def _try(self, change: ChangeFacts, left: int, also: str = "") -> Trial:
        self._on_trial(change.title, left)
        self._number += 1
        keys = [key for key in (change.key, also) if key]
        order = {"changes": keys, "updates": self._updates, "name": f"experiment-{self._number}"}
        for seed in self._seeds:
            seed.send(order, self._deadline_s)
        results = [seed.result(self._deadline_s) for seed in self._seeds]
        trial = Trial(change, [curves for curves, _ in results], [ended for _, ended in results])
        self._on_result(trial)
        return trial

    def _close(self) -> None:
        for seed in self._seeds:
            seed.close()
