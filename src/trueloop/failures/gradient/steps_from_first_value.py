"""Each inner step starts from the first weights again, so only the last gradient of an inner loop counts.

What you see
    More inner steps do not help: a meta-learned model adapts hardly better with ten steps than with one. An adversarial
    attack with many small steps is as weak as one small step.

Why it happens
    An inner loop computes the gradient at the current weights, which are changed in each step. If the new weights are
    then computed as ``start - lr * gradient``, the change of the steps before is lost. Nothing raises an error, since
    both have the same shapes.

Fix
    Subtract from the weights at which the gradient was computed.

        fast = dict(model.named_parameters())
        for _ in range(steps):
            grads = torch.autograd.grad(loss_with(fast), list(fast.values()), create_graph=True)
            fast = {name: weight - lr * grad for (name, weight), grad in zip(fast.items(), grads)}

When this is fine
    - There is one inner step, or the loop goes over tasks and sets the weights back for each.
    - The gradients of all steps are added up, and their sum is subtracted from the first weights.
    - The first weights are replaced by the new ones at the end of each step.
    - An implicit method looks for a fixed point, which the linter cannot see.

How it is detected
    Only the linter finds it: a loop computes ``autograd.grad`` of a variable, and assigns it once, to a difference or
    sum of that gradient and something that the loop does not change, also by ``zip(start, grads)``.

References
    Finn et al., "Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks", 2017, arXiv:1703.03400
"""

import ast
from collections.abc import Iterator
from typing import Any

from trueloop.analysis.queries.loops import assigned_names
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each inner step that is computed from a value that its loop never changes."""
    for loop in source.nodes_of(ast.For, ast.While):
        calls = [each for each in nodes_in(loop, ast.Call) if last_name(each.func) == "grad" and len(each.args) > 1]
        if not calls or (isinstance(loop, ast.For) and ast.unparse(loop.iter) == "range(1)"):
            continue
        stored = [each.id for each in nodes_in(loop, ast.Name) if isinstance(each.ctx, ast.Store)]
        for step in loop.body:
            match step:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if stored.count(name) == 1:
                    call = next((each for each in calls if _is_gradient(step, value, each, name, loop)), None)
                    if call is not None and _is_from_start(loop, value, name, _result(loop, call)):
                        yield Hit(
                            message=f"`{ast.unparse(step)}` starts from the same values in each step, although the "
                            f"gradient is that of `{name}` after the steps before: only the last step counts.",
                            node=step,
                            related=((call, f"the gradient at the current `{name}`"),),
                        )
                case _:
                    pass


def _result(loop: Any, call: ast.Call) -> str:
    """Return the only variable to which a loop assigns a gradient; "" if there is none."""
    for each in nodes_in(loop, ast.Assign):
        names = [e.id for e in nodes_in(each.targets[0], ast.Name)]
        if call in nodes_in(each.value, ast.Call) and len(names) == 1:
            stored = [e for e in nodes_in(loop, ast.Name) if e.id == names[0] and isinstance(e.ctx, ast.Store)]
            return names[0] if len(stored) == 1 else ""
    return ""


def _is_gradient(step: ast.stmt, value: ast.expr, call: ast.Call, name: str, loop: Any) -> bool:
    """Return True if a call before a step computes the gradient at a variable, and the step uses it."""
    at = {each.id for argument in call.args[1:2] for each in nodes_in(argument, ast.Name)}
    gradient = _result(loop, call)
    used = {each.id for each in nodes_in(value, ast.Name)}
    return name in at and call.lineno < step.lineno and gradient in used and name not in used


def _is_from_start(loop: Any, value: ast.expr, name: str, gradient: str) -> bool:
    """Return True if a value is a sum or difference of a gradient and something that the loop does not change."""
    own = assigned_names(value) | {each.arg for each in nodes_in(value, ast.arg)}  # of a comprehension or lambda
    changes = [each for each in nodes_in(value, ast.BinOp) if isinstance(each.op, ast.Sub | ast.Add)]
    steps = [each for each in changes if _reads(each.right, own | {gradient}) and not _reads(each.left, {gradient})]
    names = {each.id for each in nodes_in(value, ast.Name)} - own - {gradient}
    rests = {each.id for step in steps for each in nodes_in(step.left, ast.Name)}
    changed_in_place = {
        last_name(getattr(call.func, "value", None))
        for call in nodes_in(loop, ast.Call)
        if last_name(call.func).endswith("_") or last_name(call.func) in ("update", "load_state_dict", "step")
    }
    return bool(steps) and bool(rests) and not names & (assigned_names(loop) | changed_in_place | {name})


def _reads(node: ast.AST, names: set[str]) -> bool:
    return any(each.id in names for each in nodes_in(node, ast.Name))


RULE = Rule(required_words=("grad(", "for |while "), find=find)

BAD = """
import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(0)
net, x, y = nn.Linear(4, 1), torch.randn(40, 4), torch.randn(40, 1)
start = dict(net.named_parameters())
fast = dict(start)
for _ in range(5):
    loss = nn.functional.mse_loss(functional_call(net, fast, (x,)), y)
    grads = torch.autograd.grad(loss, list(fast.values()))
    fast = {name: w - 0.05 * g for (name, w), g in zip(start.items(), grads)}
print(nn.functional.mse_loss(functional_call(net, fast, (x,)), y).item())
"""

FAILURE = Failure(
    code="GRD037",
    title="Each inner step starts from the first weights",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"zip(start.items()": "zip(fast.items()"}),
    fix="Subtract the gradient from the weights at which it was computed.",
    rule=RULE,
)
