"""The teaching loop puts its pieces together, breaks one of them, and knows which lines that has changed."""

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


WHOLE = '''"""Learns."""

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


def test_the_pieces_make_a_script_that_a_person_would_write():
    assert loop().text() == WHOLE
    assert loop().changed_lines() == []


def test_what_closes_a_window_stands_around_what_is_done_once_for_it():
    text = loop(closes="if full:", closing="done()").text()
    assert "        if full:\n            optimizer.step()\n            optimizer.zero_grad()\n    evaluate()\n" in text
    assert text.endswith("\n\ndone()\n")


def test_a_line_is_left_out():
    broken = loop()
    broken.leave_out(Piece.ZERO_GRAD)
    assert "zero_grad" not in broken.text()
    (line,) = broken.changed_lines()
    assert (line.kind, line.before, line.after) == ("left out", "optimizer.zero_grad()", "")
    assert broken.text().splitlines()[line.line - 1] == "    evaluate()"  # what stands in its place


def test_a_line_is_moved_also_to_another_loop():
    broken = loop()
    broken.move(Piece.ZERO_GRAD, before=Piece.OPTIMIZER_STEP)
    assert "        optimizer.zero_grad()\n        optimizer.step()\n" in broken.text()
    broken.move(Piece.OPTIMIZER_STEP, after=Piece.EVALUATE)
    assert broken.text().endswith("    evaluate()\n    optimizer.step()\n")
    for line in broken.changed_lines():
        assert not line.after or broken.text().splitlines()[line.line - 1].strip() == line.after


@pytest.mark.parametrize(
    ("inject", "kind", "after"),
    [
        (replacement_injector(Piece.FORWARD, "model(inputs)", "model(2 * inputs)"), "changed", "outputs = model(2 * inputs)"),
        (line_injector(Piece.OPTIMIZER, "model.head = None"), "added", "model.head = None"),
        (repetition_injector(Piece.OPTIMIZER, at=Piece.TRAIN_MODE), "added", "optimizer = SGD(model)"),
    ],
)
def test_the_lines_that_are_changed_and_added_are_known(inject, kind, after):
    broken = loop()
    inject(broken)
    (line,) = broken.changed_lines()
    assert (line.kind, line.after) == (kind, after)
    assert broken.text().splitlines()[line.line - 1].strip() == after


def test_a_block_loses_its_head_and_its_indentation():
    broken = loop()
    broken.unwrap(Piece.EVALUATION, "with no_grad():")
    assert "def evaluate():\n    for x in held_out:\n        model(x)\n    return 1\n" in broken.text()


def test_what_is_not_there_cannot_be_broken_and_the_setting_that_would_help_is_named():
    with pytest.raises(CannotInject) as lack:
        loop().leave_out(Piece.CLIP)
    assert lack.value.settings == {"clip": 1.0}
    assert lack.value.fix == "Choose clip = 1.0."
    with pytest.raises(CannotInject, match="backwards"):
        loop().replace(Piece.BACKWARD, "backwards", "")
    with pytest.raises(CannotInject):
        loop().unwrap(Piece.EVALUATION, "with enable_grad():")
    with pytest.raises(CannotInject):
        loop().move(Piece.SCHEDULER_STEP, before=Piece.OPTIMIZER_STEP)
    with pytest.raises(CannotInject, match="No dropout"):
        loop().require(False, "No dropout.", dropout=0.2)
    loop().require(True, "Never said.")
