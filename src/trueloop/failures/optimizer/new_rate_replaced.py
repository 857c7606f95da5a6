"""Loading the optimizer's state replaces the new learning rate with the one of the earlier stage.

What you see
    A second stage, such as a fine-tuning, hardly changes the model, or makes it diverge. Other values of its learning
    rate change nothing. If you print ``optimizer.param_groups[0]["lr"]``, it is the rate with which the earlier stage
    ended, which a schedule may have lowered to almost 0.

Why it happens
    The state of an optimizer also holds its parameter groups, with learning rate, momentum and weight decay.
    ``load_state_dict`` sets them all, whatever the optimizer was built with.

Fix
    Set the rate after the state was loaded, or do not load the state if a new stage starts.

        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
        optimizer.load_state_dict(checkpoint["optimizer"])
        for group in optimizer.param_groups:
            group["lr"] = 1e-4

When this is fine
    - The same training goes on: the rate to continue with is the saved one.
    - The program sets the rate after the load, or a scheduler of the new optimizer does.

How it is detected
    Only the linter finds it: a program saves the state of one optimizer and loads it into another one that then
    steps, and the two were built with different learning rates: two numbers, or two options with different names.
    Nothing is reported if the file sets a rate in parameter groups, if the second optimizer has a scheduler, if its own
    state was saved before, or if it is passed to code outside the file.

References
    torch.optim.Optimizer.load_state_dict,
    https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.load_state_dict.html
"""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.captured_states import saved_optimizers
from trueloop.analysis.queries.optimizer_settings import has_other_rate, rate_of, sets_in_groups
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.failures.failure import Failure, Rule, Severity, changed


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each load that gives a new optimizer the learning rate of the one of an earlier stage."""
    loads = [each for each in source.ops(OpKind.LOAD_STATE_DICT) if each.subject.kind is ValueKind.OPTIMIZER]
    if not loads or _may_set_rates(source):
        return
    for load in loads:
        new = load.subject
        earlier = _earlier_optimizers(source, load)
        if not earlier or not all(has_other_rate(each, new) for each in earlier) or not _trains_alone(source, load):
            continue
        old_rate, new_rate = _text(earlier[0]), _text(new)
        yield Hit(
            message=f"`{ast.unparse(load.node)}` replaces the new learning rate, {new_rate}, with the saved one, that "
            f"of an optimizer built with {old_rate}.",
            node=load.node,
            related=((new.node, "the new rate"), (earlier[0].node, "the optimizer whose state is loaded")),
        )


def _may_set_rates(source: SourceFile) -> bool:
    """Return True if a file sets a learning rate in parameter groups, or replaces the groups of a state."""
    if any(sets_in_groups(source.tree, name) for name in ("lr", "initial_lr", "param_groups")):
        return True
    keys = [*source.nodes_of(ast.Subscript), *source.nodes_of(ast.Call)]
    used = [each.slice if isinstance(each, ast.Subscript) else each.args[0] if each.args else None for each in keys]
    return any(isinstance(each, ast.Constant) and each.value == "param_groups" for each in used)


def _earlier_optimizers(source: SourceFile, load: Op) -> list[AbstractValue]:
    """Return the optimizers whose states a load may get; [] if its own may be among them."""
    values = [each for value in load.inputs for each in value.ancestors()]
    states = [each for each in values if each.kind is ValueKind.STATE and each.sources]
    if states:
        return [each.sources[0] for each in states if each.sources[0].kind is ValueKind.OPTIMIZER]
    ids = {id(each) for each in values}
    files = [each for each in source.ops(OpKind.LOAD) if id(each.result) in ids]
    run = source.ops_of_run(load)
    saves = [each for each in run if each.kind is OpKind.SAVE and (each.index < load.index or each.excludes(load))]
    found: list[AbstractValue] = []
    for save in saves:
        if files and not all(_is_other_file(save, file) for file in files):
            found += saved_optimizers(save)
    return [] if any(each.may_alias(load.subject) for each in found) else found


def _is_other_file(save: Op, file: Op) -> bool:
    """Return True if a save certainly writes another file than the one that is read."""
    written, read = save.arguments.get("1") or save.arguments.get("f"), file.arguments.get("0")
    names = [each.constant() for each in (written, read) if each is not None]
    return len(names) == 2 and None not in names and names[0] != names[1]


def _trains_alone(source: SourceFile, load: Op) -> bool:
    """Return True if an optimizer steps after a load, and neither a scheduler nor unknown code may change its rate."""
    run, new = source.ops_of_run(load), load.subject
    steps = [each for each in run if each.kind is OpKind.STEP and each.index > load.index]
    created = [each.subject for each in run if each.kind is OpKind.CREATE]
    schedulers = [each for each in created if each.kind is ValueKind.SCHEDULER]
    has_scheduler = any(
        not each.sources or each.sources[0].kind is not ValueKind.OPTIMIZER or each.sources[0].may_alias(new)
        for each in schedulers
    )
    return any(each.subject.may_alias(new) for each in steps) and not has_scheduler and not source.escapes(new, run)


def _text(optimizer: AbstractValue) -> str:
    """Return the learning rate of an optimizer as a number, or the expression that gives it."""
    rate = rate_of(optimizer)
    number = None if rate is None else rate.constant()
    return f"{number:g}" if isinstance(number, int | float) else f"`{ast.unparse(rate.node)}`" if rate else "another"


RULE: Final = Rule(required_words=("load_state_dict(", "optim", "torch", "lr", "state_dict()"), find=find)

BAD = """
import os
import tempfile
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(64, 6)
path = os.path.join(tempfile.mkdtemp(), "first.pt")


def train(model, optimizer, targets):
    for rows in torch.randperm(64).split(16):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[rows]), targets[rows]).backward()
        optimizer.step()


model = nn.Linear(6, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
train(model, optimizer, x.sum(1, keepdim=True))
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)

checkpoint = torch.load(path)
tuned = nn.Linear(6, 1)
tuned.load_state_dict(checkpoint["model"])
optimizer = torch.optim.Adam(tuned.parameters(), lr=0.002)
optimizer.load_state_dict(checkpoint["optimizer"])
train(tuned, optimizer, x.mean(1, keepdim=True))
"""

FAILURE = Failure(
    code="OPT021",
    title="Loading the optimizer's state replaces the new learning rate",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            'optimizer.load_state_dict(checkpoint["optimizer"])': (
                'optimizer.load_state_dict(checkpoint["optimizer"])\nfor group in optimizer.param_groups:\n'
                '    group["lr"] = 0.002'
            )
        },
    ),
    fix='Set the rate after the load: for group in optimizer.param_groups: group["lr"] = new_rate.',
    rule=RULE,
)
