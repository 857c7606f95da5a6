"""Metrics accumulate over items and do not depend on the batch size."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trueloop.core.errors import InvalidData
from trueloop.training.evaluation.metrics import Accuracy, Confusion, MeanAbsoluteError

SCORES = torch.randn(23, 4, generator=torch.Generator().manual_seed(0))
TARGET = torch.randint(0, 4, (23,), generator=torch.Generator().manual_seed(1))


def compute_metric(metric, size: int, output=SCORES, target=TARGET):
    for start in range(0, len(output), size):
        metric.update(output[start : start + size], target[start : start + size])
    return metric.compute()


@given(size=st.integers(1, 30))
def test_the_batch_size_does_not_change_the_value(size):
    assert compute_metric(Accuracy(), size) == float((SCORES.argmax(1) == TARGET).double().mean())
    table = compute_metric(Confusion(4), size)
    assert table == [
        [int(((row == TARGET) & (SCORES.argmax(1) == column)).sum()) for column in range(4)] for row in range(4)
    ]
    error = compute_metric(MeanAbsoluteError(), size, SCORES, SCORES.flip(0))
    assert error == pytest.approx(float((SCORES.double() - SCORES.flip(0).double()).abs().mean()), rel=1e-12)


def test_ignored_targets_do_not_count():
    target = TARGET.clone()
    target[:10] = -100
    assert compute_metric(Accuracy(), 7, SCORES, target) == float((SCORES.argmax(1) == TARGET)[10:].double().mean())
    assert sum(map(sum, compute_metric(Confusion(4), 7, SCORES, target))) == 13


def test_classes_in_dimension_one_of_a_sequence():
    output, target = torch.randn(2, 5, 7), torch.randint(0, 5, (2, 7))
    assert compute_metric(Accuracy(), 2, output, target) == pytest.approx(
        float((output.argmax(1) == target).double().mean())
    )


@pytest.mark.parametrize("shape", [(6,), (6, 1)])
def test_binary_logits(shape):
    logits = torch.tensor([-1.0, 2.0, 0.5, -0.1, 3.0, -2.0]).reshape(shape)
    assert compute_metric(Accuracy(), 4, logits, torch.tensor([0, 1, 0, 0, 1, 1])) == pytest.approx(4 / 6)
    assert compute_metric(Confusion(2), 4, logits, torch.tensor([0, 1, 0, 0, 1, 1])) == [[2, 1], [1, 2]]


def test_metrics_without_data():
    assert math.isnan(Accuracy().compute())
    assert math.isnan(MeanAbsoluteError().compute())
    assert Confusion(2).compute() == [[0, 0], [0, 0]]


def test_wrong_shapes_are_refused():
    with pytest.raises(InvalidData, match=r"\(23, 4\)"):
        Accuracy().update(SCORES, TARGET[:5])
    with pytest.raises(InvalidData, match="broadcast"):
        MeanAbsoluteError().update(torch.zeros(4, 1), torch.zeros(4))


@pytest.mark.parametrize(("output", "target"), [(SCORES, TARGET), (torch.randn(23, 12), TARGET.clamp(max=2))])
def test_classes_outside_the_table_are_an_error(output, target):
    metric = Confusion(3)
    metric.update(output, target)
    with pytest.raises(InvalidData, match="are not among the 3 classes"):
        metric.compute()


def test_class_probabilities_as_targets():
    target = torch.torch.nn.functional.one_hot(TARGET, 4).float() * 0.9 + 0.025
    assert compute_metric(Accuracy(), 7, SCORES, target) == compute_metric(Accuracy(), 7)


def test_several_numbers_per_item_are_not_binary_logits():
    with pytest.raises(InvalidData, match="Accuracy and Confusion take"):
        Accuracy().update(torch.randn(4, 3), torch.randint(0, 2, (4, 3)))


def test_uint8_labels_are_not_confused_with_ignore_index():
    target = torch.tensor([156, 3, 199], dtype=torch.uint8)  # -100 is 156 in uint8
    scores = torch.nn.functional.one_hot(torch.tensor([156, 4, 199]), 200).float()
    accuracy, table = Accuracy(), Confusion(200)
    for metric in (accuracy, table):
        metric.update(scores, target)
    assert accuracy.compute() == 2 / 3
    assert sum(map(sum, table.compute())) == 3
