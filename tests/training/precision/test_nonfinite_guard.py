"""A non-finite batch changes nothing and is reported."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from trueloop.core.errors import NotFinite
from trueloop.core.protocols import Notice, UpdatesDone
from trueloop.training.config import GuardConfig, OptimConfig, TrainConfig
from trueloop.training.fit import Fit
from trueloop.training.loop import train_epoch
from trueloop.training.precision.nonfinite_guard import Guard
from trueloop.training.update import Outcome


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


def data(bad: dict[int, float]):
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(32, 4, generator=g), torch.randint(0, 3, (32,), generator=g)
    for row, value in bad.items():
        x[row, 1] = value
    return x, y


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_weights_moments_and_batchnorm_do_not_change(windowed, build, bad):
    model = network()
    parts = build(model, nn.CrossEntropyLoss(), TrainConfig(effective_batch=8, ema=0.9, optim=OptimConfig(lr=0.1)))
    steps = train_epoch(parts, windowed(*data({11: bad}), effective=8, micro=4).epoch(0, 0), update=0)
    next(steps)
    before, average = state(model), {k: v.clone() for k, v in parts.average.state_dict().items()}
    assert next(steps).outcome.skipped == 1
    assert all(torch.equal(before[name], value) for name, value in state(model).items())
    assert all(torch.equal(average[name], value) for name, value in parts.average.state_dict().items())
    assert next(steps).outcome.skipped == 0
    assert all(value.isfinite().all() for value in model.state_dict().values())


def test_buffers_are_restored_if_the_decision_is_a_tensor():
    model = network()
    guard = Guard(model, GuardConfig())
    for skipped in (1.0, 0.0):
        guard.snapshot()
        saved = state(model)
        model(torch.full((4, 4), math.nan if skipped else 1.0))
        guard.restore_if_skipped(Outcome(torch.tensor(1.0), torch.tensor(skipped)))
        same = all(torch.equal(saved[name], value) for name, value in state(model).items())
        assert same == bool(skipped)


def run(windowed, build, reporter, config, bad) -> Fit:
    parts = build(network(), nn.CrossEntropyLoss(), config)
    source = windowed(*data(bad), effective=config.effective_batch, micro=4)
    return Fit(parts, config, source, held_out={}, metrics={}, checkpoints=None, reporters=[reporter])


def test_the_run_continues_and_reports_the_sample(windowed, build, reporter):
    fit = run(windowed, build, reporter, TrainConfig(epochs=2, effective_batch=8), {13: math.nan})
    result = fit.run(name="x", facts={})
    rows = [row for event in reporter.of(UpdatesDone) for row in event.rows]
    assert [row.skipped for row in rows] == [False, True, False, False] * 2
    assert result.skipped == 2
    notes = [note for note in reporter.of(Notice) if note.kind == "not_finite"]
    assert [note.update for note in notes] == [2, 6]
    assert notes[0].details["indices"] == [13]
    assert notes[0].details["stage"] == "batch"
    assert "dataset indices 13" in notes[0].message


def test_it_stops_after_too_many_skipped_updates_in_a_row(windowed, build, reporter):
    config = TrainConfig(epochs=5, effective_batch=8, guard=GuardConfig(max_in_a_row=3))
    fit = run(windowed, build, reporter, config, dict.fromkeys(range(32), math.nan))
    with pytest.raises(NotFinite, match="3 updates in a row") as caught:
        fit.run(name="x", facts={})
    assert "batch itself" in str(caught.value)


def test_it_stops_at_the_first_with_max_in_a_row_1(windowed, build, reporter):
    config = TrainConfig(effective_batch=8, guard=GuardConfig(max_in_a_row=1))
    with pytest.raises(NotFinite, match="update 2"):
        run(windowed, build, reporter, config, {13: math.nan}).run(name="x", facts={})


def test_finite_updates_reset_the_count(windowed, build, reporter):
    config = TrainConfig(epochs=3, effective_batch=8, guard=GuardConfig(max_in_a_row=2, locate=False))
    result = run(windowed, build, reporter, config, {1: math.nan, 17: math.nan}).run(name="x", facts={})
    assert result.skipped == 6


def test_overflows_of_the_loss_scale_do_not_count(windowed, build, reporter):
    """A huge loss overflows float16 until the loss scale is small enough; this does not count as an error."""

    class LargeLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x) * 300

    config = TrainConfig(epochs=8, effective_batch=8, precision="fp16", guard=GuardConfig(max_in_a_row=2))
    torch.manual_seed(0)
    parts = build(LargeLoss(), nn.CrossEntropyLoss(), config)
    fit = Fit(
        parts, config, windowed(*data({}), effective=8), held_out={}, metrics={}, checkpoints=None, reporters=[reporter]
    )
    result = fit.run(name="x", facts={})
    kinds = {note.kind for note in reporter.of(Notice)}
    assert result.skipped > 2
    assert kinds == {"loss_scale"}
    assert float(parts.scale.scale) < 65536


class ReplacesBuffer(nn.Module):
    """Assigns a new tensor to its buffer in every forward pass."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.layer(x - self.mean)


def test_a_replaced_buffer_is_restored(windowed, build):
    torch.manual_seed(0)
    parts = build(ReplacesBuffer(), nn.CrossEntropyLoss(), TrainConfig(effective_batch=8))
    batches = windowed(*data({11: math.nan}), effective=8).epoch(0)
    skipped = [bool(result.outcome.skipped) for result in train_epoch(parts, batches, update=0)]
    assert skipped == [False, True, False, False]
    assert parts.model.mean.isfinite().all()


def test_windows_with_count_zero_are_reported_and_do_not_stop_the_run(windowed, build, reporter):
    config = TrainConfig(epochs=3, effective_batch=8, guard=GuardConfig(max_in_a_row=1))
    x, y = data({})
    y[8:16] = -100
    parts = build(network(), nn.CrossEntropyLoss(), config)
    fit = Fit(
        parts, config, windowed(x, y, effective=8), held_out={}, metrics={}, checkpoints=None, reporters=[reporter]
    )
    assert fit.run(name="x", facts={}).skipped == 3
    assert [note.kind for note in reporter.of(Notice)] == ["nothing_counted"] * 3


def test_without_the_guard_nonfinite_gradients_are_applied(windowed, build):
    parts = build(network(), nn.CrossEntropyLoss(), TrainConfig(effective_batch=8, guard=GuardConfig(enabled=False)))
    list(train_epoch(parts, windowed(*data({11: math.nan}), effective=8).epoch(0, 0), update=0))
    assert not all(value.isfinite().all() for value in parts.model.state_dict().values())


def test_a_scalar_in_the_batch_can_be_the_culprit():
    from trueloop.core.protocols import MicroBatch
    from trueloop.training.precision.locate_nonfinite import locate_in_batches

    batch = {"x": torch.zeros(3), "temperature": torch.tensor(math.nan)}
    culprit = locate_in_batches([MicroBatch(batch, True, (0, 1, 2))])
    assert (culprit.where, culprit.indices) == ("temperature", ())


def test_a_repeated_window_gets_restored_buffers_and_generators():
    model = network()
    guard = Guard(model, GuardConfig(enabled=False))  # which only leaves undone what is skipped
    for _ in range(2):
        torch.manual_seed(5)
        guard.snapshot()
        saved, buffer = state(model), model[1].running_mean
        first = model(torch.ones(4, 4))
        model[1].running_mean = torch.zeros(8)  # the buffer is another tensor
        guard.restore()
        assert model[1].running_mean is buffer
        assert all(torch.equal(saved[name], value) for name, value in state(model).items())
        assert torch.equal(model(torch.ones(4, 4)), first)  # the same dropout mask
