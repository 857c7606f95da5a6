"""A gradient is stored without a copy, and is zeroed in place together with the original.

What you see
    Hand-written momentum has no effect, or the gradient of the previous update is always equal to the current one.

Why it happens
    ``p.grad`` is one tensor that every backward pass changes in place. A stored reference is no copy:
    ``p.grad.zero_()`` also sets the stored values to zero, and the next backward pass adds to them.

Fix
    Store a copy.

        velocity[name] = p.grad          # wrong
        velocity[name] = p.grad.clone()  # right

When this is fine
    - Gradients are cleared by ``optimizer.zero_grad()`` or ``p.grad = None``, which make new tensors.
    - The stored gradients are used before they are zeroed, and stored again in each update.

How it is detected
    Only the linter finds it, from the source code: a ``grad`` that a loop stores in a list or dictionary from before
    the loop, in a file that zeroes gradients in place.

References
    torch.Tensor.grad, https://docs.pytorch.org/docs/stable/generated/torch.Tensor.grad.html
    PyTorch autograd, "Default gradient layouts", https://docs.pytorch.org/docs/stable/autograd.html
"""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.possible_values import enclosing_nodes, origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Edit, Fix, dotted_name, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_TENSORS: Final = frozenset((
    "zeros", "ones", "empty", "rand", "randn", "full", "zeros_like", "empty_like", "ones_like", "array", "tensor",
    "new_zeros",
))  # fmt: skip


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the gradients that a loop stores in something that outlives the loop's iterations."""
    zeroed = next((each for each in source.all_calls if _zeroes_in_place(each)), None)
    for node in source.nodes if zeroed is not None else ():
        match node:
            case ast.Assign(targets=[ast.Subscript(value=container)], value=value) if _is_gradient(value):
                pass
            case _:
                continue
        loop = _outermost_loop(source, node)
        name = dotted_name(container)
        if loop is None or not name or _is_bound_in(loop, name) or _is_tensor(source, container):
            continue
        end = source.text.span(value)[1]
        yield Hit(
            message=f"`{source.text.segment(value)}` is stored without a copy, and zeroed in place: the stored values "
            "become zero too, and then the next gradient.",
            node=node,
            related=((zeroed, "zeroed here"),),
            fix=Fix((Edit(end, end, ".clone()"),), safe=False, description="Store a copy"),
        )


def _is_gradient(value: ast.expr) -> bool:
    """Return True for ``p.grad``, and for what shares its memory."""
    match value:
        case ast.Attribute(attr="grad"):
            return True
        case ast.Attribute(value=inner, attr="data") | ast.Call(func=ast.Attribute(value=inner, attr="detach")):
            return _is_gradient(inner)
        case _:
            return False


def _zeroes_in_place(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(value=value, attr="zero_"):
            return _is_gradient(value)
        case ast.Attribute(attr="zero_grad"):
            options = {each.arg: each.value for each in call.keywords}
            return getattr(options.get("set_to_none"), "value", None) is False
        case _:
            return False


def _outermost_loop(source: SourceFile, node: ast.AST) -> ast.AST | None:
    """Return the outermost loop around a node in its function."""
    loops = [each for each in enclosing_nodes(source, node) if isinstance(each, ast.For | ast.While)]
    return loops[-1] if loops else None


def _is_tensor(source: SourceFile, container: ast.expr) -> bool:
    """Return True for a tensor, whose rows get a copy of what is assigned to them."""
    made = [last_name(each.func) for each in origins(source, container) if isinstance(each, ast.Call)]
    return any(name in _TENSORS for name in made)


def _is_bound_in(loop: ast.AST, name: str) -> bool:
    stores = (each for each in nodes_in(loop, ast.Name, ast.Attribute))
    return any(isinstance(each.ctx, ast.Store) and dotted_name(each) == name for each in stores)


RULE = Rule(required_words=("torch", ".grad", "zero_"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
velocity = {}
for step in range(20):
    nn.functional.mse_loss(model(x), y).backward()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in velocity:
                velocity[name].mul_(0.9).add_(parameter.grad)
            else:
                velocity[name] = parameter.grad
            parameter -= 0.01 * velocity[name]
            parameter.grad.zero_()
"""

FAILURE = Failure(
    code="GRD023",
    title="A stored gradient is zeroed together with the original",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"= parameter.grad\n": "= parameter.grad.clone()\n"}),
    fix="Store a copy of the gradient: p.grad.clone().",
    rule=RULE,
)
