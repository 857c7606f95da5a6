"""Roles of names that a fragment leaves undefined."""

import pytest

from trueloop.analysis.abstract_value import EXTERNAL, ValueKind
from trueloop.analysis.interpreter.interpreter import interpret
from trueloop.analysis.operations import OpKind
from trueloop.analysis.project import parse_module

LOOP = """
for x, y in train_loader:
    optimizer.zero_grad()
    loss = criterion(net(x), y)
    loss.backward()
    optimizer.step()
"""
NETWORK = """
class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.last = nn.Linear(4, 1)
    def forward(self, x):
        return torch.sigmoid(self.last(x))
"""


def _operations(text):
    return interpret(parse_module("fragment.py", text)).operations


def test_a_fragment_has_a_model_an_optimizer_and_a_loader():
    operations = _operations(LOOP)
    kinds = [each.kind for each in operations if each.kind is not OpKind.ESCAPE]
    assert kinds == [
        OpKind.ITERATE, OpKind.CLEAR_GRADIENTS, OpKind.MODEL_CALL, OpKind.BACKWARD, OpKind.STEP,
    ]  # fmt: skip
    assert operations[0].subject.kind is ValueKind.LOADER
    (step,) = [each for each in operations if each.kind is OpKind.STEP]
    assert step.subject.kind is ValueKind.OPTIMIZER
    assert EXTERNAL in step.subject.facts
    assert step.subject is next(each for each in operations if each.kind is OpKind.CLEAR_GRADIENTS).subject


def test_the_only_network_of_a_fragment_is_its_model_and_exists_before_the_loop():
    operations = _operations(NETWORK + LOOP)
    created = next(each for each in operations if each.kind is OpKind.CREATE and each.subject.name == "Net")
    called = next(each for each in operations if each.kind is OpKind.MODEL_CALL)
    assert called.subject is created.subject
    assert not created.loops
    assert called.result is not None
    assert called.result.name == "torch.sigmoid"


@pytest.mark.parametrize(
    "text",
    [
        NETWORK + NETWORK.replace("Net", "Other") + LOOP,
        NETWORK + "def build():\n    return Net()\n" + LOOP,
        NETWORK + LOOP + "print(other_net(1))\n",
        NETWORK.replace("forward", "encode") + LOOP,
    ],
    ids=["two networks", "created elsewhere", "two models", "no forward"],
)
def test_a_model_that_may_be_another_network_stays_unknown(text):
    called = next(each for each in _operations(text) if each.kind is OpKind.MODEL_CALL and each.loops)
    assert called.subject.scope is None


@pytest.mark.parametrize(
    "head",
    ["from networks import *\n", "def net(x):\n    return x\n", "import net\n"],
    ids=["star import", "function", "import"],
)
def test_a_name_that_the_file_binds_is_defined(head):
    assert all(each.kind is not OpKind.MODEL_CALL for each in _operations(head + LOOP))


def test_names_that_a_file_binds_anywhere_are_defined():
    module = parse_module(
        "a.py",
        """
import os.path as p, json.decoder
def f(a, *b, c=1, **d):
    global e
    e = lambda g: [h for h in a + g + undefined]
    try:
        pass
    except ValueError as error:
        print(error, json)
match p:
    case [first, *rest]:
        print(first, rest, f, e, b, c, d)
""",
    )
    assert module.undefined_names - {"print", "ValueError"} == {"undefined"}
