"""Functional dropout: what is told of it, and that torch's function does all it did."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trueloop.tracing.attach import Attachment
from trueloop.tracing.events import DropoutWithoutTrainingFlag
from trueloop.tracing.hooks import all_hooks
from trueloop.tracing.hooks.dropouts import FUNCTIONS
from trueloop.tracing.patch import HIDDEN_FILE


class Net(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.linear, self.call = nn.Linear(4, 4), call

    def forward(self, x):
        return self.call(self, self.linear(x))


def untold(module, x):
    return F.dropout(x, 0.5)


CALLS = {
    "positional": lambda: F.dropout(torch.ones(64), 0.5, True, False),
    "by name": lambda: F.dropout(input=torch.ones(64), p=0.5, training=True, inplace=False),
    "in place": lambda: F.dropout(torch.ones(64), 0.5, inplace=True),
    "nothing said": lambda: F.dropout(torch.ones(64)),
    "off": lambda: F.dropout(torch.ones(64), training=False),
    "a tensor that knows torch's functions": lambda: F.dropout(nn.Parameter(torch.ones(64)), 0.2).detach(),
    "channels": lambda: F.dropout2d(torch.ones(2, 8, 3, 3), 0.5),
    "a layer": lambda: nn.Dropout(0.5)(torch.ones(64)),
    "vmap": lambda: torch.func.vmap(lambda x: F.dropout(x, 0.5), randomness="different")(torch.ones(8, 8)),
    "grad": lambda: torch.func.grad(lambda x: F.dropout(x, 0.5).sum())(torch.ones(64)),
    "autocast": lambda: autocast(lambda: F.dropout(torch.ones(4, 4) @ torch.ones(4, 4), 0.5)),
    "scripted": lambda: torch.jit.script(Scripted())(torch.ones(64)),
    "traced as a graph": lambda: torch.fx.symbolic_trace(Scripted())(torch.ones(64)),
}


class Scripted(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5, training=True)


def autocast(call):
    with torch.autocast("cpu", torch.bfloat16):
        return call()


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning", "ignore:.*torch.jit.script:FutureWarning")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_behaviour_is_unchanged(call):
    torch.manual_seed(3)
    expected, after = call(), torch.get_rng_state()
    attachment = Attachment(all_hooks)
    listen = [].append
    attachment.attach(listen)
    Net(untold)(torch.ones(3, 4))
    torch.manual_seed(3)
    got, state = call(), torch.get_rng_state()
    problems = list(attachment.stream.problems)
    attachment.detach(listen)
    assert got.dtype == expected.dtype
    assert torch.equal(got, expected)
    assert torch.equal(state, after)
    assert not problems


def test_inplace_dropout_remains_inplace(everything):
    x = torch.ones(64)
    assert F.dropout(x, 0.5, inplace=True) is x
    assert set(x.tolist()) == {0.0, 2.0}


def test_wrong_arguments_raise_as_before(everything):
    with pytest.raises(ValueError, match="between 0 and 1"):
        F.dropout(torch.ones(3), 1.5)
    with pytest.raises(TypeError):
        F.dropout(torch.ones(3), 0.5, seed=3)


def code():
    return [function.__code__ for function in FUNCTIONS]


def test_pytorch_is_restored():
    before = code()
    attachment = Attachment(all_hooks)
    listen = [].append
    attachment.attach(listen)
    Net(untold)(torch.ones(3, 4))
    files = {each.co_filename for each in code()}
    attachment.detach(listen)
    assert files == {HIDDEN_FILE}
    assert code() == before
    assert not any(name.startswith("_trueloop") for name in vars(F))


def test_pytorch_is_not_patched_if_every_call_has_the_flag(everything):
    before = code()
    nn.Sequential(nn.Linear(4, 4), nn.Dropout())(torch.ones(3, 4))
    assert code() == before


def test_a_compiled_model_is_not_patched(everything):
    before = code()
    model = Net(untold)
    model.compile(backend="eager")
    with torch.compiler.set_stance("force_eager"):
        model(torch.ones(3, 4))
        torch.compile(Net(untold), backend="eager")(torch.ones(3, 4))
    assert code() == before


def test_a_call_without_the_training_flag(everything):
    _, events = everything
    model = Net(untold)
    x = torch.ones(3, 4)
    for _ in range(2):  # it is looked for at the first call
        model(x)
    model.eval()(x)
    first, second = events(DropoutWithoutTrainingFlag)
    assert (first.training, second.training) == (True, False)
    assert (first.function, first.probability) == ("dropout", 0.5)
    assert (first.input_elements, first.input_repeated) == (12, False)
    assert first.module is second.module
    assert first.location.source_location == second.location.source_location
    assert first.location.source_location.line == untold.__code__.co_firstlineno + 1


def test_the_same_tensor_twice(everything):
    _, events = everything

    def twice(module, x):
        return sum(F.dropout1d(x, 0.5) for _ in range(2))

    model = Net(twice)
    for _ in range(2):
        model(torch.ones(3, 4))
    assert [(event.function, event.input_repeated) for event in events(DropoutWithoutTrainingFlag)] == [
        ("dropout1d", False), ("dropout1d", True)
    ]  # fmt: skip


OPTIONS, OTHERS = {"p": 0.5}, [F.dropout]
SILENT = {
    "told by name": lambda module, x: F.dropout(x, 0.5, training=module.training),
    "told by position": lambda module, x: F.dropout(x, 0.5, True),
    "no rate": lambda module, x: F.dropout(x, 0.0),
    "unpacked": lambda module, x: F.dropout(*(x, 0.5)),
    "options": lambda module, x: F.dropout(x, **OPTIONS),
    "by a name in between": lambda module, x: OTHERS[0](x, 0.5),
    "under a condition": lambda module, x: F.dropout(x, 0.5) if module.training else x,
    "after a condition": lambda module, x: module.training and F.dropout(x, 0.5),
    "a layer": lambda module, x: nn.Dropout(0.5)(x),
    "alpha": lambda module, x: F.alpha_dropout(x, 0.5, True),
}


@pytest.mark.parametrize("call", SILENT.values(), ids=SILENT)
def test_calls_without_an_event(everything, call):
    _, events = everything
    model = Net(call)
    for _ in range(2):
        model(torch.ones(3, 4))
    assert not events(DropoutWithoutTrainingFlag)


def test_outside_of_a_model(everything):
    _, events = everything
    Net(untold)(torch.ones(3, 4))
    untold(None, torch.ones(3, 4))
    assert not events(DropoutWithoutTrainingFlag)


def test_recomputation_emits_no_second_event(everything):
    from torch.utils.checkpoint import checkpoint

    _, events = everything
    inner = Net(untold)
    model = Net(lambda module, x: checkpoint(inner, x, use_reentrant=False))
    model(torch.ones(3, 4))
    assert not events(DropoutWithoutTrainingFlag)
    model(torch.ones(3, 4)).sum().backward()
    assert len(events(DropoutWithoutTrainingFlag)) == 1


@pytest.mark.slow(reason="torch.compile")
def test_compiled_code_is_compiled_once(everything):
    compiled = 0

    def backend(graph, inputs):
        nonlocal compiled
        compiled += 1
        return graph.forward

    torch._dynamo.reset()
    attachment, _ = everything
    Net(untold)(torch.ones(3, 4))
    dropped = torch.compile(lambda x: F.dropout(x, 0.5), backend=backend, fullgraph=True)
    x = torch.ones(3, 4)
    for _ in range(3):
        dropped(x)
        attachment.sampling.stop()
        dropped(x)
        attachment.sampling.start()
    assert compiled == 1
    assert not attachment.stream.problems
