"""A controlled run of a script is bitwise equal to a plain run, however often it is inspected."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from trueloop.core.errors import InvalidConfig
from trueloop.core.findings import Severity
from trueloop.failures.load import catalogue
from trueloop.lab.teaching.datasets import AddedPoint
from trueloop.lab.teaching.decision_planes import build_planes
from trueloop.lab.teaching.inject import write_script
from trueloop.lab.teaching.program import Program
from trueloop.lab.teaching.script import teaching_loop
from trueloop.lab.teaching.script_run import ScriptRun, Stopped
from trueloop.lab.teaching.simulation import Simulation
from trueloop.sanitizer.dispatch import WatchedFailure
from trueloop.sanitizer.watch import Watch

SMALL = Simulation(dataset="moons", samples=60, batch=8, epochs=4, hidden=(4,))
EVERYTHING = replace(
    SMALL, accumulation=2, clip=0.5, schedule="cosine", batchnorm=True, dropout=0.3, precision="bfloat16",
    optimizer="momentum",
)  # fmt: skip


def run_script(
    simulation: Simulation, before_batch: Any = lambda script_run: None, text: str = "", **options: Any
) -> ScriptRun:
    program = Program(text or teaching_loop(simulation).text())
    script_run = ScriptRun(program, before_batch, clip=simulation.clip, **options)
    script_run.run()
    return script_run


@pytest.mark.parametrize("simulation", [SMALL, EVERYTHING], ids=["small", "everything"])
def test_an_inspected_run_equals_a_plain_run_bitwise(
    simulation: Simulation,
):
    alone = Program(teaching_loop(simulation).text())
    alone.run()
    watch = Watch([WatchedFailure(entry.failure, entry.slug) for entry in catalogue().values()])

    def inspect_run(script_run: ScriptRun) -> None:
        with watch.paused():
            build_planes(script_run.model, script_run.half_width, neurons=True)
        script_run.take_curves()
        script_run.memory_mib()

    watch.start()
    try:
        script_run = run_script(simulation, inspect_run, isolated=watch.paused)
    finally:
        report = watch.stop()
    for name, value in alone.variables["model"].state_dict().items():
        assert torch.equal(value, script_run.model.state_dict()[name]), name
    assert alone.variables["losses"] == script_run.program.variables["losses"]
    assert report.updates == script_run.update == simulation.updates
    assert not [each for each in report.findings if each.severity is not Severity.NOTE]
    assert not report.problems


def test_the_curves_are_those_of_the_script():
    simulation = replace(SMALL, accumulation=2, optimizer="sgd", schedule="step", precision="float64")
    script_run = run_script(simulation)
    curves, variables = script_run.take_curves(), script_run.program.variables
    assert curves.update == list(range(12))
    batches = variables["losses"]
    assert curves.loss[0] == (batches[0] + batches[1]) / 2
    assert curves.rate == [0.01] * 4 + [0.01 * 0.1] * 4 + [0.01 * 0.1 * 0.1] * 4
    assert [(loss, accuracy) for _, loss, accuracy in curves.evaluations] == variables["evaluations"]
    assert [update for update, *_ in curves.evaluations] == [3, 6, 9, 12]
    assert not script_run.take_curves().update
    assert script_run.epoch == 4


def test_the_norm_is_measured_before_clipping():
    unclipped = run_script(replace(SMALL, optimizer="sgd", epochs=1)).take_curves().norm
    clipped = run_script(replace(SMALL, optimizer="sgd", epochs=1, clip=0.01)).take_curves().norm
    assert clipped[0] == pytest.approx(unclipped[0], rel=1e-5)
    assert min(clipped) > 0.01


def test_live_graphs_are_counted():
    script = write_script(SMALL, [catalogue()["MEM001"].failure.inject]).loop.text()
    assert run_script(SMALL).graphs <= 2
    assert run_script(SMALL, text=script).graphs >= 24


def test_memory_grows_over_an_evaluation_that_builds_graphs():
    simulation = replace(SMALL, samples=600, batch=4, epochs=1)
    simulations = [replace(simulation, no_grad=no_grad) for no_grad in (True, False)]
    with_no_grad, without = (run_script(each, memory_share=1.0).sweep for each in simulations)
    assert len(with_no_grad) == len(without) == 31
    assert without[-1] > 0.1
    assert without[-1] > 10 * max(with_no_grad[-1], 0.002)


def test_a_run_can_be_stopped_and_torch_is_restored():
    before = (DataLoader.__iter__, _BaseDataLoaderIter.__next__, torch.optim.Optimizer.__init__)

    def stop(script_run: ScriptRun) -> None:
        if script_run.update == 5:
            raise Stopped("enough")

    with pytest.raises(Stopped, match="enough"):
        run_script(SMALL, stop)
    assert (DataLoader.__iter__, _BaseDataLoaderIter.__next__, torch.optim.Optimizer.__init__) == before


def test_a_weight_is_edited_and_the_change_recorded():
    def edit(script_run: ScriptRun) -> None:
        if script_run.update == 3:
            script_run.edit("head.weight", (1, 2), 4.0)
            assert script_run.model.get_parameter("head.weight")[1, 2] == 4.0

    script_run = run_script(SMALL, edit)
    assert script_run.edits == ["update 3: head.weight[1, 2] = 4.0"]
    for parameter, index in (("nobody", (0,)), ("head.weight", (0,)), ("head.weight", (2, 0)), ("head.bias", (-1,))):
        with pytest.raises(InvalidConfig):
            script_run.edit(parameter, index, 1.0)
    with pytest.raises(InvalidConfig, match="500"):
        for _ in range(500):
            script_run.add(AddedPoint(0.0, 0.0, 1))


def test_points_are_added_and_removed_between_epochs():
    sizes: list[int] = []

    def change(script_run: ScriptRun) -> None:
        sizes.append(len(script_run.program.variables["train_set"]))
        if script_run.update == 1:
            script_run.add(AddedPoint(9.0, 9.0, 1))
            script_run.add(AddedPoint(9.5, 9.0, 0))
        if script_run.update == 10:
            script_run.remove(9.4, 9.0)

    script_run = run_script(SMALL, change)
    assert sizes == [48] * 7 + [50] * 8 + [49] * 8 + [49] * 8  # each epoch also requests a batch after its last one
    assert script_run.points("train_set")[-1] == [9.0, 9.0, 1]
    assert len(script_run.edits) == 3


def test_added_points_do_not_run_past_the_schedule():
    def add(script_run: ScriptRun) -> None:
        if script_run.update < 12:
            script_run.add(AddedPoint(0.0, 0.0, 1))

    with pytest.raises(Stopped, match="24 updates"):
        run_script(replace(SMALL, schedule="cosine"), add)


def test_a_schedule_that_raises_past_its_end_is_not_run_there_where_a_scaler_skips_updates():
    simulation = replace(SMALL, schedule="onecycle", precision="float16", learning_rate=1000.0)

    def add(script_run: ScriptRun) -> None:
        if script_run.epoch == 1:
            script_run.add(AddedPoint(0.0, 0.0, 1))

    with pytest.raises(Stopped, match="24 updates"):
        run_script(simulation, add, write_script(simulation, [catalogue()["GRD007"].failure.inject]).loop.text())


def test_points_cannot_change_under_a_sampler_of_fixed_length():
    def change(script_run: ScriptRun) -> None:
        for change_points in (lambda: script_run.add(AddedPoint(0.0, 0.0, 1)), lambda: script_run.remove(0.0, 0.0)):
            with pytest.raises(InvalidConfig, match="its sampler has a fixed length"):
                change_points()

    text = write_script(SMALL, [catalogue()["DST003"].failure.inject]).loop.text()
    assert len(run_script(SMALL, change, text).program.variables["train_set"]) == 48


def test_no_point_is_added_if_a_batch_of_one_would_remain():
    def add(script_run: ScriptRun) -> None:
        if not script_run.update:
            script_run.add(AddedPoint(0.0, 0.0, 1))

    assert len(run_script(replace(SMALL, batchnorm=True), add).program.variables["train_set"]) == 48


def test_the_first_non_finite_loss_is_recorded():
    text = write_script(SMALL, [catalogue()["GRD007"].failure.inject]).loop.text()
    script_run = run_script(SMALL, text=text)
    losses = script_run.take_curves().loss
    assert script_run.first_not_finite is not None
    assert math.isnan(losses[script_run.first_not_finite])
    assert all(map(math.isfinite, losses[: script_run.first_not_finite]))


def test_a_run_without_updates_has_windows_with_their_losses():
    inject = catalogue()["OPT006"].failure.inject
    assert inject is not None
    loop, simulation = write_script(replace(SMALL, samples=70, accumulation=2), [inject])
    script_run = run_script(simulation, text=loop.text())
    windows = math.ceil(math.ceil(simulation.training_points / simulation.batch) / 2)  # of an epoch; the last is short
    assert (script_run.update, script_run.window) == (0, simulation.epochs * windows)
    curves = script_run.take_curves()
    assert curves.update == list(range(script_run.window))
    assert all(loss > 0 for loss in curves.loss)
    assert [update for update, _, _ in curves.evaluations] == [windows * n for n in range(1, simulation.epochs + 1)]


def test_windows_are_updates_where_every_window_ends_with_one():
    script_run = run_script(EVERYTHING)
    assert script_run.window == script_run.update > 0
