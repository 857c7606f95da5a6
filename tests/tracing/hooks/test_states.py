"""State_dicts: the model whose memory they share, whether it changed since, and the file they were loaded from."""

import pickle

import pytest
import torch
from torch import nn

from trueloop.tracing.attach import Attachment
from trueloop.tracing.events import CheckpointRead, CheckpointWritten, StateLoaded
from trueloop.tracing.hooks.states import States


@pytest.fixture
def watched():
    """An attachment of this hook only, and the events it reports."""
    events = []
    attachment = Attachment(lambda stream, program: [States(stream, program)])
    attachment.attach(events.append)
    yield attachment, events
    attachment.detach(events.append)
    assert not attachment.stream.problems


def of(events, kind):
    return [event for event in events if type(event) is kind]


def test_a_file_is_followed_to_the_loaded_objects(watched, tmp_path):
    _, events = watched
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
    path = tmp_path / "all.pt"
    saved = {"m": model.state_dict(), "o": optimizer.state_dict(), "s": scheduler.state_dict(), "epoch": 1}
    torch.save(saved, path)
    read = torch.load(path, weights_only=True)
    model.load_state_dict(read["m"])
    optimizer.load_state_dict(read["o"])
    scheduler.load_state_dict(read["s"])
    (written,), (seen,) = of(events, CheckpointWritten), of(events, CheckpointRead)
    for event in (written, seen):
        assert event.path == str(path)
        assert event.holds_model
        assert event.holds_optimizer
    assert seen.weights_only is True
    loaded = [(event.what, event.file is seen.file) for event in of(events, StateLoaded)]
    assert loaded == [("model", True), ("optimizer", True), ("scheduler", False)]


def test_weights_alone_are_no_optimizer(watched, tmp_path):
    _, events = watched
    torch.save(nn.Linear(3, 2).state_dict(), tmp_path / "weights.pt")
    torch.load(tmp_path / "weights.pt")
    (event,) = of(events, CheckpointRead)
    assert (event.holds_model, event.holds_optimizer, event.weights_only) == (True, False, None)


def test_a_tensor_that_pickle_reads_is_no_checkpoint(watched):
    _, events = watched
    found = pickle.loads(pickle.dumps({"loss": torch.ones(2)}))
    assert found["loss"].sum() == 2
    assert of(events, CheckpointRead) == []


def test_errors_pass_and_pytorch_is_restored():
    before = nn.Module.state_dict, nn.Module.load_state_dict, torch.save, torch.load
    attachment = Attachment(lambda stream, program: [States(stream, program)])
    listener = lambda event: None  # noqa: E731
    attachment.attach(listener)
    with pytest.raises(RuntimeError, match="size mismatch"):
        nn.Linear(3, 2).load_state_dict(nn.Linear(2, 3).state_dict())
    with pytest.raises(FileNotFoundError):
        torch.load("/nowhere/at/all.pt")
    attachment.detach(listener)
    assert before == (nn.Module.state_dict, nn.Module.load_state_dict, torch.save, torch.load)
