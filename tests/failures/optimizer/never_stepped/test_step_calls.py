"""Uses of an optimizer in source code that never steps it."""

import ast

import pytest

from trueloop.failures.optimizer.never_stepped.step_calls import (
    find_assigned_target,
    find_step_lines,
    find_uses,
)

MADE = "opt = torch.optim.SGD(model.parameters(), lr=0.1)\n"


def find_optimizer_uses(text, **others):
    """Return the uses of the optimizer that the first line creates."""
    texts = {"train.py": ast.parse(MADE + text), **{f"{name}.py": ast.parse(each) for name, each in others.items()}}
    target = find_assigned_target(texts["train.py"], 1, "SGD")
    assert target is not None
    return find_uses(texts, "train.py", target)


@pytest.mark.parametrize(
    "text",
    [
        "opt.step()",
        "opt.step(closure)",
        "run(opt.step)",
        "unknown(opt)",
        "both = [opt, other]",
        "def f():\n    return opt",
        "class A:\n  def __init__(self, given):\n    self.a = given\n  def go(self):\n    self.a.step()\nA(opt)",
        "def f(first, given):\n    given.step()\nf(1, opt)",
        "def f(first, given):\n    given.step()\nf(1, given=opt)",
        "def f(*given):\n    given[0].step()\nf(opt)",
        "def f(given):\n    pass\nf(*opt)",
        "other = opt\nother.step()",
        "globals()['opt'].step()",
        "s = lr_scheduler.StepLR(opt, 1)\ns.optimizer.step()",
        "scaler.step(opt)",
    ],
)
def test_everything_that_may_step_it(text):
    assert find_optimizer_uses(text) is None


@pytest.mark.parametrize(
    ("text", "cleared", "named", "held"),
    [
        ("opt.zero_grad()", True, 0, False),
        ("opt.step", False, 1, False),
        ("print(opt, f'{opt}', opt.state_dict())", False, 0, False),
        ("def f(given, n=1):\n    given.zero_grad()\nf(opt, n=2)", True, 0, False),
        ("s = torch.optim.lr_scheduler.StepLR(opt, 1)\ns.step()", False, 0, False),
        ("from torch.optim.lr_scheduler import StepLR\ns = StepLR(opt, 1)", False, 0, False),
        ("class Run:\n    def __init__(self, given):\n        self.own = given\nRun(opt)", False, 0, True),
        ("def f(opt2):\n    opt2.step()\nf(other)", False, 0, False),
    ],
)
def test_invalid_cases(text, cleared, named, held):
    found = find_optimizer_uses(text)
    assert found is not None
    assert (found.cleared, len(found.uncalled_steps), found.is_attribute) == (cleared, named, held)


def test_another_file_may_step_what_it_imports_only():
    stepping = "opt.step()"
    assert find_optimizer_uses("opt.zero_grad()", other=f"from train import opt\n{stepping}") is None
    assert find_optimizer_uses("opt.zero_grad()", other=f"import train\ntrain.{stepping}") is None
    assert find_optimizer_uses("opt.zero_grad()", other=f"from my.train import opt\n{stepping}") is not None
    assert find_optimizer_uses("opt.zero_grad()", other=f"opt = make()\n{stepping}") is not None


def test_only_plain_names_are_resolved():
    assert find_assigned_target(ast.parse("a = b = SGD(p)"), 1, "SGD") is None
    assert find_assigned_target(ast.parse("a = wrap(SGD(p))"), 1, "SGD") is None
    assert find_assigned_target(ast.parse("a, b = SGD(p), SGD(q)"), 1, "SGD") is None
    assert isinstance(find_assigned_target(ast.parse("self.a = SGD(\n    p)"), 2, "SGD"), ast.Attribute)


def test_lines_that_may_step():
    text = "def train_step(): pass\ntrain_step()\no.step\no.step()\nrun(o.step)\nxm.optimizer_step(o)\nstep = 1\n"
    assert set(find_step_lines({"a.py": ast.parse(text)})) == {("a.py", 4), ("a.py", 5), ("a.py", 6)}


def test_dynamically_imported_code_may_step():
    text = "importlib.import_module(name)\nexec(text)\nmodel.eval()\n"
    assert set(find_step_lines({"a.py": ast.parse(text)})) == {("a.py", 1), ("a.py", 2)}
