"""The output of a layer is overwritten or never read, so the layer has no effect.

What you see
    The network is shallower than it looks: a layer is called in ``forward``, but its weights keep their initial values,
    and the accuracy stays below that of the intended network.

Why it happens
    ``h = self.fc2(x)`` after ``h = self.fc1(x)`` replaces the first result before anything reads it: the second line
    was meant to take ``h``. Python does not warn about a value that is overwritten, and PyTorch about a layer without a
    gradient only in DistributedDataParallel.

Fix
    Pass the result of each layer to the next one.

        h = torch.relu(self.fc1(x))
        h = torch.relu(self.fc2(h))  # not self.fc2(x)

When this is fine
    - The value is read in between, or only one branch of an ``if`` overwrites it.
    - A forward hook reads the output of the layer.
    - The result is called ``_``, or the call runs without gradients, for its statistics.

How it is detected
    Only the linter finds it, from the source code: in a method of a module, the result of a layer with weights is
    assigned to a variable, and the next statement of the same block that mentions the variable assigns it without
    reading it, or no later code of the method reads it. Also a loop over the steps of a sequence that binds the new
    hidden state to a name that nothing reads, and passes on the old one: ``out, hidden = decoder(x, decoder_hidden)``.

References
    torch.nn.Module, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
    torch.nn.parallel.DistributedDataParallel, find_unused_parameters,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

import ast
from collections.abc import Iterator
from typing import Any

from trueloop.analysis.abstract_value import ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.unregistered_modules import has_weights
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import Fix, dotted_name, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed
from trueloop.failures.model.output_overwritten.lost_states import lost_states


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each assignment of a layer's output that nothing reads."""
    yield from lost_states(source)
    has_modules = any(each.name == "forward" for each in source.nodes_of(ast.FunctionDef))
    if not has_modules or any(getattr(each.func, "attr", "").endswith("_hook") for each in source.all_calls):
        return
    seen = set[int]()
    for call in source.ops(OpKind.MODEL_CALL):
        statement, target = call.statement, _variable(call)
        if not target or id(statement) in seen or not _is_layer_of_self(call):
            continue
        seen.add(id(statement))
        if _is_called_elsewhere(call):
            continue
        end = _overwriting(source, call.function, statement, target)
        if end is not None:
            layer, text = dotted_name(call.node.func), source.text.segment(statement)
            what = "nothing reads it" if end is call.function else f"`{target}` is assigned again before it is read"
            yield Hit(
                message=f"The result of `{text}` is lost: {what}, so `{layer}` has no effect.",
                node=statement,
                related=((end, "overwritten here"),) if end is not call.function else (),
                fix=_use_result(source, call, end, target),
            )


def _is_called_elsewhere(call: Op) -> bool:
    """Return True if the function calls the same layer in another statement too, so that the layer has an effect."""
    statement: Any = call.statement
    own, layer = {id(each) for each in ast.walk(statement)}, dotted_name(call.node.func)
    calls = (each for each in ast.walk(call.function) if isinstance(each, ast.Call) and id(each) not in own)
    return any(dotted_name(each.func) == layer for each in calls)


def _variable(call: Op) -> str:
    """Return the variable that is assigned the result of a layer, perhaps after other operations; "" if none."""
    statement = call.statement
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or call.grad is False:
        return ""
    name = getattr(statement.targets[0], "id", "")
    return "" if name.startswith("_") else name


def _is_layer_of_self(call: Op) -> bool:
    """Return True for ``self.layer(x)`` in a method, where the layer has weights."""
    in_method = isinstance(call.function, ast.FunctionDef) and dotted_name(call.node.func).startswith("self.")
    return in_method and call.subject.kind is ValueKind.MODEL and not call.subject.union and has_weights(call.subject)


def _overwriting(source: SourceFile, function: Any, statement: Any, name: str) -> Any:
    """Return the statement that overwrites a variable; the function if nothing reads it; None if something may."""
    loads = [each for each in nodes_in(function, ast.Name) if each.id == name]
    if any(not isinstance(each.ctx, ast.Load | ast.Store) for each in loads) or _is_dynamic(function):
        return None
    for following in source.following(statement):
        uses = [each for each in nodes_in(following, ast.Name) if each.id == name]
        if uses:
            is_new = isinstance(following, ast.Assign) and not isinstance(following.value, ast.Constant)
            return following if is_new and all(isinstance(each.ctx, ast.Store) for each in uses) else None
    return function if not any(isinstance(each.ctx, ast.Load) for each in loads) else None


def _is_dynamic(function: Any) -> bool:
    names = {each.id for each in nodes_in(function, ast.Name)}
    guarded = bool(nodes_in(function, ast.Try, ast.Global, ast.Nonlocal))
    return guarded or bool(names & {"locals", "vars", "eval", "exec"})


def _use_result(source: SourceFile, call: Op, end: Any, name: str) -> Fix | None:
    """Return the fix that passes the result to the layer that overwrites it; None unless both get one variable."""
    own = call.node.args[0] if len(call.node.args) == 1 else None
    if not isinstance(own, ast.Name) or not isinstance(end, ast.Assign):
        return None
    reads = [each for each in nodes_in(end.value, ast.Name) if each.id == own.id]
    if len(reads) != 1:
        return None
    return Fix((source.text.replace(reads[0], name),), safe=False, description=f"Pass `{name}` to the next layer")


RULE = Rule(required_words=("def forward|range(|while ", "self.|hidden|state|, h)|, h,"), find=find)

BAD = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.last = nn.Linear(8, 1)

    def forward(self, x):
        h = torch.relu(self.first(x))
        h = torch.relu(self.second(x))
        return self.last(h)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x.abs().sum(1, keepdim=True)).backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="MDL019",
    title="The output of a layer is overwritten before it is read",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"self.second(x)": "self.second(h)"}),
    fix="Pass the result of each layer to the next one.",
    rule=RULE,
)
