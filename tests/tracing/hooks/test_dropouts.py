"""Functional dropout is traced only if a model uses it, and works as before."""

from __future__ import annotations

import ast
import math
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trueloop.tracing.attach import Attachment
from trueloop.tracing.hooks import all_hooks
from trueloop.tracing.hooks.dropouts import FUNCTIONS
from trueloop.tracing.patch import HIDDEN_FILE
from trueloop.tracing.source_calls import MAX_LINES, call_at, calls_in, resolve_global


class Net(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.linear, self.call = nn.Linear(4, 4), call

    def forward(self, x):
        return self.call(self, self.linear(x))


def without_flag(module, x):
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
    listener = [].append
    attachment.attach(listener)
    Net(without_flag)(torch.ones(3, 4))
    torch.manual_seed(3)
    got, state = call(), torch.get_rng_state()
    problems = list(attachment.stream.problems)
    attachment.detach(listener)
    assert got.dtype == expected.dtype
    assert torch.equal(got, expected)
    assert torch.equal(state, after)
    assert not problems


def test_inplace_dropout_remains_inplace(attached):
    x = torch.ones(64)
    assert F.dropout(x, 0.5, inplace=True) is x
    assert set(x.tolist()) == {0.0, 2.0}


def test_wrong_arguments_raise_as_before(attached):
    with pytest.raises(ValueError, match="between 0 and 1"):
        F.dropout(torch.ones(3), 1.5)
    with pytest.raises(TypeError):
        F.dropout(torch.ones(3), 0.5, seed=3)


def code():
    return [function.__code__ for function in FUNCTIONS]


def test_pytorch_is_restored():
    before = code()
    attachment = Attachment(all_hooks)
    listener = [].append
    attachment.attach(listener)
    Net(without_flag)(torch.ones(3, 4))
    files = {each.co_filename for each in code()}
    attachment.detach(listener)
    assert files == {HIDDEN_FILE}
    assert code() == before
    assert not any(name.startswith("_trueloop") for name in vars(F))


def test_pytorch_is_not_patched_if_every_call_has_the_flag(attached):
    before = code()
    nn.Sequential(nn.Linear(4, 4), nn.Dropout())(torch.ones(3, 4))
    assert code() == before


def test_a_compiled_model_is_not_patched(attached):
    before = code()
    model = Net(without_flag)
    model.compile(backend="eager")
    with torch.compiler.set_stance("force_eager"):
        model(torch.ones(3, 4))
        torch.compile(Net(without_flag), backend="eager")(torch.ones(3, 4))
    assert code() == before


@pytest.mark.slow(reason="torch.compile")
def test_compiled_code_is_compiled_once(attached):
    compiled = 0

    def backend(graph, inputs):
        nonlocal compiled
        compiled += 1
        return graph.forward

    torch._dynamo.reset()
    attachment, _ = attached
    Net(without_flag)(torch.ones(3, 4))
    dropped = torch.compile(lambda x: F.dropout(x, 0.5), backend=backend, fullgraph=True)
    x = torch.ones(3, 4)
    for _ in range(3):
        dropped(x)
        attachment.sampling.stop()
        dropped(x)
        attachment.sampling.start()
    assert compiled == 1
    assert not attachment.stream.problems


# The calls of a file, and the call that a frame is executing -----------------------------------------------------

CALLS: list[ast.Call | None] = []


def here(*values, **options):
    """Record the call in the caller's frame."""
    CALLS.append(call_at(sys._getframe(1)))
    return 1


def test_a_call_is_parsed():
    CALLS.clear()
    here(1, two="ü"), here(3)
    here(
        4,
        five=5,
    )
    read = [ast.unparse(call) for call in CALLS if call is not None]
    assert read == ["here(1, two='ü')", "here(3)", "here(4, five=5)"]


def test_without_source_there_is_none():
    CALLS.clear()
    exec(compile("here(1)", "<nowhere>", "exec"), {"here": here})
    assert CALLS == [None]


def test_names_within_modules():
    def expression(text):
        return ast.parse(text, mode="eval").body

    space = {"m": math, "plain": here}
    assert resolve_global(expression("m.sqrt"), space) is math.sqrt
    assert resolve_global(expression("plain"), space) is here
    assert resolve_global(expression("plain.__name__"), space) is None
    assert resolve_global(expression("unknown.sqrt"), space) is None
    assert resolve_global(expression("m.sqrt()"), space) is None


def test_the_calls_of_a_file(tmp_path):
    path = tmp_path / "some.py"
    path.write_text("import math\nprint(math.sqrt(4))\n")
    assert [ast.unparse(call.func) for call in calls_in(str(path))] == ["print", "math.sqrt"]
    assert not calls_in(str(path), "math", "dropout")
    assert not calls_in(str(tmp_path / "none.py"))


@pytest.mark.parametrize("text", ["print(1", "print(1)\n" * (MAX_LINES + 1)])
def test_files_that_are_not_read(tmp_path, text):
    path = tmp_path / "other.py"
    path.write_text(text)
    assert not calls_in(str(path))
