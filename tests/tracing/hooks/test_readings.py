"""Losses that the program reads itself, and the numbers of updates that are not fully traced."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trueloop.sanitizer.watch import Watch
from trueloop.tracing.attach import Attachment
from trueloop.tracing.events import LossesRead, NumbersSampled
from trueloop.tracing.hooks import all_hooks, readings
from trueloop.tracing.sampling import INITIAL_UPDATES

X, Y = torch.arange(8.0).reshape(8, 1), torch.arange(8.0).reshape(8, 1) * 2


class Run:
    """A linear model, one update at a time."""

    def __init__(self, updates=0):
        self.model = nn.Linear(1, 1)
        nn.init.zeros_(self.model.weight)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        for _ in range(updates):
            self.update()

    def loss(self):
        return nn.functional.mse_loss(self.model(X), Y)

    def update(self, loss=None):
        self.optimizer.zero_grad()
        loss = self.loss() if loss is None else loss
        loss.backward()
        self.optimizer.step()
        return loss


def after(loss):
    loss.backward()
    return loss.item()


def before(loss):
    value = loss.item()
    loss.backward()
    return value


def as_float(loss):
    loss.backward()
    return float(loss)


def detached(loss):
    loss.backward()
    return loss.detach().item()


def formatted(loss):
    loss.backward()
    return float(f"{loss:.9f}")


def divided(loss):
    value = loss.item()
    (loss / 4).backward()
    return value


def scaled(loss):
    (torch.amp.GradScaler("cpu", init_scale=8.0).scale(loss) / 2).backward()
    return loss.item()


def twice(loss):
    loss.item()
    loss.backward()
    return loss.item()


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad:UserWarning")
@pytest.mark.parametrize("read", [after, before, as_float, detached, formatted, divided, scaled, twice])
def test_a_loss_is_recorded_as_the_program_reads_it(read):
    run = Run()
    values = []
    with Watch(()) as watch:
        for _ in range(3):
            run.optimizer.zero_grad()
            values.append(read(run.loss()))
            run.optimizer.step()
    series = watch.report().series["loss_read"]
    assert series.updates == (0, 1, 2)
    assert series.values == pytest.approx(values, abs=1e-8)
    assert not watch.report().problems


def metric(run):
    loss = run.update()
    (run.model(X) - Y).abs().max().item()
    return loss


def held_out(run):
    loss = run.update()
    with torch.no_grad():
        run.loss().item()
    return loss


def with_graph(run):
    run.loss().item()
    return run.update()


def part(run):
    first = run.loss()
    first.item()
    return run.update(first + run.loss())


@pytest.mark.parametrize("read", [metric, held_out, with_graph, part])
def test_other_numbers_are_not_losses(read):
    run = Run()
    with Watch(()) as watch:
        for _ in range(3):
            read(run)
    assert "loss_read" not in watch.report().series


def test_every_loss_of_a_long_run_is_recorded_and_the_last_update_too():
    run, values = Run(), []
    with Watch(()) as watch:
        for _ in range(700):
            values.append(run.update().item())
    report = watch.report()
    assert report.updates_traced < 700
    assert report.series["loss_read"].updates == tuple(range(700))
    assert report.series["loss_read"].values == tuple(values)
    for name in ("loss", "grad_norm", "lr"):
        assert report.series[name].updates[-1] == 699, name
    assert report.series["loss"].values[-1] == values[-1]
    gradients = torch.cat([each.grad.flatten() for each in run.model.parameters()])
    assert report.series["grad_norm"].values[-1] == pytest.approx(gradients.norm().item())


def test_an_update_is_sampled_once_a_second_without_full_tracing(monkeypatch):
    now_s = 0.0
    monkeypatch.setattr(readings, "perf_counter", lambda: now_s)
    attachment, events = Attachment(all_hooks), []
    receive = events.append
    attachment.attach(receive)
    run = Run(updates=INITIAL_UPDATES + 2)
    assert not attachment.stream.full_tracing
    for now_s in (0.9, 1.1, 1.2, 2.0, 2.2):  # noqa: B007 - the clock reads it
        run.update()
    now_s = 2.3
    run.update().item()
    sampled = [each for each in events if type(each) is NumbersSampled]
    assert [each.step - INITIAL_UPDATES for each in sampled] == [3, 6]
    assert [each.update for each in sampled] == [each.step for each in sampled]
    for finish in attachment.stream.on_detach:
        finish()
    attachment.detach(receive)
    assert not attachment.stream.problems
    assert {each.learning_rates for each in sampled} == {(1e-4,)}
    assert {len(each.gradient_norms) for each in sampled} == {2}
    assert [each.losses[0][0] - INITIAL_UPDATES for each in events if type(each) is LossesRead] == [7]
    assert [each.step - INITIAL_UPDATES for each in events if type(each) is NumbersSampled] == [3, 6, 7]


def test_reading_is_restored_and_costs_no_graph():
    originals = torch.Tensor.item, torch.Tensor.__float__
    with Watch(()):
        assert torch.Tensor.item is not originals[0]
        assert torch.tensor(3).item() == 3
        assert torch.tensor([2.5]).item() == 2.5
        assert float(torch.tensor(1)) == 1.0
        with pytest.raises(RuntimeError, match="cannot be converted to Scalar"):
            torch.ones(2).item()
    assert (torch.Tensor.item, torch.Tensor.__float__) == originals
