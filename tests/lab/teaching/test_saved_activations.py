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


def test_eval_alone_keeps_a_graph_and_no_grad_keeps_only_the_outputs(measured: Measurement):
    train, evaluation, no_grad, inference = measured.ways
    outputs_b = 64 * 32 * 4
    assert (no_grad.kept_b, inference.kept_b) == (outputs_b, outputs_b)
    assert (no_grad.for_backward_b, inference.for_backward_b) == (0, 0)
    assert evaluation.kept_b > 3 * no_grad.kept_b
    assert train.kept_b > evaluation.kept_b  # dropout's masks, and what normalisation by the batch needs


def test_what_is_saved_for_backward_is_part_of_what_is_kept(measured: Measurement):
    for way in measured.ways:
        assert way.for_backward_b <= way.kept_b <= way.peak_b == max(way.alive_b)


def test_memory_grows_layer_by_layer_with_a_graph_and_not_without(measured: Measurement):
    train, _, no_grad, _ = measured.ways
    assert list(train.alive_b) == sorted(train.alive_b)
    assert no_grad.peak_b == 2 * no_grad.kept_b  # a layer's input and its output


def test_backward_afterwards_is_refused_in_torchs_own_words(measured: Measurement):
    train, evaluation, no_grad, inference = measured.ways
    assert (train.refused, evaluation.refused) == ("", "")
    assert "does not require grad" in no_grad.refused
    assert "Inference tensors cannot be saved for backward" in inference.refused


def test_every_way_is_timed(measured: Measurement):
    assert measured.rounds == 1
    assert all(way.median_s > 0 for way in measured.ways)
    assert [line.split(" kept")[0].strip() for line in measured.printed.splitlines()] == [
        way.name for way in measured.ways
    ]


def test_the_count_is_that_of_torchs_profiler(measured: Measurement):
    # The model of the very program that was measured; its allocations as the profiler of memory reports them.
    ran = SnippetRunner()
    ran.run(measured.text)
    held = ran.names
    highest: list[int] = []
    for training, context in held["ways"].values():
        held["model"].train(training)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled, context():
            outputs = held["model"](held["inputs"])
        assert outputs.shape == (64, 32)
        events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
        alive = most = 0
        for event in events:
            alive += event.nbytes()
            most = max(most, alive)
        highest.append(most)
        del outputs
    for way, most in zip(measured.ways, highest, strict=True):
        # Dropout draws its mask into memory of its own within one operation: of that only the profiler knows.
        assert way.peak_b <= most <= 1.1 * way.peak_b + 64 * 32 * 4


def test_nothing_stays_behind(measured: Measurement):
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()
