"""Outputs of a sample are interpreted as answers."""

import pytest
import torch

from trueloop.export.artifact import Description
from trueloop.export.exported_model import interpret_outputs
from trueloop.export.io_description import Answer, Array, SizeRange

ONE = (Array(name="scores", dtype="float32", shape=(SizeRange(lowest=1),)),)


def interpret(outputs, *, raw=False, **meaning):
    description = Description(kind="pt2", inputs=ONE, outputs=ONE, answer=Answer(**meaning))
    return interpret_outputs(description, (torch.tensor(outputs),), raw=raw)


def test_classes_have_labels_and_probabilities():
    found = interpret([0.0, 2.0], kind="class", labels=("no", "yes"))
    assert found == {"label": "yes", "index": 1, "probability": pytest.approx(0.880797)}
    assert interpret([1000.0, 0.0], kind="class", labels=("no", "yes"))["probability"] == 1.0, "no overflow"
    assert interpret([0.0, 2.0], kind="class", labels=("no", "yes"), softmax=False) == {"label": "yes", "index": 1}


def test_what_is_not_finite_is_none():
    nan = float("nan")
    assert interpret([nan, 1.0], kind="class", labels=("a", "b"))["label"] is None
    assert interpret([nan], kind="value") == {"value": None}
    assert interpret([[nan, 1.0]]) == {"outputs": {"scores": [[None, 1.0]]}}


def test_numbers_and_bytes():
    assert interpret([2.5], kind="value", raw=True) == {"value": 2.5, "outputs": {"scores": [2.5]}}
    scores = torch.zeros(2, 256)
    scores[-1, ord("x")] = 100.0
    assert interpret(scores.tolist(), kind="next_byte") == {"byte": 120, "text": "x", "probability": 1.0}
    assert interpret(scores.flip(1).tolist(), kind="next_byte")["text"] is None, "135 is no letter of ASCII"
