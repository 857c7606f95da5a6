"""A loop over ``modules()`` and their ``parameters()`` lists each parameter several times for the optimizer.

What you see
    Training is faster and less stable than the learning rate suggests: deep parts of the network move several times as
    far as the others. PyTorch only warns that a parameter group has duplicate parameters.

Why it happens
    ``model.modules()`` visits the model, its blocks and their layers, and ``parameters()`` of a module contains those
    of all modules inside it. A weight in a layer of a block is listed three times, so each step moves it three times.

Fix
    Ask the whole model, or each module only for its own parameters:

        parameters = list(model.parameters())
        parameters = [p for module in model.modules() for p in module.parameters(recurse=False)]

When this is fine
    - Only modules of one kind without modules inside them are asked: ``if isinstance(module, nn.Conv2d)``.
    - The loop is over ``children()``, or the parameters are only frozen or counted.
    - A parameter that was listed before is left out.

How it is detected
    Only the linter finds it, from the source code: a loop over ``modules()`` or ``named_modules()`` that yields the
    parameters of each module or adds them to a list, without a condition on the module, in a program with an optimizer.

References
    torch.nn.Module.modules, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
    pytorch/pytorch#40967, duplicate parameters in a group, https://github.com/pytorch/pytorch/issues/40967
"""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, dotted_name, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_MODULES: Final = frozenset(("modules", "named_modules"))
_PARAMETERS: Final = frozenset(("parameters", "named_parameters"))
_TAKING: Final = frozenset(("append", "extend", "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each call of ``parameters()`` on the modules of a loop whose parameters are listed."""
    for call in source.all_calls:
        owner, _, attr = dotted_name(call.func).rpartition(".")
        is_asked = attr in _PARAMETERS and not call.args and not call.keywords
        loop = _loop_over_modules(source, call, owner) if is_asked else None
        if loop is not None and _is_listed(source, call):
            yield Hit(
                message=f"`{ast.unparse(call)}` contains the parameters of all modules inside `{owner}`, which "
                f"`{ast.unparse(loop.iter)}` visits as well: the optimizer gets the same parameter several times and "
                "moves it several times in each step.",
                node=call,
                related=((loop.iter, "the loop"),),
                fix=Fix(
                    (source.text.replace(call, f"{owner}.{attr}(recurse=False)"),),
                    safe=False,
                    description="Ask each module only for its own parameters",
                ),
            )


def _loop_over_modules(source: SourceFile, call: ast.Call, module: str) -> Any:
    """Return the loop over ``modules()`` whose variable a call asks; None if a condition selects modules."""
    for around in enclosing_nodes(source, call):
        for each in [around] if isinstance(around, ast.For) else getattr(around, "generators", []):
            targets = {name.id for name in nodes_in(each.target, ast.Name)}
            if module in targets:
                is_over = isinstance(each.iter, ast.Call) and last_name(each.iter.func) in _MODULES
                return each if is_over and not _is_selected(around, targets) else None
    return None


def _is_selected(around: ast.AST, targets: set[str]) -> bool:
    """Return True if a loop asks for the kind or name of a module, or for what is in the list already."""
    tests = [each.test for each in nodes_in(around, ast.If, ast.IfExp)]
    tests += [each for inner in nodes_in(around, ast.comprehension) for each in inner.ifs]
    parts = [each for test in tests for each in nodes_in(test, ast.Name, ast.In, ast.NotIn)]
    return any(not isinstance(each, ast.Name) or each.id in targets for each in parts)


def _is_listed(source: SourceFile, node: ast.AST) -> bool:
    """Return True if the items of an iterable are yielded, returned, added to a list or given to an optimizer."""
    parent: Any = source.parents.get(id(node))
    match parent:
        case ast.For():
            items = {each.id for each in nodes_in(parent.target, ast.Name)}
            added = [
                each.args[0] for each in nodes_in(parent, ast.Call) if last_name(each.func) == "append" and each.args
            ]
            return any(last_name(each) in items for each in (*added, *(e.value for e in nodes_in(parent, ast.Yield))))
        case ast.comprehension():
            whole: Any = source.parents.get(id(parent))
            is_list = isinstance(whole, ast.ListComp | ast.GeneratorExp) and isinstance(whole.elt, ast.Name)
            return is_list and _is_listed(source, whole)
        case ast.Call(func=func):
            is_same = last_name(func) in ("list", "filter") and _is_listed(source, parent)
            return is_same or last_name(func) in _TAKING
        case _:
            return isinstance(parent, ast.AugAssign | ast.Dict | ast.YieldFrom) or isinstance(node, ast.ListComp)


SCRIPT = """
import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore", message="optimizer contains a parameter group with duplicate parameters")
torch.manual_seed(0)
x = torch.randn(64, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Sequential(nn.Linear(8, 16), nn.ReLU()), nn.Linear(16, 1))
parameters = []
for module in model.modules():
    for parameter in module.parameters():
        parameters.append(parameter)
optimizer = torch.optim.SGD(parameters, lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
print(loss.item())
"""

FAILURE = Failure(
    code="OPT019",
    title="A parameter is listed several times for the optimizer",
    severity=Severity.WARNING,
    bad=SCRIPT,
    good=changed(SCRIPT, {"module.parameters()": "module.parameters(recurse=False)"}),
    fix="Use model.parameters(), or module.parameters(recurse=False) in the loop.",
    rule=Rule(required_words=("modules()", "parameters()", "optim"), find=find),
)
