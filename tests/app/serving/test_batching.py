"""Which requests form a batch, and what happens to the others if one fails."""

import threading

import pytest

from trueloop.app.serving.batching import Batcher, BatcherStopped, QueueFull
from trueloop.core.errors import InvalidModel


class Doubling:
    """Doubles whole numbers; fails on a negative one."""

    def __init__(self):
        self.batches, self.gate, self.entered = [], threading.Event(), threading.Event()
        self.gate.set()

    def __call__(self, samples):
        self.batches.append(list(samples))
        self.entered.set()
        assert self.gate.wait(10)
        if min(samples) < 0:
            raise InvalidModel("negative")
        return [2 * sample for sample in samples]


@pytest.fixture
def model():
    return Doubling()


@pytest.fixture
def blocked_batcher(model):
    """A batcher whose first batch, a single 0, runs until the gate is opened."""
    model.gate.clear()
    batcher = Batcher(model, max_batch=4, delay_s=0.0, max_waiting=10)
    first = batcher.submit([0])
    assert model.entered.wait(10)
    yield batcher
    model.gate.set()
    batcher.stop()
    assert first.result(0) == [0]


def test_waiting_requests_are_batched_up_to_the_maximum_in_order(model, blocked_batcher):
    requests = [[1], [2, 3], [4, 5], [6], [7, 8, 9, 10]]
    futures = [blocked_batcher.submit(samples) for samples in requests]
    assert blocked_batcher.waiting == 10
    with pytest.raises(QueueFull):
        blocked_batcher.submit([11])
    model.gate.set()
    assert [each.result(10) for each in futures] == [[2 * each for each in samples] for samples in requests]
    assert model.batches == [[0], [1, 2, 3], [4, 5, 6], [7, 8, 9, 10]]
    assert blocked_batcher.waiting == 0


def test_only_the_failing_request_of_a_batch_fails(model, blocked_batcher):
    futures = [blocked_batcher.submit([1]), blocked_batcher.submit([-1]), blocked_batcher.submit([3])]
    model.gate.set()
    assert futures[0].result(10) == [2]
    with pytest.raises(InvalidModel, match="negative"):
        futures[1].result(10)
    assert futures[2].result(10) == [6]
    assert model.batches == [[0], [1, -1, 3], [1], [-1], [3]]


def test_cancelled_requests_are_not_run(model, blocked_batcher):
    cancelled, remaining = blocked_batcher.submit([1]), blocked_batcher.submit([2])
    assert cancelled.cancel()
    model.gate.set()
    assert remaining.result(10) == [4]
    assert model.batches == [[0], [2]]


def test_an_internal_error_reaches_every_request_and_the_thread_continues():
    faults = [ZeroDivisionError()]

    def run(samples):
        if faults:
            raise faults.pop()
        return list(samples)

    batcher = Batcher(run, max_batch=4, delay_s=0.0, max_waiting=10)
    with pytest.raises(ZeroDivisionError):
        batcher.submit([1]).result(10)
    assert batcher.submit([2]).result(10) == [2]
    batcher.stop()
    with pytest.raises(BatcherStopped):
        batcher.submit([3])


def test_the_first_request_waits_for_others(model):
    batcher = Batcher(model, max_batch=3, delay_s=60.0, max_waiting=10)
    futures = [batcher.submit([each]) for each in (1, 2, 3)]
    assert [each.result(10) for each in futures] == [[2], [4], [6]], "a full batch does not wait"
    assert model.batches == [[1, 2, 3]]
    last = batcher.submit([4])
    batcher.stop()
    assert last.result(0) == [8], "after stop, a request does not wait for others"
