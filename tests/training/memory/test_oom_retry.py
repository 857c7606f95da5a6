"""A window that runs out of memory is repeated in smaller pieces, with the same update."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from trueloop.core.errors import OutOfMemory
from trueloop.core.protocols import Notice, UpdatesDone
from trueloop.training.checkpoint.checkpoints import CheckpointFolder
from trueloop.training.config import GuardConfig, OptimConfig, TrainConfig
from trueloop.training.distributed.processes import Processes
from trueloop.training.evaluation.evaluate import evaluate
from trueloop.training.fit import Fit
from trueloop.training.loop import train_epoch
from trueloop.training.memory.oom_retry import OutOfMemoryRetry
from trueloop.training.precision.nonfinite_guard import Guard

CONFIG = TrainConfig(epochs=2, effective_batch=12, clip=None, optim=OptimConfig(name="sgd", lr=0.1))


class LimitedMemory(nn.Module):
    """Takes at most ``room`` rows at a time, from its call number ``after`` on; draws masks and counts in a buffer."""

    def __init__(self, room: int, *, after: int = 0, in_backward: bool = False, message: str = "", drop: float = 0.0):
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(6, 4).double()
        self.dropout = nn.Dropout(drop)
        self.register_buffer("seen", torch.zeros(()))
        self.room, self.after, self.in_backward, self.message = room, after, in_backward, message
        self.calls: list[int] = []
        self.graphs: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += len(x)
        self.calls.append(len(x))
        out = self.dropout(self.layer(x)).tanh()
        self.graphs.append(weakref.ref(out))
        if len(x) > self.room and len(self.calls) > self.after:
            if not self.in_backward:
                self._full()
            out.register_hook(lambda _: self._full())
        return out

    def _full(self) -> None:
        full = torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB.")
        self.raised = RuntimeError(self.message) if self.message else full  # stored, as loggers store the last error
        raise self.raised


def data(size: int = 30):
    g = torch.Generator().manual_seed(0)
    return torch.randn(size, 6, generator=g).double(), torch.randint(0, 4, (size,), generator=g)


def trained(
    build: Any, windowed: Any, model: nn.Module, micro: int | None = None, config: TrainConfig = CONFIG, **given: Any
):
    """Weights after every update, and the assembled parts."""
    parts = build(model, given.pop("objective", nn.CrossEntropyLoss()), config, **given)
    torch.manual_seed(1)
    collected = []
    for result in train_epoch(parts, windowed(*data(), effective=12, micro=micro).epoch(0), update=0):
        collected.append((parts.model.layer.weight.detach().clone(), result.examples))
    return collected, parts


WORDS = (
    "[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."
)


@pytest.mark.parametrize("message", ["", WORDS])
@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_a_retry_equals_a_run_with_the_smaller_micro_batch(
    build: Any, windowed: Any, in_backward: bool, message: str, drop: float
):
    model = LimitedMemory(3, in_backward=in_backward, message=message, drop=drop)
    halved, parts = trained(build, windowed, model)
    expected, other = trained(build, windowed, LimitedMemory(99, drop=drop), micro=3)
    assert all(torch.equal(a, b) and m == n for (a, m), (b, n) in zip(halved, expected, strict=True))
    assert [examples for _, examples in halved] == [12, 12, 6]
    assert model.calls[:3] == [12, 6, 3]  # a window that did not fit is repeated from its start until it fits
    assert model.calls.count(12) == 1  # the limit is kept
    assert torch.equal(parts.model.seen, other.model.seen)  # buffers are restored after failures
    (results,) = parts.oom_retry.drain_notices()
    assert (results.update, results.before, results.after) == (1, 12, 3)
    assert parts.oom_retry.drain_notices() == []


def test_a_window_that_fails_in_its_middle_restarts(build: Any, windowed: Any):
    halved, parts = trained(build, windowed, LimitedMemory(2, after=4), micro=4)
    expected, _ = trained(build, windowed, LimitedMemory(99), micro=4)
    cuts = trained(build, windowed, LimitedMemory(99), micro=2)[0]
    assert torch.equal(halved[0][0], expected[0][0])  # the first window fitted
    assert torch.allclose(halved[2][0], cuts[2][0], rtol=0, atol=1e-14)
    assert parts.oom_retry.drain_notices()[0].update == 2
    assert parts.model.calls == [4, 4, 4, 4, 4, *[2] * 6, *[2] * 3]


def test_declared_counts_and_several_terms_are_retried(build: Any, windowed: Any):
    def two(model: nn.Module, batch: Any) -> Any:
        x, y = batch
        out = model(x)
        from trueloop.training.objective import Loss

        counted = (y > 0).double()
        first = Loss(sum=nn.functional.cross_entropy(out, y, reduction="sum"), count=float(len(y)))
        return [first, Loss(sum=(out.square().sum(1) * counted).sum(), count=counted.sum(), weight=0.3)]

    counts = lambda batch: (float(len(batch[1])), float((batch[1] > 0).sum()))  # noqa: E731
    halved, _ = trained(build, windowed, LimitedMemory(5), objective=two, counts=counts)
    expected, _ = trained(build, windowed, LimitedMemory(99), objective=two, counts=counts)
    assert all(torch.allclose(a, b, rtol=0, atol=1e-13) for (a, _), (b, _) in zip(halved, expected, strict=True))


def test_the_failed_graph_is_freed_before_the_retry(build: Any, windowed: Any):
    model = LimitedMemory(6)
    alive: list[int] = []
    build_again = model.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        alive.append(sum(graph() is not None for graph in model.graphs))
        return build_again(x)

    model.forward = forward  # type: ignore[method-assign]
    gc.disable()
    try:
        trained(build, windowed, model)
    finally:
        gc.enable()
    assert alive == [0] * len(alive)


def test_one_example_that_does_not_fit_ends_the_run(build: Any, windowed: Any):
    with pytest.raises(OutOfMemory, match=r"micro-batch of 1 example,.*tensor \[1, 6\] float64") as caught:
        trained(build, windowed, LimitedMemory(0))
    assert "recompute" in caught.value.fix
    assert "228 bytes" in caught.value.why


@pytest.mark.parametrize(
    ("model", "config", "message"),
    [
        (LimitedMemory(3), replace(CONFIG, out_of_memory="stop"), 'out_of_memory is "stop"'),
        (nn.Sequential(nn.BatchNorm1d(6).double(), LimitedMemory(3)), CONFIG, "BatchNorm layers"),
    ],
)
def test_a_retry_that_would_change_the_training_is_refused(
    build: Any, windowed: Any, model: nn.Module, config: TrainConfig, message: str
):
    with pytest.raises(OutOfMemory, match=message):
        trained(build, windowed, model, config=config)


def test_several_processes_neither_halve_nor_split(windowed: Any):
    model = LimitedMemory(3)
    guard = Guard(model, GuardConfig())
    halving = OutOfMemoryRetry(model, guard, Processes(0, 2, torch.device("cpu")), torch.device("cpu"), enabled=True)
    halving.load_state_dict({"max_micro_batch": 2})  # of a run that has been one process
    micros = windowed(*data(4), effective=4).epoch(0)
    collected: list[int] = []

    def gather(pieces: Any) -> Any:
        collected.extend(len(piece.data[0]) for piece in pieces)
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(OutOfMemory, match="other processes"):
        halving.run_window(micros, gather, update=1)
    assert collected == [4]
    assert halving.state_dict() == {"max_micro_batch": 2}


def test_a_batch_that_cannot_be_split_is_an_error(build: Any, windowed: Any):
    parts = build(LimitedMemory(3), lambda model, batch: model(batch["x"]).square().mean(), CONFIG)
    batch = type(next(windowed(*data(), effective=12).epoch(0)))({"x": data(12)[0], "tokens": 40}, True, range(12))
    with pytest.raises(OutOfMemory, match=r"\['tokens'\] is the number 40"):
        next(train_epoch(parts, iter([batch]), update=0))


def test_a_later_batch_that_cannot_be_split_is_used_unsplit(build: Any, windowed: Any):
    model = LimitedMemory(8)
    parts = build(model, lambda model, batch: model(batch[0]).square().mean(), CONFIG)
    first = next(windowed(*data(), effective=12).epoch(0))
    second = first._replace(data=(data(7)[0], 40), indices=range(7))
    parts.oom_retry.load_state_dict({"max_micro_batch": 6})
    assert len(list(train_epoch(parts, iter([first, second]), update=0))) == 2
    assert model.calls == [6, 6, 7]


def test_other_errors_and_those_of_the_loader_are_raised(build: Any, windowed: Any):
    parts = build(LimitedMemory(99), nn.CrossEntropyLoss(), CONFIG)

    def loader():
        yield next(windowed(*data(), effective=12, micro=4).epoch(0))
        raise RuntimeError(WORDS)  # the stream has ended, so its window cannot be repeated

    with pytest.raises(RuntimeError, match="enforce fail"):
        list(train_epoch(parts, loader(), update=0))


def test_a_retry_without_the_guard(build: Any, windowed: Any):
    off = replace(CONFIG, guard=GuardConfig(enabled=False))
    _, parts = trained(build, windowed, LimitedMemory(3), config=off)
    assert int(parts.model.seen) == 30


def fit_model(
    build: Any, windowed: Any, model: nn.Module, path: Any, reporter: Any, *, epochs: int, config: TrainConfig = CONFIG
):
    config = replace(config, epochs=epochs, schedule=replace(config.schedule, horizon_epochs=2))
    fit = Fit(
        build(model, nn.CrossEntropyLoss(), config, updates_per_epoch=3), config, windowed(*data(), effective=12),
        held_out={"val": [data(4)]}, metrics={}, reporters=[reporter],
        checkpoints=CheckpointFolder(path, keep_last=2, keep_best=1, metric="val/loss", mode="min"),
    )  # fmt: skip
    torch.manual_seed(1)
    fit.resume({"micro_batch": config.micro_batch or 12})
    fit.run(name="r", facts={})
    return fit.assembly


def test_evaluation_uses_the_same_limit_with_equal_results(build: Any, windowed: Any):
    halving = build(LimitedMemory(3), nn.CrossEntropyLoss(), CONFIG).oom_retry
    batches = [data(7), {"x": data(7)[0], "tokens": 9}]
    assert halving.split_batches(batches) is batches
    halving.load_state_dict({"max_micro_batch": 3})
    pieces = list(halving.split_batches(batches))
    assert [len(piece.data[0]) for piece in pieces[:3]] == [3, 3, 1]
    assert [piece.data for piece in pieces[3:]] == batches[1:]  # cannot be split, so it is used unsplit
    model = LimitedMemory(99)
    full, cut_up = (evaluate(model, each, nn.CrossEntropyLoss()).metrics for each in (batches[:1], pieces[:3]))
    assert cut_up["loss"] == pytest.approx(full["loss"], rel=1e-14)


def test_the_limit_is_saved_and_resuming_is_bitwise_exact(build: Any, windowed: Any, tmp_path: Any, reporter: Any):
    full = fit_model(build, windowed, LimitedMemory(6, drop=0.5), tmp_path / "whole", reporter, epochs=2)
    noted = [event for event in reporter.of(Notice) if event.kind == "out_of_memory"]
    assert [(note.update, note.details["before"], note.details["after"]) for note in noted] == [(1, 12, 6)]
    assert "with a micro-batch of 12; from this update on, the micro-batch is 6" in noted[0].message
    assert sum(row.examples for event in reporter.of(UpdatesDone) for row in event.rows) == 60

    fit_model(build, windowed, LimitedMemory(6, drop=0.5), tmp_path / "parts", reporter, epochs=1)
    roomy = LimitedMemory(99, drop=0.5)  # there would be enough memory again, but the limit is part of the run
    resumed = fit_model(build, windowed, roomy, tmp_path / "parts", reporter, epochs=2)
    assert max(roomy.calls[:4]) <= 6
    assert torch.equal(full.model.layer.weight, resumed.model.layer.weight)
    assert {size for size in full.model.calls if size not in (6, 12)} == {4}  # of the evaluation
    chosen = fit_model(
        build,
        windowed,
        LimitedMemory(99),
        tmp_path / "parts",
        reporter,
        epochs=2,
        config=replace(CONFIG, micro_batch=12),
    )
    assert chosen.oom_retry.max_micro_batch == 6
    restarted = fit_model(
        build,
        windowed,
        LimitedMemory(99),
        tmp_path / "parts",
        reporter,
        epochs=2,
        config=replace(CONFIG, micro_batch=4),
    )
    assert restarted.oom_retry.max_micro_batch is None  # a micro-batch that was chosen meanwhile holds instead
