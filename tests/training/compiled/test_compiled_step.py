"""Which runs are not compiled, and which windows use which program."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trueloop.training.compiled.compiled_step import _differing_dimensions, shapes_of
from trueloop.training.config import TrainConfig

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # raised by torch while its compiler is imported
    pytest.mark.compiles_updates,
]


def test_windows_differ_only_by_shapes_and_dtypes():
    regular = {"x": torch.zeros(4, 3), "more": [torch.zeros(4, dtype=torch.int64), "words"]}
    equal_shapes = {"x": torch.ones(4, 3), "more": [torch.ones(4, dtype=torch.int64), "others"]}
    assert shapes_of(regular) == shapes_of(equal_shapes)
    assert shapes_of(regular) != shapes_of({**regular, "x": torch.zeros(4, 3).double()})
    assert shapes_of(regular) != shapes_of({**regular, "x": torch.zeros(5, 3)})
    assert shapes_of(regular) != shapes_of({"x": regular["x"]})


@pytest.mark.parametrize(
    ("batch", "open_dimensions"),
    [
        ((torch.zeros(5, 7), torch.zeros(5)), [0, 1, 0]),
        ((torch.zeros(4, 7), torch.zeros(4)), [1]),
        ((torch.zeros(1, 3), torch.zeros(1)), [None, None]),  # torch compiles separately for sizes of 0 and 1
        ((torch.zeros(4, 3, 1), torch.zeros(4)), [None]),
        ((torch.zeros(4, 3).double(), torch.zeros(4)), [None]),
        ((torch.zeros(4, 3),), [None]),
        ([torch.zeros(4, 3), torch.zeros(4)], []),
    ],
)
def test_differing_dimensions_are_listed(batch, open_dimensions):
    ordinary = shapes_of((torch.zeros(4, 3), torch.zeros(4)))
    assert [dimension for _, dimension in _differing_dimensions(batch, shapes_of(batch), ordinary)] == open_dimensions


def hook(model: nn.Module, how: str) -> None:
    if how == "parameters have hooks":
        model[0].weight.register_hook(lambda gradient: gradient)
    elif how == "after accumulation":
        model[0].weight.register_post_accumulate_grad_hook(lambda parameter: None)
    elif how == "modules have backward hooks":
        model[0].register_full_backward_hook(lambda *_: None)


@pytest.mark.parametrize(
    ("how", "notices"),
    [
        ("parameters have hooks", "parameters have hooks"),
        ("after accumulation", "parameters have hooks"),
        ("modules have backward hooks", "modules have backward hooks"),
        ("nothing", None),
    ],
)
def test_hooks_are_reported_as_the_reason(build, how, notices):
    model = nn.Sequential(nn.Linear(3, 2))
    hook(model, how)
    full = build(model, nn.CrossEntropyLoss(), TrainConfig(compile=True)).compiled_step
    results = [message for _, message in full.drain_notices()]
    assert full.disabled == bool(notices)
    assert [notices in message for message in results] == ([True] if notices else [])
    assert not full.drain_notices()


def test_an_optimizer_hook_is_reported_as_the_reason(build):
    def hooked(parameters):
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        optimizer.register_step_post_hook(lambda *_: None)
        return optimizer

    full = build(nn.Linear(3, 2), nn.CrossEntropyLoss(), TrainConfig(compile=True), optimizer=hooked).compiled_step
    assert "the optimizer has hooks" in full.drain_notices()[0].message


def test_the_compiled_windows_are_part_of_the_state(build):
    config = TrainConfig(compile=True)
    regular, other = (build(nn.Linear(3, 2), nn.CrossEntropyLoss(), config).compiled_step for _ in range(2))
    batch = (torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64))
    short = (torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))
    assert regular.gradient_program(batch)
    assert regular.gradient_program(short) is None
    other.load_state_dict(regular.state_dict())
    assert other.gradient_program(short) is None  # although it is the first window here
    assert other.gradient_program(batch)
    assert other.state_dict() == {"regular": "(tensor [4, 3] float32, tensor [4] int64)", "others": 2}
