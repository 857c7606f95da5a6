"""A window of micro-batches equals one batch, for any split and any count."""

from __future__ import annotations

import copy
import sys
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from trueloop.core.errors import InvalidData, InvalidModel
from trueloop.core.protocols import MicroBatch
from trueloop.training.assemble import assemble
from trueloop.training.config import OptimConfig, ScheduleConfig, TrainConfig
from trueloop.training.loop import train_epoch
from trueloop.training.objective import Loss

IGNORED = -100


def network(seed: int = 0, inputs: int = 6, classes: int = 4) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, classes)).double()


def classification(size: int, seed: int = 0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(size, 6, generator=g).double(), torch.randint(0, 4, (size,), generator=g)


def tokens(size: int, seed: int = 0):
    """[N, T] features with a different number of counted targets in every row."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 5, 6, generator=g).double()
    y = torch.randint(0, 4, (size, 5), generator=g)
    lengths = torch.randint(1, 6, (size, 1), generator=g)
    return x, y.masked_fill(torch.arange(5) >= lengths, IGNORED)


def trajectory(parts, source, epochs: int = 2) -> torch.Tensor:
    """Weights after every update, [updates, P]."""
    collected, update = [], 0
    for epoch in range(epochs):
        for _ in train_epoch(parts, source.epoch(epoch, 0), update=update):
            update += 1
            collected.append(torch.cat([p.detach().flatten() for p in parts.model.parameters()]))
    return torch.stack(collected)


def deviation(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(((a - b).norm(dim=1) / b.norm(dim=1)).max())


class ByToken(nn.Module):
    """Scores [B, T, C] -> [B, C, T], as cross-entropy takes them."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x).transpose(1, 2)


@given(
    size=st.integers(1, 40),
    effective=st.integers(1, 17),
    micro=st.integers(1, 17),
    optimizer=st.sampled_from(["sgd", "adamw", "rmsprop", "adagrad", "adam"]),
    clip=st.sampled_from([None, 0.05, 10.0]),
)
@settings(max_examples=60)
def test_a_window_equals_one_batch(windowed, build, size, effective, micro, optimizer, clip):
    config = TrainConfig(effective_batch=effective, clip=clip, optim=OptimConfig(name=optimizer, lr=0.05))
    data = classification(size)
    weights = torch.tensor([0.2, 1.0, 3.0, 0.7], dtype=torch.float64)
    one_batch, parts = [
        trajectory(
            build(network(), nn.CrossEntropyLoss(weight=weights), config), windowed(*data, effective=effective, micro=b)
        )
        for b in (effective, micro)
    ]
    assert one_batch.shape == parts.shape
    assert deviation(parts, one_batch) < 1e-12


@given(size=st.integers(1, 24), effective=st.integers(1, 9), micro=st.integers(1, 9), data_seed=st.integers(0, 99))
@settings(max_examples=40)
def test_a_mean_over_tokens_equals_that_of_one_batch(windowed, build, size, effective, micro, data_seed):
    config = TrainConfig(effective_batch=effective, optim=OptimConfig(name="sgd", lr=0.1))
    data = tokens(size, data_seed)
    one_batch, parts = [
        trajectory(
            build(ByToken(network()), nn.CrossEntropyLoss(ignore_index=IGNORED), config),
            windowed(*data, effective=effective, micro=b),
        )
        for b in (effective, micro)
    ]
    assert deviation(parts, one_batch) < 1e-12


def test_the_loop_equals_a_plain_pytorch_loop(windowed, build):
    x, y = classification(44)
    lr, epochs, per_epoch = 0.05, 3, 5
    config = TrainConfig(
        epochs=epochs, effective_batch=10, clip=0.5, optim=OptimConfig(name="sgd", lr=lr, weight_decay=0.0)
    )
    actual = trajectory(build(network(), nn.CrossEntropyLoss(), config, updates_per_epoch=per_epoch),
                      windowed(x, y, effective=10, micro=3), epochs)  # fmt: skip

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * per_epoch)
    byhand = []
    for _ in range(epochs):
        for start in range(0, 44, 10):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[start : start + 10]), y[start : start + 10]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            byhand.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    # clip_grad_norm_ divides by (norm + 1e-6), which is the only difference
    assert deviation(actual, torch.stack(byhand)) < 1e-5


def test_results_are_those_of_the_window(windowed, build):
    x, y = classification(10)
    model = network()
    before = copy.deepcopy(model)
    parts = build(model, nn.CrossEntropyLoss(), TrainConfig(effective_batch=10, clip=1e-3))
    results = next(train_epoch(parts, windowed(x, y, effective=10, micro=3).epoch(0, 0), update=0))
    loss = nn.functional.cross_entropy(before(x), y)
    loss.backward()
    norm = torch.cat([p.grad.flatten() for p in before.parameters()]).norm()
    assert float(results.loss) == pytest.approx(loss.item(), rel=1e-12)
    assert results.outcome.norm == pytest.approx(float(norm), rel=1e-12)  # before clipping
    assert results.examples == 10
    assert len(results.window) == 4
    assert results.outcome.skipped == 0


def test_skipped_windows_are_not_read_and_the_rate_continues(windowed, build):
    config = TrainConfig(epochs=1, schedule=ScheduleConfig(name="linear"))
    parts = build(network(), nn.CrossEntropyLoss(), config, updates_per_epoch=5)
    source = windowed(*classification(10), effective=2)
    results = list(train_epoch(parts, source.epoch(0, 3), update=3))
    assert [step.window[0].indices for step in results] == [(6, 7), (8, 9)]
    assert [step.rates[0] for step in results] == pytest.approx([1e-3 * 2 / 5, 1e-3 * 1 / 5])


def two_terms(model, batch):
    """Return a mean over items and a mean over counted tokens."""
    x, y = batch
    scores = model(x)
    main = nn.functional.cross_entropy(scores, y.clamp(min=0), reduction="sum")
    counted = y >= 0
    aux = (scores.square().mean(1) * counted).sum()
    return [
        Loss(sum=main, count=len(y), name="main"),
        Loss(sum=aux, count=counted.sum(), weight=0.3, name="aux"),
    ]


def two_terms_by_hand(model, x, y):
    scores = model(x)
    counted = y >= 0
    return nn.functional.cross_entropy(scores, y.clamp(min=0)) + 0.3 * (
        (scores.square().mean(1) * counted).sum() / counted.sum()
    )


def ragged_targets(size):
    x, y = classification(size)
    return x, y.masked_fill(torch.arange(size) % 3 == 0, -1)


def test_several_losses_with_declared_counts_equal_one_batch(windowed, build):
    x, y = ragged_targets(22)
    config = TrainConfig(effective_batch=8, optim=OptimConfig(name="sgd", lr=0.1))
    counts = lambda batch: (len(batch[1]), int((batch[1] >= 0).sum()))  # noqa: E731
    parts = trajectory(build(network(), two_terms, config, counts=counts), windowed(x, y, effective=8, micro=3))
    one_batch = trajectory(build(network(), two_terms, config), windowed(x, y, effective=8))
    assert deviation(parts, one_batch) < 1e-12

    model = network()
    two_terms_by_hand(model, x[:8], y[:8]).backward()
    by_hand = torch.cat([p.grad.flatten() for p in model.parameters()])
    actual = build(network(), two_terms, config, counts=counts)
    next(train_epoch(actual, windowed(x[:8], y[:8], effective=8, micro=3).epoch(0, 0), update=0))
    gradient = torch.cat([p.grad.flatten() for p in actual.model.parameters()])
    torch.testing.assert_close(gradient * max(1.0, float(by_hand.norm())), by_hand, rtol=1e-12, atol=1e-15)


def test_several_losses_whose_proportions_change_are_refused(windowed, build):
    parts = build(network(), two_terms, TrainConfig(effective_batch=8))
    with pytest.raises(InvalidModel, match="Declare the counts"):
        next(train_epoch(parts, windowed(*ragged_targets(8), effective=8, micro=3).epoch(0, 0), update=0))


def test_a_sum_reduced_loss_is_not_divided(windowed, build):
    x, y = classification(12)
    model = network()
    nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
    parts = build(network(), nn.CrossEntropyLoss(reduction="sum"), TrainConfig(effective_batch=12, clip=None))
    next(train_epoch(parts, windowed(x, y, effective=12, micro=5).epoch(0, 0), update=0))
    for actual, hand in zip(parts.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(actual.grad, hand.grad, rtol=1e-12, atol=0)


def test_a_loss_that_does_not_depend_on_the_model_is_refused(windowed, build):
    parts = build(network(), lambda model, batch: batch[0].mean(), TrainConfig(effective_batch=4))
    with pytest.raises(InvalidModel, match="does not depend"):
        next(train_epoch(parts, windowed(*classification(4), effective=4).epoch(0, 0), update=0))


def test_a_loss_of_another_parameter_is_refused(windowed, build):
    stranger = torch.zeros((), requires_grad=True)
    parts = build(network(), lambda model, batch: batch[0].mean() * stranger, TrainConfig(effective_batch=4))
    with pytest.raises(InvalidModel, match="No parameter"):
        next(train_epoch(parts, windowed(*classification(4), effective=4).epoch(0, 0), update=0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x, y + 7), "out of range"),
        (lambda x, y: (x[:, :5], y), "cannot take this batch"),
        (lambda x, y: (x.float(), y), "cannot take this batch"),
        (lambda x, y: (x, y, y), r"needs batches \(inputs, target\)"),
        (lambda x, y: (x, y[:, None]), "target has shape"),
    ],
)
def test_errors_of_wrong_batches_are_explained(windowed, build, change, message):
    parts = build(network(), nn.CrossEntropyLoss(), TrainConfig(effective_batch=4))
    with pytest.raises(InvalidData, match=message):
        next(train_epoch(parts, windowed(*change(*classification(4)), effective=4).epoch(0, 0), update=0))


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_broadcast_target_is_refused(windowed, build):
    x, _ = classification(4)
    parts = build(network(classes=1), nn.MSELoss(), TrainConfig(effective_batch=4))
    with pytest.raises(InvalidData, match="broadcast"):
        next(train_epoch(parts, windowed(x, torch.randn(4).double(), effective=4).epoch(0, 0), update=0))


def test_an_error_in_the_users_code_keeps_its_traceback(windowed, build):
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 4).double()

        def forward(self, x):
            return self.layer(x)[undefined]  # noqa: F821

    parts = build(Broken(), nn.CrossEntropyLoss(), TrainConfig(effective_batch=4))
    with pytest.raises(NameError, match="undefined"):
        next(train_epoch(parts, windowed(*classification(4), effective=4).epoch(0, 0), update=0))


class Convolved(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.norm, self.head = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.norm(self.convolution(x)).relu().mean((2, 3)))


@pytest.mark.parametrize("more", [{}, {"ema": 0.9}, {"precision": "fp16"}, {"clip": None}], ids=str)
@pytest.mark.parametrize("name", ["adamw", "adam"])  # torch has no other fused kernel for a device without memory
def test_no_window_waits_for_the_gpu(more, name, monkeypatch):
    """On the meta device tensors have no values, so reading one raises an error."""
    meta = torch.device("meta")
    optimizers = sys.modules[torch.optim.Optimizer.__module__]  # torch.optim deletes the name
    monkeypatch.setattr(optimizers, "_get_fused_kernels_supported_devices", lambda: ["meta"])
    monkeypatch.setattr("trueloop.training.optimizers.parameter_groups.FUSED_DEVICES", {name: frozenset({"meta"})})
    monkeypatch.setattr("trueloop.training.assemble.autocast", lambda *_: nullcontext())
    config = TrainConfig(effective_batch=8, optim=OptimConfig(name=name), **more)
    parts = assemble(Convolved(), nn.CrossEntropyLoss(ignore_index=2), config, device=meta, updates_per_epoch=4)
    images, classes = torch.randn(4, 1, 8, 8), torch.randint(0, 4, (4,))
    micros = (MicroBatch((images, classes), index % 2 == 1, None) for index in range(6))
    results = list(train_epoch(parts, micros, update=1))  # the very first window checks its labels, which are values
    assert len(results) == 3
    assert all(each.outcome.skipped.device == meta for each in results)
