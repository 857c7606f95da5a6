"""Reports of calls of models and of the modules inside them."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from trueloop.tracing.attach import Attachment
from trueloop.tracing.events import LayerCalled, ModelCalled
from trueloop.tracing.hooks.module_calls import ModuleCalls
from trueloop.tracing.loader_pass import LoaderPass


@pytest.fixture
def watched():
    """An attachment of this hook only, and the events it reports."""
    events = []
    attachment = Attachment(lambda stream, program: [ModuleCalls(stream, program)])
    attachment.attach(events.append)
    yield attachment, events
    attachment.detach(events.append)
    assert not attachment.stream.problems


def of(events, kind):
    return [event for event in events if type(event) is kind]


def test_the_outermost_model_only(watched):
    attachment, events = watched
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(0.1), nn.BatchNorm1d(2)))
    model(torch.ones(3, 2))
    (event,) = of(events, ModelCalled)
    assert (event.live_module, event.output) == (None, None), "kept beyond the telling"
    assert (event.training, event.dropout_active, event.batchnorm_active, event.all_eval) == (True, True, True, False)
    assert (event.grad_mode, event.has_graph, event.autocast, event.recomputed) == (True, True, None, False)
    assert len(event.parameters) == 4
    assert event.location.source_location.path == __file__
    assert [known for known, _ in attachment.program.models.items()] == [model]


def test_eval_mode_without_graphs_under_autocast(watched):
    _, events = watched
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)).eval()
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.ones(3, 2))
    (event,) = of(events, ModelCalled)
    assert (event.all_eval, event.dropout_active, event.inference_mode) == (True, False, True)
    assert (event.grad_mode, event.has_graph, event.autocast) == (False, False, "bfloat16")


def test_modules_without_parameters_are_no_models(watched):
    _, events = watched
    nn.ReLU()(torch.ones(2))
    nn.functional.relu(torch.ones(2))
    assert not events


def test_an_error_does_not_disable_it(watched):
    attachment, events = watched
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(RuntimeError):
        model(torch.ones(3, 5))
    assert attachment.program.forward_depth == 0
    model(torch.ones(3, 2))
    assert len(of(events, ModelCalled)) == 1


def test_a_batch_is_assigned_to_one_call(watched):
    attachment, events = watched
    loader = attachment.stream.registry.ref(nn.Identity())
    current = LoaderPass(loader=loader, epoch=0, backward_count_at_start=0)
    attachment.program.set_loader_pass(current)
    current.index = 1
    model = nn.Linear(2, 2)
    for _ in range(2):
        model(torch.ones(1, 2))
    current.index = 2
    model(torch.ones(1, 2))
    assert [event.loader for event in of(events, ModelCalled)] == [loader, None, loader]


def test_recomputation_within_a_backward(watched):
    attachment, events = watched
    model = nn.Linear(2, 2)
    with set_checkpoint_early_stop(False):
        output = checkpoint(model, torch.ones(1, 2, requires_grad=True), use_reentrant=False)
    attachment.program.backward_depth = 1
    output.sum().backward()
    attachment.program.backward_depth = 0
    assert [event.recomputed for event in of(events, ModelCalled)] == [False, True]


def test_hooks_and_pickles_are_unchanged(watched):
    seen = []
    model = nn.Sequential(nn.Linear(2, 2))
    model.register_forward_hook(lambda *_: seen.append("hook"))
    model(torch.ones(1, 2))
    plain = nn.Sequential(nn.Linear(2, 2))
    plain(torch.ones(1, 2))
    for twin in (copy.deepcopy(plain), pickle.loads(pickle.dumps(plain))):
        assert torch.equal(twin(torch.ones(1, 2)), plain(torch.ones(1, 2)))
    assert seen == ["hook"]


@pytest.mark.parametrize("use", [torch.autograd.backward, torch.autograd.grad])
def test_a_graph_that_was_used(watched, use):
    _, events = watched
    model = nn.Linear(2, 1).eval()
    for used in (False, True, False):
        x = torch.ones(3, 2, requires_grad=True)
        loss = model(x).sum()
        if used:
            use(loss, inputs=[x])
    model(x)
    assert [event.previous_graph_used for event in of(events, ModelCalled)] == [False, False, True, False]


def test_graphs_within_function_transforms(watched):
    model = nn.Linear(2, 1).eval()
    x = torch.ones(2)
    assert torch.equal(torch.func.grad(lambda v: model(v).sum())(x), model.weight[0])
    assert torch.func.vmap(model)(torch.ones(4, 2)).shape == (4, 1)


def test_layers_are_reported_when_the_shape_of_their_input_changes(watched):
    _, events = watched
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))
    for samples in (1, 4, 4, 1, 1):
        model(torch.ones(samples, 1, 3, 3))
    model.eval()(torch.ones(5, 1, 3, 3))
    nn.LSTM(2, 2, batch_first=True)(torch.ones(4, 3, 2))
    called = [(event.layer.kind, event.shape, event.batch_first) for event in of(events, LayerCalled)]
    batches = [("BatchNorm2d", (samples, 2, 3, 3), None) for samples in (1, 4, 1)]
    assert called == [*batches, ("LSTM", (4, 3, 2), True)]


def test_pytorch_is_restored():
    before = nn.Module.__call__
    attachment = Attachment(lambda stream, program: [ModuleCalls(stream, program)])
    listener = [].append
    attachment.attach(listener)
    assert nn.Module.__call__ is not before
    attachment.detach(listener)
    assert nn.Module.__call__ is before
