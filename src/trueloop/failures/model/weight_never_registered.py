"""A weight is a plain tensor, which the model does not hold.

What you see
    A temperature, a prompt, a matrix that was to be learned keeps its first values. It is missing in ``state_dict()``,
    and another one is drawn in every run; on an accelerator it stays behind on the CPU.

Why it happens
    ``nn.Module`` registers an ``nn.Parameter``. A tensor with ``requires_grad=True`` gets gradients like one, but
    ``parameters()`` does not give it to the optimizer.

Fix
    ``self.weight = nn.Parameter(torch.randn(...))``. What is not to be trained but moved and saved is a buffer,
    ``self.register_buffer("table", ...)``.

When this is fine
    Tensors that are given to an optimizer by hand, as the architecture's in DARTS; inputs whose gradients are wanted,
    as the points of a physics-informed network; gates whose gradients are read; weights that the program moves itself.
    Reported is a tensor that a module makes in ``__init__`` with ``requires_grad=True`` and keeps in an attribute, and
    of which the file does nothing else than compute with it in the module's own methods, in a file that asks for no
    gradients itself. Another file may do so: hence a warning. It is found in the text only.

References
    torch.nn.parameter.Parameter, https://docs.pytorch.org/docs/stable/generated/torch.nn.parameter.Parameter.html
    EleutherAI/gpt-neox#267, a layer whose parameters "weren't even getting registered",
    https://github.com/EleutherAI/gpt-neox/pull/267
    shenweichen/DeepCTR-Torch#61, the same of a weight, https://github.com/shenweichen/DeepCTR-Torch/pull/61
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final, cast

from trueloop.analysis.source_file import Hit, Source
from trueloop.core.source_text import Edit, Fix, encloses
from trueloop.failures.failure import Failure, Rule, Severity

MODULES: Final = ("torch.nn.Module", "torch.nn.modules.Module", "torch.nn.modules.module.Module")
FACTORIES: Final = frozenset((
    *(f"torch.{name}" for name in (
        "tensor", "randn", "rand", "zeros", "ones", "full", "empty", "eye", "linspace", "normal", "randn_like",
        "rand_like", "zeros_like", "ones_like", "FloatTensor", "Tensor",
    )),
    "torch.autograd.Variable",
))  # fmt: skip
ASKS: Final = frozenset(("grad", "jacrev", "jacfwd", "vjp", "jvp", "hessian", "jacobian", "functional_call"))
"""Calls by which a program takes gradients itself, or puts weights in the place of others."""
REACHES: Final = frozenset(("setattr", "getattr", "vars", "__setattr__", "register_parameter", "register_buffer"))
OPERATIONS: Final = frozenset((
    "add", "addmm", "bmm", "clamp", "div", "dot", "exp", "expand", "expand_as", "log", "matmul", "mean", "mm", "mul",
    "permute", "pow", "relu", "repeat", "reshape", "sigmoid", "size", "softmax", "softplus", "sqrt", "square", "sub",
    "sum", "t", "tanh", "to", "transpose", "unsqueeze", "view",
))  # fmt: skip


def find(source: Source) -> Iterator[Hit]:
    """Yield the tensors that want gradients, and are only computed with by the module that keeps them."""
    found = [each for kind in source.tree.body for each in _kept(source, kind)]
    if not found or _asks_for_gradients(source):
        return
    attributes = [each for each in source.nodes if isinstance(each, ast.Attribute)]
    for word, kind, made in found:
        uses = [each for each in attributes if each.attr == word]
        reads = [each for each in uses if isinstance(each.ctx, ast.Load)]
        own = all(ast.unparse(each.value) == "self" and encloses(kind, each) for each in uses)
        if own and reads and len(uses) == len(reads) + 1 and all(_computes(source, each) for each in reads):
            yield Hit(
                message=f"The tensor in the attribute {word} wants gradients, but is no parameter of the module: it is "
                "not trained, moved or saved.",
                node=made,
                fix=_registered(source, made),
            )


def _kept(source: Source, kind: ast.stmt) -> Iterator[tuple[str, ast.ClassDef, ast.Call]]:
    """Yield the attributes that a module's constructor gives tensors which want gradients."""
    if not isinstance(kind, ast.ClassDef) or not any(source.name(base) in MODULES for base in kind.bases):
        return
    for method in kind.body:
        for each in ast.walk(method) if isinstance(method, ast.FunctionDef) and method.name == "__init__" else ():
            if not (isinstance(each, ast.Assign) and isinstance(each.value, ast.Call) and len(each.targets) == 1):
                continue
            target = each.targets[0]
            own = isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
            if own and _wants_gradients(source, each.value):
                yield cast("ast.Attribute", target).attr, kind, each.value


def _wants_gradients(source: Source, call: ast.Call) -> bool:
    """True for ``torch.randn(..., requires_grad=True)`` and ``torch.randn(...).requires_grad_()``."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "requires_grad_":
        inner = call.func.value
        given = [*call.args, *(each.value for each in call.keywords)]
        return isinstance(inner, ast.Call) and source.name(inner.func) in FACTORIES and all(map(_is_true, given))
    return source.name(call.func) in FACTORIES and any(
        each.arg == "requires_grad" and _is_true(each.value) for each in call.keywords
    )


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _asks_for_gradients(source: Source) -> bool:
    """True where a file takes gradients by hand, or may reach attributes by their names."""
    for call in source.all_calls:
        word = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if word in ASKS or word in REACHES:
            return True
    return any(isinstance(each, ast.Attribute) and each.attr in ("grad", "__dict__") for each in source.nodes)


def _computes(source: Source, read: ast.Attribute) -> bool:
    """True for an operand of an operation, by a sign, a function of torch's or a method of a tensor."""
    parent = source.above[id(read)]
    if isinstance(parent, ast.BinOp | ast.UnaryOp):
        return True
    if isinstance(parent, ast.Call):
        name, method = source.name(parent.func), getattr(parent.func, "attr", "")
        return method in OPERATIONS or (name.startswith("torch.") and not name.startswith("torch.optim"))
    call = source.above[id(parent)]
    return isinstance(parent, ast.Attribute) and isinstance(call, ast.Call) and parent.attr in OPERATIONS


def _registered(source: Source, made: ast.Call) -> Fix | None:
    """Return the fix: ``torch.nn.Parameter(...)`` around the tensor, which wants gradients by itself."""
    function = made.func
    if source.name(function) not in FACTORIES or not isinstance(function, ast.Attribute):
        return None
    if source.name(function) in ("torch.autograd.Variable", "torch.Tensor", "torch.FloatTensor"):
        return None
    start, end = source.text.span(made)
    package = source.text.of(function.value)
    edits = (Edit(start, start, f"{package}.nn.Parameter("), Edit(end, end, ")"))
    return Fix(edits, safe=False, words="Make it a parameter") if package == "torch" else None


HEAD = """
import torch
from torch import nn


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 1)
        self.scale = {scale}

    def forward(self, x):
        return self.body(x) * self.scale


x = torch.randn(128, 8)
y = 5 * x.sum(1, keepdim=True)
model = Scaled()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="MDL011",
    title="A weight is never registered",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=HEAD.replace("{scale}", "torch.ones(1, requires_grad=True)"),
    good=HEAD.replace("{scale}", "nn.Parameter(torch.ones(1))"),
    fix="Make it an nn.Parameter.",
    rule=Rule(words=("torch", "forward(", "Module", "requires_grad"), find=find),
)
