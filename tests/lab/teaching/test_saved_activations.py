from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from trueloop.lab.teaching.run_snippet import SnippetRunner
from trueloop.lab.teaching.saved_activations import Forward, Measurement, measure

SMALL = Forward(depth=3, width=32, batch=64, rounds=1)


@pytest.fixture(scope="module")
def measured() -> Measurement:
    return measure(SMALL)


def test_no_grad_keeps_only_the_outputs(measured: Measurement):
    train, evaluation, no_grad, inference = measured.modes
    outputs_b = 64 * 32 * 4
    assert (no_grad.kept_b, inference.kept_b) == (outputs_b, outputs_b)
    assert (no_grad.for_backward_b, inference.for_backward_b) == (0, 0)
    assert evaluation.kept_b > 3 * no_grad.kept_b
    assert train.kept_b > evaluation.kept_b  # dropout's masks, and what normalisation by the batch needs


def test_saved_tensors_are_part_of_the_kept_memory(measured: Measurement):
    for mode in measured.modes:
        assert mode.for_backward_b <= mode.kept_b <= mode.peak_b == max(mode.alive_b)


def test_memory_grows_by_layer_only_with_a_graph(measured: Measurement):
    train, _, no_grad, _ = measured.modes
    assert list(train.alive_b) == sorted(train.alive_b)
    assert no_grad.peak_b == 2 * no_grad.kept_b  # a layer's input and its output


def test_the_error_of_a_backward_pass_without_graph_is_recorded(measured: Measurement):
    train, evaluation, no_grad, inference = measured.modes
    assert (train.refused, evaluation.refused) == ("", "")
    assert "does not require grad" in no_grad.refused
    assert "Inference tensors cannot be saved for backward" in inference.refused


def test_every_way_is_timed(measured: Measurement):
    assert measured.rounds == 1
    assert all(mode.median_s > 0 for mode in measured.modes)
    assert [line.split(" kept")[0].strip() for line in measured.printed.splitlines()] == [
        mode.name for mode in measured.modes
    ]


def test_the_peak_agrees_with_the_profiler_of_torch(measured: Measurement):
    # The model of the very program that was measured; its allocations as the profiler of memory reports them.
    runner = SnippetRunner()
    runner.run(measured.text)
    variables = runner.variables
    peaks_b: list[int] = []
    for training, context in variables["modes"].values():
        variables["model"].train(training)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled, context():
            outputs = variables["model"](variables["inputs"])
        assert outputs.shape == (64, 32)
        events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
        alive = peak_b = 0
        for event in events:
            alive += event.nbytes()
            peak_b = max(peak_b, alive)
        peaks_b.append(peak_b)
        del outputs
    for mode, peak_b in zip(measured.modes, peaks_b, strict=True):
        # Dropout draws its mask into memory of its own within one operation: of that only the profiler knows.
        assert mode.peak_b <= peak_b <= 1.1 * mode.peak_b + 64 * 32 * 4


def test_the_grad_mode_is_restored(measured: Measurement):
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()
