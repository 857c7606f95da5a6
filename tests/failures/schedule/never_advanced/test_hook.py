"""Statements that may step a scheduler, and statements that set learning rates by hand."""

import ast

import pytest

from trueloop.analysis.queries.optimizer_settings import sets_in_groups
from trueloop.failures.schedule.never_advanced.hook import may_step_schedule

OTHERS = {
    "an optimizer that is cleared": "def f(o):\n    o.zero_grad()\n    o.step()",
    "one that is made there": "o = torch.optim.SGD(parameters, 0.1)\no.step()",
    "held by a class": "class A:\n def a(self):\n  self.o.zero_grad()\n def b(self):\n  self.o.step()",
    "a scaler": "scaler.scale(loss).backward()\nscaler.step(optimizer)",
    "an environment": "env.reset()\nenv.step(action)",
    "a method of its own": "class A:\n def step(self): ...\n def b(self):\n  self.step()\n  super().step()",
    "a number": "wandb.log({'step': step})",
}
MAYBE = {
    "a name": "scheduler.step()",
    "one that is handed over": "def f(o, s):\n    o.zero_grad()\n    o.step()\n    s.step()",
    "cleared in another function": "def f(o):\n    o.zero_grad()\ndef g(o):\n    o.step()",
    "an item": "schedules[0].step()",
    "a method that is kept": "at_end.append(scheduler.step)",
    "by name": "getattr(thing, 'step')()",
    "a schedule of torch's": "s = torch.optim.lr_scheduler.StepLR(o, 1)\ns.step()",
}


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
def test_other_objects_are_no_schedulers(text: str):
    assert not may_step_schedule(ast.parse(text))


@pytest.mark.parametrize("text", MAYBE.values(), ids=MAYBE)
def test_anything_else_may_step(text: str):
    assert may_step_schedule(ast.parse(text))


@pytest.mark.parametrize(
    ("text", "sets"),
    [
        ("group['lr'] = 0.1", True),
        ("group['lr'] *= 0.1", True),
        ("group.update(lr=0.1)", True),
        ("group.update({'lr': 0.1})", True),
        ("lr = group['lr']", False),
        ("group['weight_decay'] = 0", False),
        ("progress.update(1)", False),
    ],
)
def test_learning_rates_set_by_hand_are_detected(text: str, sets: bool):
    assert sets_in_groups(ast.parse(text), "lr", frozenset()) is sets
