"""Updates are buffered, and their numbers are copied to the CPU together."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trueloop.core.protocols import MicroBatch
from trueloop.training.loop import UpdateResult
from trueloop.training.update import Outcome
from trueloop.training.update_buffer import UpdateBuffer

MICRO = MicroBatch(torch.zeros(2), True, (0, 1))


def done(loss, norm, skipped, divisor=2.0) -> UpdateResult:
    return UpdateResult(loss, Outcome(norm, skipped), divisor, (0.1,), 2, 0.01, 0.02, [MICRO])


def test_numbers_and_tensors_become_the_same_rows():
    rows = []
    for kind in (float, torch.tensor):
        buffer = UpdateBuffer()
        buffer.add(done(kind(1.5), kind(2.0), kind(0.0)), update=1, epoch=1)
        buffer.add(done(kind(3.5), kind(4.0), kind(1.0)), update=2, epoch=1)
        rows.append(buffer.drain())
    assert rows[0] == rows[1]
    first, second = (entry.row for entry in rows[0])
    assert (first.update, first.loss, first.grad_norm, first.lr, first.skipped) == (1, 1.5, 2.0, 0.1, False)
    assert (second.update, second.skipped) == (2, True)


def test_only_batches_of_skipped_updates_are_stored():
    buffer = UpdateBuffer()
    buffer.add(done(1.0, 1.0, 0.0), update=1, epoch=1)
    buffer.add(done(1.0, 1.0, 1.0), update=2, epoch=1)
    assert [entry.window for entry in buffer.drain()] == [[], [MICRO]]


def test_a_skipped_update_is_urgent_if_known_on_the_cpu():
    buffer = UpdateBuffer()
    assert not buffer.add(done(1.0, 1.0, 0.0), update=1, epoch=1)
    assert buffer.add(done(1.0, 1.0, 1.0), update=2, epoch=1)


def test_batches_of_a_finite_update_are_released_immediately():
    buffer = UpdateBuffer()
    buffer.add(done(1.0, 1.0, 0.0), update=1, epoch=1)
    assert buffer._pending[0][0].window == []


def test_a_window_with_count_zero_is_marked():
    buffer = UpdateBuffer()
    buffer.add(done(1.0, 1.0, 1.0, torch.tensor(0)), update=1, epoch=1)
    buffer.add(done(1.0, 1.0, 1.0, 3.0), update=2, epoch=1)
    assert [entry.has_targets for entry in buffer.drain()] == [False, True]


def test_drained_updates_are_removed():
    buffer = UpdateBuffer()
    buffer.add(done(1.0, 1.0, 0.0), update=1, epoch=1)
    assert len(buffer.drain()) == 1
    assert buffer.drain() == []


def test_many_gpu_numbers_need_one_copy():
    class Reads(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Reads.count += "_local_scalar_dense" in str(func)
            return func(*args, **(kwargs or {}))

    buffer = UpdateBuffer()
    with Reads():
        for update in range(50):
            buffer.add(done(torch.tensor(1.0), torch.tensor(1.0), torch.tensor(0.0)), update=update, epoch=1)
        assert len(buffer.drain()) == 50
    assert Reads.count == 0  # tolist() copies one stacked tensor, item() would be counted here
