"""A trainable weight is a plain tensor instead of an ``nn.Parameter``, so the model does not register it.

What you see
    A scale, a prompt or a matrix that should be learned keeps its initial values. It is missing from ``state_dict()``,
    and stays on the CPU when the model is moved to a GPU.

Why it happens
    ``nn.Module`` registers only tensors of the class ``nn.Parameter``. A plain tensor with ``requires_grad=True`` gets
    gradients too, but ``model.parameters()`` does not contain it, so the optimizer does not get it. What is computed
    from an ``nn.Parameter``, as by ``.unsqueeze(0)``, ``.to(device)`` or ``* 0.02``, is a plain tensor too.

Fix
    Make the tensor a parameter:

        self.scale = torch.ones(1, requires_grad=True)  # wrong
        self.scale = nn.Parameter(torch.ones(1))  # right

        self.table = nn.Parameter(torch.randn(9, 16)).unsqueeze(0)  # wrong
        self.table = nn.Parameter(torch.randn(9, 16).unsqueeze(0))  # right

    If the tensor should be moved and saved but not trained, use ``self.register_buffer("table", ...)``.

When this is fine
    - You pass the tensor to an optimizer explicitly, like the architecture weights in DARTS.
    - The tensor is an input whose gradient you need, like the points of a physics-informed network.
    - The program moves and updates the weight itself.
    - The module registers the parameter too, and stores a view of it in another attribute.

How it is detected
    In a run, the sanitizer reports a tensor in an attribute of a module that was computed from an ``nn.Parameter``, or
    a parameter in a list, if the parameter got gradients, is not registered in the model, is in no optimizer that
    stepped, and did not change in at least four updates. The linter reports an attribute to which a module's
    ``__init__`` assigns something computed from an ``nn.Parameter`` that is used for nothing else, or the parameter
    converted from a dtype that the program shows to another one. It also reports a tensor that ``__init__`` creates
    with ``requires_grad=True``, or fills with noise, zeros or ones, and assigns to an attribute, which has the name of
    a weight in the second case: ``self.cls_token = torch.zeros(1, 1, 64)``. The file uses this attribute only for
    computations in the module's methods and never asks for gradients itself. Another file may use the gradients, and
    ``.to(device)`` may return the parameter itself, so this is a warning.

References
    torch.nn.parameter.Parameter, https://docs.pytorch.org/docs/stable/generated/torch.nn.parameter.Parameter.html
    EleutherAI/gpt-neox#267, a layer whose parameters "weren't even getting registered",
    https://github.com/EleutherAI/gpt-neox/pull/267
    shenweichen/DeepCTR-Torch#61, the same for a weight, https://github.com/shenweichen/DeepCTR-Torch/pull/61
"""

import ast
import re
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Edit, Fix, encloses, walk
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity
from trueloop.failures.model.weight_never_registered.computed_weights import (
    MODULES,
    OPERATIONS,
    computed_from_parameters,
)
from trueloop.tracing.events import ModelCalled, Ref, StepTaken

if TYPE_CHECKING:
    from trueloop.failures.model.weight_never_registered.lost_parameters import LostParameter

FACTORIES: Final = frozenset((
    *(f"torch.{name}" for name in (
        "tensor", "randn", "rand", "zeros", "ones", "full", "empty", "eye", "linspace", "normal", "randn_like",
        "rand_like", "zeros_like", "ones_like", "FloatTensor", "Tensor",
    )),
    "torch.autograd.Variable",
))  # fmt: skip
GRADIENT_CALLS: Final = frozenset(("grad", "jacrev", "jacfwd", "vjp", "jvp", "hessian", "jacobian", "functional_call"))
"""Calls with which a program computes gradients itself or replaces weights."""
_CONSTANT: Final = frozenset(f"torch.{name}" for name in ("randn", "rand", "zeros", "ones", "empty", "normal"))
_LEARNED: Final = re.compile(
    r"((cls|class|mask|dist\w*|query|latent|memory|register|start|sos)_?)?(tokens?|embed(ding)?s?|prompts?|quer(y|ies))"
    r"|pos(ition(al)?)?_?(emb|enc)\w*|alpha|beta|gamma|scale"
)
"""Names of what is learned; ``self.weight = torch.randn(8, 4)`` may be a random projection."""
REFLECTION: Final = frozenset(("setattr", "getattr", "vars", "__setattr__", "register_parameter", "register_buffer"))

MIN_UPDATES: Final = 4  # with a gradient; by then, all optimizers should have stepped


class Detector(BaseDetector):
    """Checks whether parameters that were lost in a computation get gradients that no step uses."""

    def __init__(self) -> None:
        self._searched: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._lost: list[tuple[LostParameter, int]] = []
        """Lost parameters, each with the number of steps at which it had a gradient."""

    def on_model_called(self, event: ModelCalled) -> None:
        """Search the attributes of a model at its first call."""
        if event.model in self._searched:
            return
        self._searched.add(event.model)
        from trueloop.failures.model.weight_never_registered.lost_parameters import lost_parameters

        self._lost += [(each, 0) for each in lost_parameters(event.live_module)]

    def on_step_taken(self, event: StepTaken) -> Iterator[Evidence]:
        """Yield evidence for each lost parameter that has gradients and does not change."""
        lost, self._lost = self._lost, []
        stepped = set(map(id, event.live_parameters.values())) if lost else set[int]()
        for each, steps in lost:
            parameter = each.parameter()
            if parameter is None or id(parameter) in stepped or not each.is_unchanged(parameter):
                continue
            steps += parameter.grad is not None  # noqa: PLW2901
            if steps < MIN_UPDATES:
                self._lost.append((each, steps))
                continue
            yield Evidence(
                message=f"`{each.name}` comes from an `nn.Parameter` that the model does not register and no optimizer "
                "contains: it gets gradients but is not trained, moved or saved.",
                location=each.assigned_at() or event.location,
            )


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield the same as `find`, and each attribute that is computed from a parameter that is lost by that."""
    yield from find(source)
    for attribute, value, fix in computed_from_parameters(source):
        yield Hit(
            message=f"`self.{attribute}` is computed from an `nn.Parameter` and so is not one itself: the parameter is "
            "not registered in the module, and not trained, moved or saved.",
            node=value,
            fix=fix,
        )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each tensor with ``requires_grad`` in an attribute that only its own module uses in computations."""
    candidates = [each for module in source.tree.body for each in _trainable_attributes(source, module)]
    if not candidates or _uses_gradients(source):
        return
    attributes = list(source.nodes_of(ast.Attribute))
    for attribute, module, created in candidates:
        found = [each for each in attributes if each.attr == attribute and ast.unparse(each.value) == "self"]
        stores = [each for each in found if isinstance(each.ctx, ast.Store) and not encloses(module, each)]
        others = [each for each in source.tree.body if any(encloses(each, store) for store in stores)]
        of_others = {id(each) for each in found if any(encloses(other, each) for other in others)}
        uses = [each for each in attributes if each.attr == attribute and id(each) not in of_others]
        reads = [each for each in uses if isinstance(each.ctx, ast.Load)]
        only_own = all(ast.unparse(each.value) == "self" and encloses(module, each) for each in uses)
        if only_own and reads and len(uses) == len(reads) + 1 and all(_is_operand(source, each) for each in reads):
            yield Hit(
                message=f"`self.{attribute}` is not an `nn.Parameter` but a plain tensor: it is not trained, moved or "
                "saved with the module.",
                node=created,
                fix=_wrap_in_parameter(source, created),
            )


def _trainable_attributes(source: SourceFile, module: ast.stmt) -> Iterator[tuple[str, ast.ClassDef, ast.Call]]:
    """Yield the attributes to which the constructor of a module assigns tensors that should be weights."""
    if not isinstance(module, ast.ClassDef) or not any(source.qualified_name(base) in MODULES for base in module.bases):
        return
    for method in module.body:
        for each in walk(method) if isinstance(method, ast.FunctionDef) and method.name == "__init__" else ():
            if not (isinstance(each, ast.Assign) and isinstance(each.value, ast.Call) and len(each.targets) == 1):
                continue
            target = each.targets[0]
            is_own = isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
            name = target.attr if isinstance(target, ast.Attribute) and is_own else ""
            is_fixed = any(keyword.arg in ("requires_grad", "dtype") for keyword in each.value.keywords)
            is_weight = (
                source.qualified_name(each.value.func) in _CONSTANT and _LEARNED.fullmatch(name) and not is_fixed
            )
            if is_own and (is_weight or _requires_gradients(source, each.value)):
                yield name, module, each.value


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
    bad=SCRIPT.replace("{scale}", "nn.Parameter(torch.ones(1)).unsqueeze(0)"),
    good=SCRIPT.replace("{scale}", "nn.Parameter(torch.ones(1).unsqueeze(0))"),
    fix="Make the tensor an nn.Parameter.",
    rule=Rule(
        required_words=(
            "torch",
            "forward(",
            "Module",
            "requires_grad|Parameter(|token|embed|pos|quer|prompt|alpha|beta|gamma|scale",
        ),
        find=find_all,
    ),
    detector=Detector,
)
