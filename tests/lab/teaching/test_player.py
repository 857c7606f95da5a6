"""A script that is played does what it does alone, to the bit, however much it is looked at."""

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
from trueloop.lab.teaching.datasets import Added
from trueloop.lab.teaching.decision_planes import build_planes
from trueloop.lab.teaching.inject import write_script
from trueloop.lab.teaching.player import Play, Stopped
from trueloop.lab.teaching.program import Program
from trueloop.lab.teaching.script import teaching_loop
from trueloop.lab.teaching.simulation import Simulation
from trueloop.sanitizer.dispatch import WatchedFailure
from trueloop.sanitizer.watch import Watch

SMALL = Simulation(dataset="moons", samples=60, batch=8, epochs=4, hidden=(4,))
EVERYTHING = replace(
    SMALL, accumulation=2, clip=0.5, schedule="cosine", batchnorm=True, dropout=0.3, precision="bfloat16",
    optimizer="momentum",
)  # fmt: skip


def played(simulation: Simulation, hear: Any = lambda play: None, text: str = "", **options: Any) -> Play:
    play = Play(Program(text or teaching_loop(simulation).text()), hear, clip=simulation.clip, **options)
    play.run()
    return play


@pytest.mark.parametrize("simulation", [SMALL, EVERYTHING], ids=["small", "everything"])
def test_the_weights_are_bitwise_those_of_the_script_alone_and_the_sanitizer_hears_nothing_of_it(
    simulation: Simulation,
):
    alone = Program(teaching_loop(simulation).text())
    alone.run()
    watch = Watch([WatchedFailure(entry.failure, entry.slug) for entry in catalogue().values()])

    def look(play: Play) -> None:
        with watch.paused():
            build_planes(play.model, play.half_width, neurons=True)
        play.take_curves()
        play.memory_mib()

    watch.start()
    try:
        play = played(simulation, look, isolated=watch.paused)
    finally:
        report = watch.stop()
    for name, value in alone.names["model"].state_dict().items():
        assert torch.equal(value, play.model.state_dict()[name]), name
    assert alone.names["losses"] == play.program.names["losses"]
    assert report.updates == play.update == simulation.updates
    assert not [each for each in report.findings if each.severity is not Severity.NOTE]
    assert not report.problems


def test_the_curves_are_the_scripts_own():
    simulation = replace(SMALL, accumulation=2, optimizer="sgd", schedule="step", precision="float64")
    play = played(simulation)
    curves, names = play.take_curves(), play.program.names
    assert curves.update == list(range(12))
    batches = names["losses"]
    assert curves.loss[0] == (batches[0] + batches[1]) / 2
    assert curves.rate == [0.01] * 4 + [0.01 * 0.1] * 4 + [0.01 * 0.1 * 0.1] * 4
    assert [(loss, accuracy) for _, loss, accuracy in curves.evaluations] == names["evaluations"]
    assert [update for update, *_ in curves.evaluations] == [3, 6, 9, 12]
    assert not play.take_curves().update
    assert play.epoch == 4


def test_the_norm_is_that_of_the_whole_gradient_also_where_it_is_cut():
    whole = played(replace(SMALL, optimizer="sgd", epochs=1)).take_curves().norm
    cut = played(replace(SMALL, optimizer="sgd", epochs=1, clip=0.01)).take_curves().norm
    assert cut[0] == pytest.approx(whole[0], rel=1e-5)
    assert min(cut) > 0.01


def test_graphs_are_counted_and_what_is_kept_is_seen():
    kept = write_script(SMALL, [catalogue()["MEM001"].failure.inject]).loop.text()
    assert played(SMALL).graphs <= 2
    assert played(SMALL, text=kept).graphs >= 24


def test_memory_grows_over_an_evaluation_that_builds_graphs():
    swept = replace(SMALL, samples=600, batch=4, epochs=1)
    flat, grows = (played(replace(swept, no_grad=no_grad), memory_share=1.0).sweep for no_grad in (True, False))
    assert len(flat) == len(grows) == 31
    assert grows[-1] > 0.1
    assert grows[-1] > 10 * max(flat[-1], 0.002)


def test_a_run_can_be_ended_at_any_batch_and_torch_is_as_it_was():
    before = (DataLoader.__iter__, _BaseDataLoaderIter.__next__, torch.optim.Optimizer.__init__)

    def stop(play: Play) -> None:
        if play.update == 5:
            raise Stopped("enough")

    with pytest.raises(Stopped, match="enough"):
        played(SMALL, stop)
    assert (DataLoader.__iter__, _BaseDataLoaderIter.__next__, torch.optim.Optimizer.__init__) == before


def test_a_weight_is_edited_and_the_change_recorded():
    def edit(play: Play) -> None:
        if play.update == 3:
            play.edit("head.weight", (1, 2), 4.0)
            assert play.model.get_parameter("head.weight")[1, 2] == 4.0

    play = played(SMALL, edit)
    assert play.edits == ["update 3: head.weight[1, 2] = 4.0"]
    for parameter, index in (("nobody", (0,)), ("head.weight", (0,)), ("head.weight", (2, 0)), ("head.bias", (-1,))):
        with pytest.raises(InvalidConfig):
            play.edit(parameter, index, 1.0)
    with pytest.raises(InvalidConfig, match="500"):
        for _ in range(500):
            play.add(Added(0.0, 0.0, 1))


def test_points_come_and_go_between_epochs():
    sizes: list[int] = []

    def change(play: Play) -> None:
        sizes.append(len(play.program.names["train_set"]))
        if play.update == 1:
            play.add(Added(9.0, 9.0, 1))
            play.add(Added(9.5, 9.0, 0))
        if play.update == 10:
            play.remove(9.4, 9.0)

    play = played(SMALL, change)
    assert sizes == [48] * 7 + [50] * 8 + [49] * 8 + [49] * 8  # each epoch is also asked for a batch it has no more
    assert play.points("train_set")[-1] == [9.0, 9.0, 1]
    assert len(play.edits) == 3


def test_a_schedule_is_not_run_past_its_end_where_points_were_added():
    def add(play: Play) -> None:
        if play.update < 12:
            play.add(Added(0.0, 0.0, 1))

    with pytest.raises(Stopped, match="24 updates"):
        played(replace(SMALL, schedule="cosine"), add)


def test_a_schedule_that_raises_past_its_end_is_not_run_there_where_a_scaler_skips_updates():
    given = replace(SMALL, schedule="onecycle", precision="float16", learning_rate=1000.0)

    def add(play: Play) -> None:
        if play.epoch == 1:
            play.add(Added(0.0, 0.0, 1))

    with pytest.raises(Stopped, match="24 updates"):
        played(given, add, write_script(given, [catalogue()["GRD007"].failure.inject]).loop.text())


def test_points_of_a_sampler_that_has_counted_them_stay():
    def change(play: Play) -> None:
        for changed in (lambda: play.add(Added(0.0, 0.0, 1)), lambda: play.remove(0.0, 0.0)):
            with pytest.raises(InvalidConfig, match="its sampler has a fixed length"):
                changed()

    text = write_script(SMALL, [catalogue()["DST003"].failure.inject]).loop.text()
    assert len(played(SMALL, change, text).program.names["train_set"]) == 48


def test_a_batch_of_one_point_is_not_left_to_a_batch_normalisation():
    def add(play: Play) -> None:
        if not play.update:
            play.add(Added(0.0, 0.0, 1))

    assert len(played(replace(SMALL, batchnorm=True), add).program.names["train_set"]) == 48


def test_the_first_loss_that_is_not_finite_is_noted():
    text = write_script(SMALL, [catalogue()["GRD007"].failure.inject]).loop.text()
    play = played(SMALL, text=text)
    losses = play.take_curves().loss
    assert play.first_not_finite is not None
    assert math.isnan(losses[play.first_not_finite])
    assert all(map(math.isfinite, losses[: play.first_not_finite]))
