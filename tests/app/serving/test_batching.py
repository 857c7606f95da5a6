"""Who goes together, and what happens to the others when one fails."""

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
def held(model):
    """A batcher that holds its first batch, of one 0, until the gate is opened."""
    model.gate.clear()
    batcher = Batcher(model, max_batch=4, delay_s=0.0, max_waiting=10)
    first = batcher.submit([0])
    assert model.entered.wait(10)
    yield batcher
    model.gate.set()
    batcher.stop()
    assert first.result(0) == [0]


def test_those_that_wait_go_together_up_to_the_most_and_in_order(model, held):
    given = [[1], [2, 3], [4, 5], [6], [7, 8, 9, 10]]
    asked = [held.submit(samples) for samples in given]
    assert held.waiting == 10
    with pytest.raises(QueueFull):
        held.submit([11])
    model.gate.set()
    assert [each.result(10) for each in asked] == [[2 * each for each in samples] for samples in given]
    assert model.batches == [[0], [1, 2, 3], [4, 5, 6], [7, 8, 9, 10]]
    assert held.waiting == 0


def test_one_that_fails_fails_alone(model, held):
    asked = [held.submit([1]), held.submit([-1]), held.submit([3])]
    model.gate.set()
    assert asked[0].result(10) == [2]
    with pytest.raises(InvalidModel, match="negative"):
        asked[1].result(10)
    assert asked[2].result(10) == [6]
    assert model.batches == [[0], [1, -1, 3], [1], [-1], [3]]


def test_what_is_cancelled_is_not_computed(model, held):
    gone, kept = held.submit([1]), held.submit([2])
    assert gone.cancel()
    model.gate.set()
    assert kept.result(10) == [4]
    assert model.batches == [[0], [2]]


def test_a_fault_of_ours_reaches_everybody_and_the_thread_goes_on():
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


def test_the_first_waits_for_others(model):
    batcher = Batcher(model, max_batch=3, delay_s=60.0, max_waiting=10)
    asked = [batcher.submit([each]) for each in (1, 2, 3)]
    assert [each.result(10) for each in asked] == [[2], [4], [6]], "a full batch does not wait"
    assert model.batches == [[1, 2, 3]]
    last = batcher.submit([4])
    batcher.stop()
    assert last.result(0) == [8], "at the end nothing waits for others"
