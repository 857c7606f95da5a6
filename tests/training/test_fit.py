"""A run: what it reports, how it ends, and that resuming is going on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from time import sleep

import pytest
import torch
from torch import nn

from trueloop.core.errors import CheckpointError, InvalidConfig
from trueloop.core.protocols import CheckpointSaved, Evaluated, Notice, RunStarted, UpdatesDone
from trueloop.training.checkpoint.checkpoints import CheckpointFolder
from trueloop.training.config import CheckpointConfig, MonitorConfig, OptimConfig, ScheduleConfig, TrainConfig
from trueloop.training.evaluation.metrics import Accuracy
from trueloop.training.fit import Fit
from trueloop.training.seeding import seed_everything

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(46, 6, generator=G), torch.randint(0, 3, (46,), generator=G)
VAL = [(X[:20], Y[:20]), (X[20:], Y[20:])]


class Kill(Exception):
    """Stands for a SIGKILL after an update: nothing of the process survives."""


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def make(windowed, build, config: TrainConfig, folder: Path | None, *reporters, source=None) -> Fit:
    seed_everything(config.seed)
    checkpoint_config = config.checkpoint
    parts = build(network(), nn.CrossEntropyLoss(), config, updates_per_epoch=6)
    checkpoints = None
    if folder is not None:
        checkpoints = CheckpointFolder(
            folder, keep_last=checkpoint_config.keep_last, keep_best=checkpoint_config.keep_best
        )
    fit = Fit(
        parts, config, source or windowed(X, Y, effective=8, micro=3), held_out={"val": VAL},
        metrics={"accuracy": Accuracy}, checkpoints=checkpoints, reporters=reporters,
    )  # fmt: skip
    fit.resume()
    return fit


class KillAfter:
    """A source whose process dies when a certain window is drawn for the n-th time."""

    def __init__(self, inner, batches: int) -> None:
        self._inner, self._left = inner, batches

    @property
    def updates_per_epoch(self):
        return self._inner.updates_per_epoch

    def epoch(self, epoch, skip_updates=0):
        for micro in self._inner.epoch(epoch, skip_updates):
            self._left -= 1
            if self._left < 0:
                raise Kill
            yield micro


CONFIG = TrainConfig(
    epochs=4, effective_batch=8, ema=0.9, optim=OptimConfig(lr=0.02), schedule=ScheduleConfig(warmup=0.2),
    checkpoint=CheckpointConfig(every_updates=2, keep_last=3), monitor=MonitorConfig(patience=50),
)  # fmt: skip


def all_weights(fit: Fit) -> dict[str, torch.Tensor]:
    return {
        "model/" + name: value for name, value in fit.assembly.model.state_dict().items()
    } | {"average/" + name: value for name, value in fit.assembly.average.state_dict().items()}  # fmt: skip


@pytest.mark.parametrize("precision", ["off", "bf16", "fp16"])
@pytest.mark.parametrize("batches", [1, 5, 17, 18, 30, 60])
def test_a_resumed_run_equals_an_uninterrupted_one(windowed, build, tmp_path, batches, precision):
    """Bitwise: weights, averages, moments, generators and history after dying in mid-epoch."""
    from dataclasses import replace

    config = replace(CONFIG, precision=precision)
    uninterrupted = make(windowed, build, config, tmp_path / "whole")
    expected = uninterrupted.run(name="x", facts={})

    killed = make(
        windowed, build, config, tmp_path / "cut", source=KillAfter(windowed(X, Y, effective=8, micro=3), batches)
    )
    with pytest.raises(Kill):
        killed.run(name="x", facts={})
    resumed = make(windowed, build, config, tmp_path / "cut")
    result = resumed.run(name="x", facts={})

    assert (result.update, result.metrics) == (expected.update, expected.metrics)
    assert result.best_update == expected.best_update
    for name, value in all_weights(uninterrupted).items():
        assert torch.equal(all_weights(resumed)[name], value), name
    resumed_state, uninterrupted_state = resumed.state.state_dict(), uninterrupted.state.state_dict()
    assert torch.equal(resumed_state["generators"]["torch"], uninterrupted_state["generators"]["torch"])
    assert resumed_state["position"] == uninterrupted_state["position"]
    assert resumed_state["monitor"] == uninterrupted_state["monitor"]


def test_events_of_a_run(windowed, build, tmp_path, reporter):
    fit = make(windowed, build, CONFIG, tmp_path, reporter)
    result = fit.run(name="digits", facts={"device": "cpu"})
    (start,) = reporter.of(RunStarted)
    assert (start.name, start.epochs, start.updates, start.start_update) == ("digits", 4, 24, 0)
    rows = [row for event in reporter.of(UpdatesDone) for row in event.rows]
    assert [row.update for row in rows] == list(range(1, 25))
    assert [row.epoch for row in rows] == [1] * 6 + [2] * 6 + [3] * 6 + [4] * 6
    assert [row.examples for row in rows[:6]] == [8, 8, 8, 8, 8, 6]
    evaluated = reporter.of(Evaluated)
    assert [(event.update, event.split) for event in evaluated] == [(n, "val") for n in (6, 12, 18, 24)]
    assert result.metrics["val/loss"] == evaluated[-1].metrics["loss"]
    assert result.best_value == min(event.metrics["loss"] for event in evaluated)
    saved = reporter.of(CheckpointSaved)
    assert [event.update for event in saved if event.epoch == 4] == [24]
    assert saved[-1].metrics == result.metrics
    # every update is reported before the evaluation and the checkpoint that follow it
    for event in (*evaluated, *saved):
        results = [e for e in reporter.events[: reporter.events.index(event)] if isinstance(e, UpdatesDone)]
        if isinstance(event, Evaluated):
            assert results[-1].rows[-1].update == event.update
        assert results[-1].rows[-1].update >= event.update


def test_early_stopping(windowed, build, tmp_path, reporter):
    from dataclasses import replace

    config = replace(
        CONFIG, epochs=50, ema=None, optim=OptimConfig(lr=1e-9), monitor=MonitorConfig(patience=3, min_delta=0.5)
    )
    result = make(windowed, build, config, tmp_path, reporter).run(name="x", facts={})
    assert result.reason == "early_stop"
    assert result.epochs == 4
    assert result.best_update == 6
    assert [note.kind for note in reporter.of(Notice)] == ["early_stop"]


@pytest.mark.parametrize(
    ("sent", "reason", "who"),
    [
        (signal.SIGINT, "interrupted", "Ctrl-C"),
        (signal.SIGTERM, "preempted", "SIGTERM"),
        (signal.SIGUSR1, "preempted", "SIGUSR1"),
    ],
)
def test_a_stop_request_finishes_the_update_and_saves(windowed, build, tmp_path, reporter, sent, reason, who):
    class StopDuringEpoch:
        def __init__(self, inner):
            self.inner = inner

        @property
        def updates_per_epoch(self):
            return self.inner.updates_per_epoch

        def epoch(self, epoch, skip_updates=0):
            for number, micro in enumerate(self.inner.epoch(epoch, skip_updates)):
                if epoch == 1 and number == 4:  # within the second window
                    os.kill(os.getpid(), sent)
                yield micro

    before = signal.getsignal(sent)
    fit = make(
        windowed, build, CONFIG, tmp_path, reporter, source=StopDuringEpoch(windowed(X, Y, effective=8, micro=3))
    )
    result = fit.run(name="x", facts={})
    assert (result.reason, result.update, result.unfinished) == (reason, 8, True)
    assert signal.getsignal(sent) is before
    assert CheckpointFolder(tmp_path).latest().update == 8
    (note,) = reporter.of(Notice)
    assert (note.kind, note.message) == (reason, f"Stopped by {who} after update 8; everything is saved.")

    uninterrupted = make(windowed, build, CONFIG, None)
    uninterrupted.run(name="x", facts={})
    resumed = make(windowed, build, CONFIG, tmp_path)
    assert resumed.run(name="x", facts={}).resumed_from == 8
    assert all(torch.equal(all_weights(resumed)[name], value) for name, value in all_weights(uninterrupted).items())


def test_a_stop_request_during_evaluation_starts_no_epoch(windowed, build, tmp_path):
    class StopDuringEpoch:
        def __iter__(self):
            os.kill(os.getpid(), signal.SIGTERM)
            return iter(VAL)

    fit = make(windowed, build, CONFIG, tmp_path)
    fit._held_out = {"val": StopDuringEpoch()}
    result = fit.run(name="x", facts={})
    assert (result.reason, result.update, result.epochs) == ("preempted", 6, 1)
    uninterrupted = make(windowed, build, CONFIG, None)
    uninterrupted.run(name="x", facts={})
    resumed = make(windowed, build, CONFIG, tmp_path)
    assert resumed.run(name="x", facts={}).resumed_from == 6
    assert all(torch.equal(all_weights(resumed)[name], value) for name, value in all_weights(uninterrupted).items())


def test_a_run_split_in_two_by_horizon_epochs_equals_the_full_run(windowed, build, tmp_path):
    from dataclasses import replace

    uninterrupted = make(windowed, build, CONFIG, None)
    uninterrupted.run(name="x", facts={})
    planned = replace(CONFIG.schedule, horizon_epochs=4)
    first = make(windowed, build, replace(CONFIG, epochs=2, schedule=planned), tmp_path)
    assert first.run(name="x", facts={}).update == 12
    second = make(windowed, build, replace(CONFIG, schedule=planned), tmp_path)
    assert second.run(name="x", facts={}).resumed_from == 12
    assert all(torch.equal(all_weights(second)[name], value) for name, value in all_weights(uninterrupted).items())


def test_a_finished_run_stays_finished_and_can_be_trained_longer(windowed, build, tmp_path):
    from dataclasses import replace

    make(windowed, build, CONFIG, tmp_path).run(name="x", facts={})
    assert make(windowed, build, CONFIG, tmp_path).run(name="x", facts={}).update == 24
    longer = make(windowed, build, replace(CONFIG, epochs=5), tmp_path).run(name="x", facts={})
    assert (longer.resumed_from, longer.update) == (24, 30)


def test_fewer_epochs_than_are_done_are_refused(windowed, build, tmp_path):
    from dataclasses import replace

    make(windowed, build, CONFIG, tmp_path).run(name="x", facts={})
    with pytest.raises(InvalidConfig, match="epochs is 3, but the run in this folder has already done 24 updates"):
        make(windowed, build, replace(CONFIG, epochs=3), tmp_path)


def test_the_best_weights_are_shipped(windowed, build, tmp_path):
    from dataclasses import replace

    config = replace(
        CONFIG, ema=None, optim=OptimConfig(name="sgd", lr=5.0, momentum=0.0), clip=None,
        schedule=ScheduleConfig(name="constant"), checkpoint=CheckpointConfig(keep_last=1, keep_best=1),
    )  # fmt: skip
    fit = make(windowed, build, config, tmp_path)
    result = fit.run(name="x", facts={})
    assert result.best_update < result.update
    best = CheckpointFolder(tmp_path).best()
    state = CheckpointFolder(tmp_path).load(best)["model"]
    fit.assembly.model.load_state_dict(fit.final_weights())
    assert all(torch.equal(state[name], value) for name, value in fit.assembly.model.state_dict().items())
    assert fit.evaluate(VAL).metrics["loss"] == pytest.approx(result.best_value, rel=1e-6)


def test_averaged_weights_are_evaluated_and_shipped(windowed, build):
    fit = make(windowed, build, CONFIG, None)
    fit.run(name="x", facts={})
    trained = {name: value.clone() for name, value in fit.assembly.model.state_dict().items()}
    measured_loss = fit.evaluate(VAL).metrics["loss"]
    assert all(torch.equal(trained[name], value) for name, value in fit.assembly.model.state_dict().items())
    shipped = fit.final_weights()
    assert not torch.equal(shipped["0.weight"], trained["0.weight"])
    model = network()
    model.load_state_dict(shipped)
    model.eval()
    loss = nn.functional.cross_entropy(model(X), Y).item()
    assert measured_loss == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize(
    ("monitor", "held_out", "message"),
    [
        (MonitorConfig(metric="val/acuracy"), {"val": VAL}, "Did you mean 'val/accuracy'"),
        (MonitorConfig(metric="test/loss"), {"val": VAL}, "'test' is not evaluated"),
        (MonitorConfig(patience=2), {}, "splits are: none"),
    ],
)
def test_an_unknown_monitor_metric_is_refused_before_training(windowed, build, monitor, held_out, message, reporter):
    config = TrainConfig(effective_batch=8, monitor=monitor)
    parts = build(network(), nn.CrossEntropyLoss(), config)
    fit = Fit(
        parts, config, windowed(X, Y, effective=8), held_out=held_out, metrics={"accuracy": Accuracy}, checkpoints=None,
        reporters=[reporter],
    )  # fmt: skip
    with pytest.raises(InvalidConfig) as caught:
        fit.run(name="x", facts={})
    assert message in str(caught.value)
    assert reporter.events == []


class SlowFolder(CheckpointFolder):
    """A disk that takes its time."""

    def write(self, parts, **about):
        sleep(0.02)
        return super().write(parts, **about)


def test_checkpoints_written_in_the_background_equal_blocking_ones(windowed, build, tmp_path):
    """Every checkpoint written in the background equals, byte for byte, the one that training waited for."""
    from dataclasses import replace

    for name, folder, blocking in (("background", SlowFolder, False), ("waited", CheckpointFolder, True)):
        seed_everything(0)
        checkpoint_config = replace(CONFIG.checkpoint, blocking=blocking, every_updates=1)
        config = replace(CONFIG, epochs=2, checkpoint=checkpoint_config)
        parts = build(network(), nn.CrossEntropyLoss(), config, updates_per_epoch=6)
        Fit(
            parts, config, windowed(X, Y, effective=8, micro=3), held_out={"val": VAL}, metrics={},
            checkpoints=folder(tmp_path / name, keep_last=99), reporters=(),
        ).run(name="x", facts={})  # fmt: skip
    background, waited = (sorted((tmp_path / name).rglob("*.*")) for name in ("background", "waited"))
    assert len(background) == len(waited) > 4 * 13
    assert [path.read_bytes() for path in background] == [path.read_bytes() for path in waited]


class FullDisk(CheckpointFolder):
    def write(self, parts, **about):
        if about["update"] > 4:
            raise CheckpointError("The disk is full.")
        return super().write(parts, **about)


@pytest.mark.parametrize("dies", [False, True])
def test_a_failed_save_ends_the_run_or_becomes_a_note(windowed, build, tmp_path, reporter, dies):
    from dataclasses import replace

    config = replace(CONFIG, checkpoint=replace(CONFIG.checkpoint, every_epochs=99), monitor=MonitorConfig())
    source = windowed(X, Y, effective=8, micro=3)
    parts = build(network(), nn.CrossEntropyLoss(), config, updates_per_epoch=6)
    fit = Fit(
        parts, config, KillAfter(source, 20) if dies else source, held_out={}, metrics={},
        checkpoints=FullDisk(tmp_path), reporters=(reporter,),
    )  # fmt: skip
    with pytest.raises(Kill if dies else CheckpointError) as caught:
        fit.run(name="x", facts={})
    assert "The disk is full." in "".join([*getattr(caught.value, "__notes__", ()), str(caught.value)])
    assert [event.update for event in reporter.of(CheckpointSaved)] == [2, 4]
    assert CheckpointFolder(tmp_path).latest().update == 4
    assert reporter.events[-1].reason == "failed"


def evaluate_as(values):
    """Stands for an evaluation that gives these numbers one after another."""
    from trueloop.training.evaluation.evaluate import Evaluation

    numbers = iter(values)
    return lambda batches: Evaluation(metrics={"loss": next(numbers)}, tables={}, batches=1, seconds=0.0)


@pytest.mark.parametrize(
    "checkpoint",
    [
        CheckpointConfig(every_updates=4, every_epochs=10, keep_last=9),
        CheckpointConfig(every_epochs=2),
        CheckpointConfig(every_epochs=10, keep_last=1),
    ],
)
def test_the_best_checkpoint_has_the_weights_that_were_evaluated(windowed, build, tmp_path, checkpoint):
    from dataclasses import replace

    config = replace(CONFIG, ema=None, checkpoint=checkpoint, monitor=MonitorConfig(min_delta=0.3))
    fit = make(windowed, build, config, tmp_path)
    fit.evaluate = evaluate_as([0.9, 0.5, 0.4, 0.8])
    result = fit.run(name="x", facts={})
    best = CheckpointFolder(tmp_path).best()
    assert (result.best_update, result.best_value) == (best.update, best.metrics["val/loss"]) == (18, 0.4)


def test_if_the_best_checkpoint_is_damaged_the_next_best_is_shipped(windowed, build, tmp_path, reporter):
    from dataclasses import replace

    config = replace(CONFIG, ema=None, checkpoint=CheckpointConfig(keep_best=2, keep_last=1))
    fit = make(windowed, build, config, tmp_path, reporter)
    fit.evaluate = evaluate_as([0.3, 0.5, 0.8, 0.9])
    fit.run(name="x", facts={})
    file = CheckpointFolder(tmp_path).best().path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    second = CheckpointFolder(tmp_path).checkpoints()[1]
    assert second.update == 12
    expected = CheckpointFolder(tmp_path).load(second)["model"]
    assert all(torch.equal(expected[name], value) for name, value in fit.final_weights().items())
    assert [note.kind for note in reporter.of(Notice)] == ["checkpoint_passed_over"]


def test_a_removed_best_checkpoint_is_reported(windowed, build, tmp_path, reporter):
    from dataclasses import replace
    from shutil import rmtree

    config = replace(CONFIG, ema=None, checkpoint=CheckpointConfig(keep_best=2, keep_last=1))
    fit = make(windowed, build, config, tmp_path, reporter)
    fit.evaluate = evaluate_as([0.3, 0.5, 0.8, 0.9])
    fit.run(name="x", facts={})
    fit.final_weights()
    assert not reporter.of(Notice)
    rmtree(CheckpointFolder(tmp_path).best().path)
    fit.final_weights()
    (note,) = reporter.of(Notice)
    assert note.kind == "best_missing"
    assert "update-000000006 is missing; update 12 is shipped" in note.message


def test_a_metric_that_is_never_finite_stops_the_run_with_a_message(windowed, build, tmp_path, reporter):
    from dataclasses import replace

    fit = make(windowed, build, replace(CONFIG, monitor=MonitorConfig(patience=2)), tmp_path, reporter)
    fit.evaluate = evaluate_as([float("nan")] * 4)
    assert fit.run(name="x", facts={}).reason == "early_stop"
    assert "never finite" in reporter.of(Notice)[0].message
    assert CheckpointFolder(tmp_path).latest().update == 12


def test_an_early_stopped_run_stays_stopped(windowed, build, tmp_path):
    from dataclasses import replace

    config = replace(CONFIG, monitor=MonitorConfig(patience=1))
    for _ in range(2):
        fit = make(windowed, build, config, tmp_path)
        fit.evaluate = evaluate_as([0.5, 0.6, 0.1, 0.1])
        assert fit.run(name="x", facts={}).update == 12


def test_a_plateau_scheduler_receives_the_monitored_metric(windowed, build):
    config = TrainConfig(epochs=4, effective_batch=8)
    parts = build(
        network(), nn.CrossEntropyLoss(), config,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.1),
    )  # fmt: skip
    fit = Fit(
        parts, config, windowed(X, Y, effective=8), held_out={"val": VAL}, metrics={}, checkpoints=None, reporters=[]
    )
    fit.evaluate = evaluate_as([0.1, 0.2, 0.3, 0.4])
    fit.run(name="x", facts={})
    assert parts.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3)


def test_tied_weights_stay_tied_in_shipped_weights(windowed, build):
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    parts = build(model, nn.CrossEntropyLoss(), CONFIG)
    fit = Fit(parts, CONFIG, windowed(X, Y, effective=8), held_out={}, metrics={}, checkpoints=None, reporters=[])
    shipped = fit.final_weights()
    assert shipped["0.weight"] is shipped["2.weight"]
    assert shipped["0.weight"] is not model[0].weight
