"""The source lines of losses are recorded for every way to call them, and the hook is removed afterwards."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import cross_entropy as imported_by_name

from trueloop.tracing.hooks.loss_lines import LOSSES, LossLines
from trueloop.tracing.losses import LossProbe
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream

X, Y = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])


@pytest.fixture
def traced_lines() -> Iterator[EventStream]:
    stream, patches = EventStream(), Patches()
    stream.active = True
    LossLines(stream, ProgramState()).install_full_tracing(patches)
    yield stream
    patches.restore()
    assert not stream.problems


def line_of(loss: torch.Tensor) -> tuple[str, int] | None:
    (record,) = LossProbe(loss).losses()
    return record.location and record.location.source_location[:2]


def this_line() -> int:
    return inspect.currentframe().f_back.f_lineno


def test_the_line_is_recorded_however_the_loss_is_called(traced_lines: EventStream):
    z = X.clone().requires_grad_()
    assert line_of(imported_by_name(z, Y)) == (__file__, this_line())
    assert line_of(nn.CrossEntropyLoss(label_smoothing=0.1)(z, Y) / 4) == (__file__, this_line())
    assert line_of(F.l1_loss(z, X) * 2) == (__file__, this_line())
    loss = F.cross_entropy(input=z, target=Y, reduction="none")
    line = this_line() - 1
    assert line_of(loss.mean()) == (__file__, line)


def test_two_losses_of_one_kind_keep_their_own_lines(traced_lines: EventStream):
    z = X.clone().requires_grad_()
    one = F.mse_loss(z, X)
    two = F.mse_loss(z, X + 1)
    lines = {found.location.source_location.line for found in LossProbe(one + two).losses()}
    assert lines == {this_line() - 3, this_line() - 2}


def test_sampled_tracing_records_nothing(traced_lines: EventStream):
    traced_lines.full_tracing = False
    assert line_of(F.cross_entropy(X.clone().requires_grad_(), Y)) is None


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_results_signatures_errors_and_torchscript_are_unchanged(traced_lines: EventStream):
    assert F.cross_entropy(X, Y).item() == torch.nn.functional.nll_loss(X.log_softmax(1), Y).item()
    assert str(inspect.signature(F.huber_loss)).startswith("(input: torch.Tensor, target: torch.Tensor, reduction")
    with pytest.raises(TypeError, match="cross_entropy"):
        F.cross_entropy(X)
    with pytest.raises(IndexError):
        F.cross_entropy(X, Y + 7)
    assert torch.jit.script(nn.CrossEntropyLoss())(X, Y) == F.cross_entropy(X, Y)


@pytest.mark.parametrize("loss", [F.cross_entropy, F.mse_loss, F.huber_loss, F.l1_loss])
def test_it_compiles_into_one_graph(traced_lines: EventStream, loss):
    z, target = X.clone().requires_grad_(), Y if loss is F.cross_entropy else X + 1
    compiled = torch.compile(lambda a, b: loss(a, b) * 2, backend="eager", fullgraph=True)
    assert compiled(z, target).item() == 2 * loss(z, target).item()


def test_everything_is_restored():
    codes = [function.__code__ for function in LOSSES]
    names = set(vars(F))
    patches = Patches()
    for _ in range(3):
        LossLines(EventStream(), ProgramState()).install_full_tracing(patches)
        assert all(function.__code__ is not code for function, code in zip(LOSSES, codes, strict=True))
        patches.restore()
        assert [function.__code__ for function in LOSSES] == codes
        assert set(vars(F)) == names


@pytest.mark.slow(reason="torch.compile")
def test_it_is_not_recompiled_each_time():
    compiled = []

    def backend(graph, inputs):
        compiled.append(1)
        return graph.forward

    torch._dynamo.reset()
    stream, patches = EventStream(), Patches()
    stream.active = True
    places = LossLines(stream, ProgramState())
    halved = torch.compile(lambda a, b: F.mse_loss(a, b) / 2, backend=backend, fullgraph=True)
    for _ in range(4):
        places.install_full_tracing(patches)
        stream.full_tracing = True
        halved(X, X + 1)
        patches.restore()
        stream.full_tracing = False
        halved(X, X + 1)
    assert 1 <= len(compiled) <= 2  # with what is put in its place, and with torch's own where dynamo looks that far
