"""A trainable weight is a plain tensor instead of an ``nn.Parameter``, so the model does not register it.

What you see
    A scale, a prompt or a matrix that should be learned keeps its initial values. It is missing from ``state_dict()``,
    and stays on the CPU when the model is moved to a GPU.

Why it happens
    ``nn.Module`` registers only tensors of the class ``nn.Parameter``. A plain tensor with ``requires_grad=True`` gets
    gradients too, but ``model.parameters()`` does not contain it, so the optimizer does not get it.

Fix
    Make the tensor a parameter:

        self.scale = torch.ones(1, requires_grad=True)  # wrong
        self.scale = nn.Parameter(torch.ones(1))  # right

    If the tensor should be moved and saved but not trained, use ``self.register_buffer("table", ...)``.

When this is fine
    - You pass the tensor to an optimizer explicitly, like the architecture weights in DARTS.
    - The tensor is an input whose gradient you need, like the points of a physics-informed network.
    - The program moves and updates the weight itself.

How it is detected
    Only the linter finds it, from the source code. It reports a tensor that ``__init__`` of a module creates with
    ``requires_grad=True`` and assigns to an attribute, if the file uses this attribute only for computations in the
    module's methods and never asks for gradients itself. Another file may use the gradients, so this is a warning.

References
    torch.nn.parameter.Parameter, https://docs.pytorch.org/docs/stable/generated/torch.nn.parameter.Parameter.html
    EleutherAI/gpt-neox#267, a layer whose parameters "weren't even getting registered",
    https://github.com/EleutherAI/gpt-neox/pull/267
    shenweichen/DeepCTR-Torch#61, the same for a weight, https://github.com/shenweichen/DeepCTR-Torch/pull/61
"""

import ast
from collections.abc import Iterator
from typing import Final, cast

from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import Edit, Fix, encloses, walk
from trueloop.failures.failure import Failure, Rule, Severity

MODULES: Final = ("torch.nn.Module", "torch.nn.modules.Module", "torch.nn.modules.module.Module")
FACTORIES: Final = frozenset((
    *(f"torch.{name}" for name in (
        "tensor", "randn", "rand", "zeros", "ones", "full", "empty", "eye", "linspace", "normal", "randn_like",
        "rand_like", "zeros_like", "ones_like", "FloatTensor", "Tensor",
    )),
    "torch.autograd.Variable",
))  # fmt: skip
GRADIENT_CALLS: Final = frozenset(("grad", "jacrev", "jacfwd", "vjp", "jvp", "hessian", "jacobian", "functional_call"))
"""Calls with which a program computes gradients itself or replaces weights."""
REFLECTION: Final = frozenset(("setattr", "getattr", "vars", "__setattr__", "register_parameter", "register_buffer"))
OPERATIONS: Final = frozenset((
    "add", "addmm", "bmm", "clamp", "div", "dot", "exp", "expand", "expand_as", "log", "matmul", "mean", "mm", "mul",
    "permute", "pow", "relu", "repeat", "reshape", "sigmoid", "size", "softmax", "softplus", "sqrt", "square", "sub",
    "sum", "t", "tanh", "to", "transpose", "unsqueeze", "view",
))  # fmt: skip


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each tensor with ``requires_grad`` in an attribute that only its own module uses in computations."""
    candidates = [each for module in source.tree.body for each in _trainable_attributes(source, module)]
    if not candidates or _uses_gradients(source):
        return
    attributes = list(source.nodes_of(ast.Attribute))
    for attribute, module, created in candidates:
        uses = [each for each in attributes if each.attr == attribute]
        reads = [each for each in uses if isinstance(each.ctx, ast.Load)]
        only_own = all(ast.unparse(each.value) == "self" and encloses(module, each) for each in uses)
        if only_own and reads and len(uses) == len(reads) + 1 and all(_is_operand(source, each) for each in reads):
            yield Hit(
                message=f"`self.{attribute}` requires gradients but is not an `nn.Parameter`: it is not trained, moved "
                "or saved with the module.",
                node=created,
                fix=_wrap_in_parameter(source, created),
            )


def _trainable_attributes(source: SourceFile, module: ast.stmt) -> Iterator[tuple[str, ast.ClassDef, ast.Call]]:
    """Yield the attributes to which the constructor of a module assigns tensors that require gradients."""
    if not isinstance(module, ast.ClassDef) or not any(source.qualified_name(base) in MODULES for base in module.bases):
        return
    for method in module.body:
        for each in walk(method) if isinstance(method, ast.FunctionDef) and method.name == "__init__" else ():
            if not (isinstance(each, ast.Assign) and isinstance(each.value, ast.Call) and len(each.targets) == 1):
                continue
            target = each.targets[0]
            is_own = isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
            if is_own and _requires_gradients(source, each.value):
                yield cast("ast.Attribute", target).attr, module, each.value


def _requires_gradients(source: SourceFile, call: ast.Call) -> bool:
    """Return True for ``torch.randn(..., requires_grad=True)`` and ``torch.randn(...).requires_grad_()``."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "requires_grad_":
        inner = call.func.value
        arguments = [*call.args, *(each.value for each in call.keywords)]
        return (
            isinstance(inner, ast.Call)
            and source.qualified_name(inner.func) in FACTORIES
            and all(map(_is_true, arguments))
        )
    return source.qualified_name(call.func) in FACTORIES and any(
        each.arg == "requires_grad" and _is_true(each.value) for each in call.keywords
    )


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _uses_gradients(source: SourceFile) -> bool:
    """Return True if a file computes gradients itself, or may access attributes by name."""
    for call in source.all_calls:
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name in GRADIENT_CALLS or name in REFLECTION:
            return True
    return any(each.attr in ("grad", "__dict__") for each in source.nodes_of(ast.Attribute))


def _is_operand(source: SourceFile, read: ast.Attribute) -> bool:
    """Return True for an operand of an operator, a PyTorch function or a tensor method."""
    parent = source.parents[id(read)]
    if isinstance(parent, ast.BinOp | ast.UnaryOp):
        return True
    if isinstance(parent, ast.Call):
        name, method = source.qualified_name(parent.func), getattr(parent.func, "attr", "")
        return method in OPERATIONS or (name.startswith("torch.") and not name.startswith("torch.optim"))
    call = source.parents[id(parent)]
    return isinstance(parent, ast.Attribute) and isinstance(call, ast.Call) and parent.attr in OPERATIONS


def _wrap_in_parameter(source: SourceFile, created: ast.Call) -> Fix | None:
    """Return the fix that puts ``torch.nn.Parameter(...)`` around the tensor."""
    function = created.func
    if source.qualified_name(function) not in FACTORIES or not isinstance(function, ast.Attribute):
        return None
    if source.qualified_name(function) in ("torch.autograd.Variable", "torch.Tensor", "torch.FloatTensor"):
        return None
    start, end = source.text.span(created)
    package = source.text.segment(function.value)
    edits = (Edit(start, start, f"{package}.nn.Parameter("), Edit(end, end, ")"))
    return Fix(edits, safe=False, description="Make it an nn.Parameter") if package == "torch" else None


SCRIPT = """
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
    title="A weight is a plain tensor, not an nn.Parameter",
    severity=Severity.WARNING,
    bad=SCRIPT.replace("{scale}", "torch.ones(1, requires_grad=True)"),
    good=SCRIPT.replace("{scale}", "nn.Parameter(torch.ones(1))"),
    fix="Make the tensor an nn.Parameter.",
    rule=Rule(required_words=("torch", "forward(", "Module", "requires_grad"), find=find),
)
