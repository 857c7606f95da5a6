"""The order of experiments, and what is kept when they end early."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trueloop.app.diagnosis.experiments import ExperimentRunner, Trials

CHANGES = ["inputs", "rate 10", "rate 100"]


class Handle:
    """A rerun whose experiments end at once."""

    def __init__(self, orders: list[list[str]], end: Callable[[list[str]], None]) -> None:
        self._orders, self._end = orders, end
        self._replies: list[dict[str, Any]] = []
        self.closed = False
        changes = [{"key": key, "title": key, "after": "rate 10" if key == "rate 100" else ""} for key in CHANGES]
        facts = {"changes": changes, "one_batch": True, "random_labels": True}
        self._replies.append({"ready": facts, "forks": True})

    def send(self, order: dict[str, Any]) -> None:
        self._orders.append(order["changes"])
        self._end(order["changes"])
        curve = {"kind": "mse", "location": "", "updates": [0, 1, 2], "values": [1.0, 1.0, 1.0], "constant": 1.0}
        self._replies += [{"result": [curve], "ended": ""}, {"done": 0}]

    def receive(self, deadline_s: float) -> dict[str, Any] | None:
        return self._replies.pop(0) if self._replies else None

    def close(self) -> None:
        self.closed = True


class Server:
    """Starts such reruns."""

    def __init__(self, end: Callable[[list[str]], None] = lambda keys: None) -> None:
        self.orders: list[list[str]] = []
        self.handles: list[Handle] = []
        self._end = end

    def start(self, seed: int) -> Handle:
        self.handles.append(Handle(self.orders, self._end))
        return self.handles[-1]

    def run(self, *, promising: tuple[str, ...] = (), worse: bool = False) -> Trials:
        runner = ExperimentRunner(self, updates=10, budget_s=60, on_trial=lambda title, left: None)  # pyright: ignore[reportArgumentType]
        trials = runner.run(promising=lambda baseline, changes: promising, is_worse=lambda baseline, change: worse)
        assert all(handle.closed for handle in self.handles)
        return trials


def tried(trials: Trials) -> list[str]:
    return [each.change.key for each in trials.changes]


def test_every_change_is_tried_under_both_seeds():
    server = Server()
    trials = server.run()
    assert tried(trials) == CHANGES
    assert server.orders[:4] == [[], [], ["one batch"], ["one batch"]]
    assert [each.change.key for each in trials.one_batch] == ["one batch", "one batch 10.0", "one batch 0.1"]
    assert not trials.stopped


def test_a_rate_beyond_one_that_raises_the_loss_is_not_tried():
    assert tried(Server().run(worse=True)) == ["inputs", "rate 10"]


def test_promising_changes_are_tried_with_random_labels():
    server = Server()
    assert list(server.run(promising=("inputs",)).random_labels) == ["inputs"]
    assert server.orders[-1] == ["inputs", "random labels"]


@pytest.mark.parametrize(
    ("error", "stopped"), [(KeyboardInterrupt, "interrupted"), (TimeoutError, "the budget is spent")]
)
def test_what_was_tried_before_the_end_is_kept(error: type[BaseException], stopped: str):
    def end(keys: list[str]) -> None:
        if keys == ["rate 10"]:
            raise error

    trials = Server(end).run()
    assert tried(trials) == ["inputs"]
    assert trials.stopped == stopped
    assert trials.baseline is not None
