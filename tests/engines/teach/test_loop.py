"""The teaching loop trains rightly, in the order it says."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

from trueloop.engines.teach.loop import Lesson, teaching_loop
from trueloop.ground.teaching import Operation


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_learns(seed):
    torch.manual_seed(seed)
    loop = teaching_loop(Lesson(seed=seed, epochs=12))
    list(loop.run())
    assert sum(loop.history[-5:]) < 0.6 * sum(loop.history[:5])
    assert loop.evaluations[-1] > 0.7
    assert all(type(loss) is float for loss in loop.history)


def test_it_does_what_a_loop_written_out_does():
    lesson = Lesson(dropout=0.0)
    loop = teaching_loop(lesson)
    operations = Counter(loop.run())
    assert operations == {
        Operation.FORWARD: 33, Operation.LOSS: 33, Operation.BACKWARD: 33, Operation.CLIP: 18, Operation.UPDATE: 18,
        Operation.SCHEDULE: 18, Operation.CLEAR: 18, Operation.EVALUATE: 3,
    }  # fmt: skip

    plain = teaching_loop(lesson)
    model, optimizer = plain.model, plain.optimizer
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=18)
    optimizer.zero_grad()
    for epoch in range(3):
        model.train()
        batches = list(plain.batches(epoch))
        for place, (x, y) in enumerate(batches):
            size = 1 if place == 10 else 2
            (nn.functional.cross_entropy(model(x), y) / size).backward()
            if place % 2 or place == 10:
                nn.utils.clip_grad_norm_(model.parameters(), 5.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    for mine, theirs in zip(loop.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_an_operation_can_be_left_out():
    loop = teaching_loop(Lesson(epochs=1))
    loop.leave_out(Operation.CLEAR)
    list(loop.run())
    assert all(parameter.grad is not None for parameter in loop.model.parameters())


def test_a_short_window_can_be_dropped():
    loop = teaching_loop(Lesson(epochs=1))
    loop.step_short_window = False
    assert Counter(loop.run())[Operation.UPDATE] == 5
