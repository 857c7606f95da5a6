"""Tests of `failures.teaching_script`: the text of the loop, injections and the changed lines."""

from __future__ import annotations

import pytest

from trueloop.failures.teaching_script import (
    CannotInject,
    Piece,
    TeachingLoop,
    line_injector,
    repetition_injector,
    replacement_injector,
)

EVALUATION = """def evaluate():
    with no_grad():
        for x in held_out:
            model(x)
    return 1"""


def loop(**changes: object) -> TeachingLoop:
    pieces = {
        Piece.SETUP: "epochs = 2",
        Piece.MODEL: "class Net:\n    pass\n\n\nmodel = Net()",
        Piece.OPTIMIZER: "optimizer = SGD(model)",
        Piece.EVALUATION: EVALUATION,
        Piece.RECORDS: "losses = []",
        Piece.TRAIN_MODE: "model.train()",
        Piece.FORWARD: "outputs = model(inputs)",
        Piece.BACKWARD: "loss.backward()",
        Piece.OPTIMIZER_STEP: "optimizer.step()",
        Piece.ZERO_GRAD: "optimizer.zero_grad()",
        Piece.EVALUATE: "evaluate()",
    }
    imports = ["import torch", "from torch import nn", "import math", "import torch"]
    return TeachingLoop(title="Learns.", imports=imports, pieces=pieces, **changes)  # pyright: ignore[reportArgumentType]


COMPLETE = '''"""Learns."""

import math

import torch
from torch import nn

epochs = 2


class Net:
    pass


model = Net()

optimizer = SGD(model)


def evaluate():
    with no_grad():
        for x in held_out:
            model(x)
    return 1


losses = []
for epoch in range(epochs):
    model.train()
    for inputs, targets in train_loader:
        outputs = model(inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    evaluate()
'''


def test_the_pieces_are_joined_to_a_readable_script():
    assert loop().text() == COMPLETE
    assert loop().changed_lines() == []


def test_the_window_condition_encloses_the_operations_of_a_window():
    text = loop(window_condition="if full:", after_training="done()").text()
    assert "        if full:\n            optimizer.step()\n            optimizer.zero_grad()\n    evaluate()\n" in text
    assert text.endswith("\n\ndone()\n")


def test_leave_out_removes_a_line():
    changed = loop()
    changed.leave_out(Piece.ZERO_GRAD)
    assert "zero_grad" not in changed.text()
    (line,) = changed.changed_lines()
    assert (line.kind, line.before, line.after) == ("left out", "optimizer.zero_grad()", "")
    assert changed.text().splitlines()[line.line - 1] == "    evaluate()"  # the line in its position


def test_move_within_and_between_loops():
    changed = loop()
    changed.move(Piece.ZERO_GRAD, before=Piece.OPTIMIZER_STEP)
    assert "        optimizer.zero_grad()\n        optimizer.step()\n" in changed.text()
    changed.move(Piece.OPTIMIZER_STEP, after=Piece.EVALUATE)
    assert changed.text().endswith("    evaluate()\n    optimizer.step()\n")
    for line in changed.changed_lines():
        assert not line.after or changed.text().splitlines()[line.line - 1].strip() == line.after


@pytest.mark.parametrize(
    ("inject", "kind", "after"),
    [
        (
            replacement_injector(Piece.FORWARD, "model(inputs)", "model(2 * inputs)"),
            "changed",
            "outputs = model(2 * inputs)",
        ),
        (line_injector(Piece.OPTIMIZER, "model.head = None"), "added", "model.head = None"),
        (repetition_injector(Piece.OPTIMIZER, at=Piece.TRAIN_MODE), "added", "optimizer = SGD(model)"),
    ],
)
def test_changed_and_added_lines_are_returned(inject, kind, after):
    changed = loop()
    inject(changed)
    (line,) = changed.changed_lines()
    assert (line.kind, line.after) == (kind, after)
    assert changed.text().splitlines()[line.line - 1].strip() == after


def test_unwrap_removes_head_and_indentation():
    changed = loop()
    changed.unwrap(Piece.EVALUATION, "with no_grad():")
    assert "def evaluate():\n    for x in held_out:\n        model(x)\n    return 1\n" in changed.text()


def test_a_missing_piece_raises_and_names_the_setting_that_adds_it():
    with pytest.raises(CannotInject) as error:
        loop().leave_out(Piece.CLIP)
    assert error.value.settings == {"clip": 1.0}
    assert error.value.fix == "Choose clip = 1.0."
    with pytest.raises(CannotInject, match="backwards"):
        loop().replace(Piece.BACKWARD, "backwards", "")
    with pytest.raises(CannotInject):
        loop().unwrap(Piece.EVALUATION, "with enable_grad():")
    with pytest.raises(CannotInject):
        loop().move(Piece.SCHEDULER_STEP, before=Piece.OPTIMIZER_STEP)
    with pytest.raises(CannotInject, match="No dropout"):
        loop().require(False, "No dropout.", dropout=0.2)
    loop().require(True, "Never raised.")
