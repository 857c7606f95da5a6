"""A derivative in the loss is computed by torch.autograd.grad without create_graph=True, so it trains nothing.

What you see
    The gradient penalty has no effect, the physics-informed network ignores its equation, or the forces do not improve:
    the loss contains the term, and the log shows it, but its weight does not matter.

Why it happens
    ``torch.autograd.grad`` returns a plain number unless ``create_graph=True``. In a loss it is a constant. PyTorch
    raises no error, because another part of the loss has a graph. ``retain_graph=True`` only keeps the old graph.

Fix
        gradient = torch.autograd.grad(scores.sum(), x, create_graph=True)[0]
        penalty = (gradient.norm(2, dim=1) - 1).square().mean()

When this is fine
    - The derivative of a loss makes a new input, as in adversarial training, or new weights, as in first-order MAML.
    - The derivative is a weight of a term, and is detached or multiplied with an output.
    - The derivative is only logged, or computed in an evaluation.

How it is detected
    In the text, a backward pass starts from a loss that contains a norm, a power or a distance of the result of
    ``torch.autograd.grad`` with respect to an input, without a model in between, and the call has no ``create_graph``.
    Only the linter finds it.

References
    torch.autograd.grad, https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad.html
    PyTorch forum "Gradient penalty with respect to the network parameters",
    https://discuss.pytorch.org/t/gradient-penalty-with-respect-to-the-network-parameters/11944
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.abstract_value import FORWARD_RESULT, NO_GRAPH, AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import Edit, Fix
from trueloop.failures.failure import Failure, Rule, Severity, changed

_NONLINEAR: Final = re.compile(r"(^|\.|_)(norm|vector_norm|pow|square|abs|sqrt|\w*loss)_?$")
_LOSS_NAME: Final = re.compile(r"loss|entropy|objective", re.IGNORECASE)
_PARAMETERS: Final = re.compile(r"param|weight|last_layer|theta|fast", re.IGNORECASE)
MAX_VALUES: Final = 4000


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the calls of ``torch.autograd.grad`` without ``create_graph`` whose result is a part of a loss."""
    backwards = source.ops(OpKind.BACKWARD)
    models = {id(each.result): each for each in source.ops(OpKind.MODEL_CALL) if each.result is not None}
    reported = set[int]()
    for call in source.ops(OpKind.TORCH_CALL):
        if (
            call.name != "torch.autograd.grad"
            or id(call.node) in reported
            or not _is_derivative_of_output(call, models)
        ):
            continue
        later = [each for each in backwards if each.entry_point == call.entry_point and each.index > call.index]
        backward = next((each for each in later if _contains(each.subject, call, models)), None)
        if backward is not None:
            reported.add(id(call.node))
            yield Hit(
                message=f"`{ast.unparse(call.node)}` has no create_graph=True: its result is a constant in the loss, "
                "so this part of the loss trains nothing.",
                node=call.node,
                related=((backward.node, "the backward pass starts here"),),
                fix=_with_graph(source, call.node),
            )


def _is_derivative_of_output(call: Op, models: dict[int, Op]) -> bool:
    """Return True if a model's output, not a loss, is differentiated by an input, and no graph is created."""
    create_graph = call.arguments.get("create_graph", call.arguments.get("4"))
    outputs = call.arguments.get("outputs", call.arguments.get("0"))
    inputs = call.arguments.get("inputs", call.arguments.get("1"))
    if (create_graph is not None and create_graph.constant() is not False) or outputs is None or inputs is None:
        return False
    texts = [ast.unparse(each.node) if isinstance(each.node, ast.AST) else "" for each in (outputs, inputs)]
    if _LOSS_NAME.search(texts[0]) or _PARAMETERS.search(texts[1]) or inputs.kind is ValueKind.PARAMETERS:
        return False
    above = list(outputs.ancestors(MAX_VALUES))
    return any(id(each) in models for each in above) and not any(_LOSS_NAME.search(each.name) for each in above)


def _contains(root: AbstractValue, call: Op, models: dict[int, Op]) -> bool:
    """Return True if a loss contains a norm, power or distance of a derivative that is no input of a model."""
    queue, seen = [(root, False)], set[tuple[int, bool]]()
    while queue and len(seen) < MAX_VALUES:
        value, is_nonlinear = queue.pop()
        if value is call.result:
            if is_nonlinear:
                return True
            continue
        is_nonlinear = is_nonlinear or _is_nonlinear(value)
        if (id(value), is_nonlinear) in seen or NO_GRAPH in value.facts:
            continue
        seen.add((id(value), is_nonlinear))
        parts = [*value.sources, *value.union]
        model = models.get(id(value))
        if model is not None:
            computed = value.attributes.get(FORWARD_RESULT)
            parts = [computed] if computed is not None and any(each is model.node for each in call.calls) else []
        queue += [(each, is_nonlinear) for each in parts]
    return False


def _is_nonlinear(value: AbstractValue) -> bool:
    node = value.node
    if isinstance(node, ast.BinOp):
        is_square = isinstance(node.op, ast.Mult) and ast.dump(node.left) == ast.dump(node.right)
        return isinstance(node.op, ast.Pow) or is_square
    called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    return bool(_NONLINEAR.search(value.name) or _NONLINEAR.search(called))


def _with_graph(source: SourceFile, call: ast.Call) -> Fix | None:
    """Return the fix that passes ``create_graph=True``; None if the end of the arguments is unclear."""
    description = "Pass create_graph=True"
    given = next((each.value for each in call.keywords if each.arg == "create_graph"), None)
    if given is not None:
        return Fix((source.text.replace(given, "True"),), safe=False, description=description)
    ends = [source.text.span(each)[1] for each in (*call.args, *(each.value for each in call.keywords))]
    last, end = max(ends), source.text.span(call)[1]
    if len(call.args) > 4 or source.text.content[last:end].decode().strip() not in (")", ",)"):
        return None
    return Fix((Edit(last, last, ", create_graph=True"),), safe=False, description=description)


RULE = Rule(required_words=("grad(", "backward("), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 2)
model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    points = x.clone().requires_grad_()
    output = model(points)
    gradient = torch.autograd.grad(output.sum(), points, retain_graph=True)[0]
    penalty = (gradient.norm(dim=1) - 1).square().mean()
    loss = nn.functional.mse_loss(output, x.prod(1, keepdim=True)) + 10 * penalty
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="GRD023",
    title="A derivative in the loss has no graph (create_graph)",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"retain_graph=True": "create_graph=True"}),
    fix="Pass create_graph=True to torch.autograd.grad.",
    rule=RULE,
)
