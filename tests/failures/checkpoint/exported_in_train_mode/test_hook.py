"""A model that is traced and then saved gives one event, with the modes at the time of tracing."""

import io

import pytest
import torch
from torch import nn

from trueloop.failures.checkpoint.exported_in_train_mode import ModelExported
from trueloop.failures.checkpoint.exported_in_train_mode.hook import Exports
from trueloop.tracing.attach import Attachment


@pytest.fixture
def watched():
    """The events that the hook of exports reports."""
    events: list[ModelExported] = []
    attachment = Attachment(lambda stream, program: [Exports(stream, program)])
    attachment.attach(events.append)
    yield events
    attachment.detach(events.append)
    assert not attachment.stream.problems


def network():
    return nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.BatchNorm1d(2))


def seen(events):
    return [(event.how, event.dropout, event.batchnorm) for event in events]


@pytest.mark.filterwarnings("ignore")
def test_a_trace_is_reported_when_saved(watched, tmp_path):
    model = network()
    traced = torch.jit.trace(model, torch.ones(2, 2), check_trace=False)
    assert not watched
    traced.save(str(tmp_path / "a.pt"))
    assert seen(watched) == [("torch.jit.trace", True, True)]
    assert watched[0].location.source_location.line == 36, "where it was traced"
    traced.save(str(tmp_path / "b.pt"))
    assert len(watched) == 1, "once"
    torch.jit.save(torch.jit.trace(model.eval(), torch.ones(2, 2)), io.BytesIO())
    assert seen(watched)[1:] == [("torch.jit.trace", False, False)]


@pytest.mark.filterwarnings("ignore:The tensor attributes self._flat_weights")
def test_an_exported_program_is_reported_with_its_modes(watched, tmp_path):
    model = network()
    model[1].eval()
    program = torch.export.export(model, (torch.ones(2, 2),))
    model.eval()
    torch.export.save(program, tmp_path / "a.pt2")
    assert seen(watched) == [("torch.export.export", False, True)]
    torch.export.save(torch.export.export(nn.LSTM(2, 2, 2, dropout=0.1), (torch.ones(1, 3, 2),)), io.BytesIO())
    assert seen(watched)[1:] == [("torch.export.export", True, False)]


@pytest.mark.filterwarnings("ignore")
def test_onnx_exports_are_reported_immediately(watched, tmp_path):
    pytest.importorskip("onnxscript")
    torch.onnx.export(
        nn.Sequential(nn.Dropout(0.1)), (torch.ones(2, 2),), tmp_path / "a.onnx", dynamo=True, verbose=False
    )
    assert ("torch.onnx.export", True, False) in seen(watched)


def test_pytorch_is_unchanged():
    before = torch.jit.trace, torch.export.export, torch.export.save, torch.jit.ScriptModule.save
    attachment = Attachment(lambda stream, program: [Exports(stream, program)])
    events = []
    attachment.attach(events.append)
    assert torch.export.save is not before[2]
    attachment.detach(events.append)
    assert (torch.jit.trace, torch.export.export, torch.export.save, torch.jit.ScriptModule.save) == before
