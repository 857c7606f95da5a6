"""Updates are collected, and read on the host together."""

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
        ledger = UpdateBuffer()
        ledger.add(done(kind(1.5), kind(2.0), kind(0.0)), update=1, epoch=1)
        ledger.add(done(kind(3.5), kind(4.0), kind(1.0)), update=2, epoch=1)
        rows.append(ledger.drain())
    assert rows[0] == rows[1]
    first, second = (entry.row for entry in rows[0])
    assert (first.update, first.loss, first.grad_norm, first.lr, first.skipped) == (1, 1.5, 2.0, 0.1, False)
    assert (second.update, second.skipped) == (2, True)


def test_batches_are_kept_only_of_what_was_skipped():
    ledger = UpdateBuffer()
    ledger.add(done(1.0, 1.0, 0.0), update=1, epoch=1)
    ledger.add(done(1.0, 1.0, 1.0), update=2, epoch=1)
    assert [entry.window for entry in ledger.drain()] == [[], [MICRO]]


def test_a_skipped_update_is_urgent_where_the_host_knows():
    ledger = UpdateBuffer()
    assert not ledger.add(done(1.0, 1.0, 0.0), update=1, epoch=1)
    assert ledger.add(done(1.0, 1.0, 1.0), update=2, epoch=1)


def test_a_finite_updates_batches_are_let_go_at_once():
    ledger = UpdateBuffer()
    ledger.add(done(1.0, 1.0, 0.0), update=1, epoch=1)
    assert ledger._pending[0][0].window == []


def test_a_window_that_counted_nothing_is_marked():
    ledger = UpdateBuffer()
    ledger.add(done(1.0, 1.0, 1.0, torch.tensor(0)), update=1, epoch=1)
    ledger.add(done(1.0, 1.0, 1.0, 3.0), update=2, epoch=1)
    assert [entry.counted for entry in ledger.drain()] == [False, True]


def test_what_is_taken_is_gone():
    ledger = UpdateBuffer()
    ledger.add(done(1.0, 1.0, 0.0), update=1, epoch=1)
    assert len(ledger.drain()) == 1
    assert ledger.drain() == []


def test_many_device_numbers_are_one_read():
    class Reads(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Reads.count += "_local_scalar_dense" in str(func)
            return func(*args, **(kwargs or {}))

    ledger = UpdateBuffer()
    with Reads():
        for update in range(50):
            ledger.add(done(torch.tensor(1.0), torch.tensor(1.0), torch.tensor(0.0)), update=update, epoch=1)
        assert len(ledger.drain()) == 50
    assert Reads.count == 0  # tolist() copies one stacked tensor, item() would be counted here
