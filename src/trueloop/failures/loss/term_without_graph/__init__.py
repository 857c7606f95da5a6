"""A term is added to the loss, but it has no graph, so it has no effect on the training.

What you see
    One part of the loss does not fall, or falls only by chance. Its weight has no effect on the result.

Why it happens
    ``.item()``, ``.detach()``, ``.data``, NumPy, ``torch.tensor(loss)`` and ``torch.no_grad()`` return a value without
    a graph, and so does ``autograd.grad()`` without ``create_graph=True``, as in a gradient penalty or the residual of
    a differential equation. Added to a loss it is a constant: it changes the number that you log, and no gradient.

Fix
    Compute the term with gradients, and use ``.item()`` only for the log.

        loss = task_loss + 0.1 * penalty.item()  # wrong: the penalty has no gradient
        loss = task_loss + 0.1 * penalty  # right

When this is fine
    - The term depends on no trained parameter, such as the entropy of a teacher's output.
    - A value and its own detached copy are added, as in ``x + (y - x).detach()`` or in a numerically stable softmax.
    - The term has gradients later, after a warm-up.
    - Several losses are added only for the log.
    - Stored features are the target of a distance to other features.
    - The derivative of a loss makes a new input, as in adversarial training, or new weights, as in first-order MAML.
    - The norm of a derivative is a constant that scales a term with a graph, as in the distance to a decision boundary.

How it is detected
    In a run, if a loss is a sum with a term that has no graph, the sanitizer records the operations of a few updates.
    It reports a term that depends on trained parameters only through an operation that cuts the graph, and that is
    added to a loss in at least two recorded updates, up to the last one. Numbers that leave PyTorch are followed by the
    names of variables within one function. Operations of compiled programs are not recorded.

    The linter reports ``autograd.grad()`` without ``create_graph=True`` whose result is used in a gradient penalty,
    ``(norm - 1) ** 2``, or of which a loss contains a norm, a power or a distance before its backward pass, unless it
    is the denominator, or its norm a factor, of a term that has a graph otherwise. It also reports a forward hook of a
    trained model that stores ``output.detach()`` if the loss is computed from what it stored, and not only compared
    with it. It follows the sum on which ``backward()`` is called through variables, dictionaries, lists and functions,
    and reports a term that is ``term.item()``, ``float(term)``, ``term.detach()`` or ``term.data`` apart from its
    weight, if another term has a graph, no condition of a warm-up chooses it, and the other terms do not contain the
    same variable. So is a term that depends on outputs only through a comparison, ``argmax`` or ``round``. So is the
    detached value of a critic in ``(alpha * log_prob - q.detach()).mean()``. In a program with a discriminator it
    reports a loss that raises the score of generated samples if all of them are detached, and another loss trains the
    same network with these and with real samples. In meta-learning, it reports derivatives with ``create_graph=True``
    of which the only use is a write to ``.data``.

References
    PyTorch documentation "Autograd mechanics", https://docs.pytorch.org/docs/stable/notes/autograd.html
    PyTorch forum "Forward hook activations for loss computation",
    https://discuss.pytorch.org/t/forward-hook-activations-for-loss-computation/142903
"""

import ast
from collections.abc import Iterator

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.core.source_text import nodes_in, walk
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.loss.term_without_graph.cut_terms import cut_terms
from trueloop.failures.loss.term_without_graph.data_updates import updates_without_graph
from trueloop.failures.loss.term_without_graph.derivatives import derivatives_without_graph, with_graph
from trueloop.failures.loss.term_without_graph.hook_outputs import detached_hook_outputs
from trueloop.failures.loss.term_without_graph.players_cut_off import players_cut_off
from trueloop.failures.loss.term_without_graph.rebuilt_losses import rebuilt_losses
from trueloop.failures.teaching_script import Piece, line_injector
from trueloop.tracing.events import BackwardStarted, LossTracingEnded
from trueloop.tracing.trackers.tensor_origins import TensorOrigins

MIN_LOSSES = 2  # number of recorded losses of one line that had the term


class Detector(BaseDetector):
    """Reports the terms without a graph that the recorded losses of a line had up to the end."""

    origins: TensorOrigins

    def __init__(self) -> None:
        self._backwards = 0

    def on_backward_started(self, event: BackwardStarted) -> None:
        """Count the backward passes."""
        self._backwards += 1

    def on_loss_tracing_ended(self, event: LossTracingEnded) -> list[Evidence]:
        """Return evidence for each term, at the line that cuts its graph."""
        return [
            Evidence(
                message=f"`{term.cut.operation}` cuts the graph of a number that is added to the loss: this term has "
                "no gradient, so it does not change what the model learns.",
                location=term.cut.location,
                related=((term.location, "the term is added here"),) if term.location else (),
                first_update=0,
            )
            for term in self.origins.detached_terms(MIN_LOSSES)
        ]

    def inconclusive(self) -> str:
        """Return a reason if there was no backward pass."""
        return "" if self._backwards else "there was no backward pass"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the derivatives without a graph that a loss contains, or from which a gradient penalty is computed."""
    found = list(derivatives_without_graph(source))
    yield from found
    yield from (hit for hit in _penalties(source) if all(hit.node is not other.node for other in found))
    if "hook" in source.text.source:
        yield from detached_hook_outputs(source)
    yield from cut_terms(source)
    yield from rebuilt_losses(source)
    yield from players_cut_off(source)
    yield from updates_without_graph(source)


def _penalties(source: SourceFile) -> Iterator[Hit]:
    for call in source.calls_of("torch.autograd.grad"):
        function = function_of(source, call)
        if any(each.arg in ("create_graph", None) for each in call.keywords) or len(call.args) > 4:
            continue
        penalty = next((each for each in walk(function) if _is_penalty(each, _derived(function, call))), None)
        if penalty is not None and "no_grad" not in ast.unparse(function):
            yield Hit(
                message="`autograd.grad()` returns gradients without a graph unless it gets `create_graph=True`: the "
                f"penalty `{ast.unparse(penalty)}` is a constant and has no effect on the training.",
                node=call,
                related=((penalty, "the penalty is computed here"),),
                fix=with_graph(source, call),
            )


def _derived(function: ast.AST, call: ast.Call) -> set[str]:
    """Return the variables of a function that are computed from the result of a call."""
    names: set[str] = set()
    assigned = [each for each in nodes_in(function, ast.Assign) if each.lineno >= call.lineno]
    for each in sorted(assigned, key=lambda statement: statement.lineno):
        if any(part is call or getattr(part, "id", "") in names for part in walk(_numerator(each.value))):
            names |= {part.id for target in each.targets for part in nodes_in(target, ast.Name)}
    return names


def _numerator(node: ast.expr) -> ast.expr:
    """Return what is divided in a division: a value that is divided by a constant norm has a gradient of its own."""
    match node:
        case ast.BinOp(op=ast.Div(), left=left):
            return left
        case ast.Call(func=ast.Attribute(attr="div"), args=[left, _]):
            return left
        case _:
            return node


def _is_penalty(node: ast.AST, names: set[str]) -> bool:
    """Return True for ``(norm - 1) ** 2`` and ``(norm - 1).pow(2)`` of one of some variables."""
    match node:
        case (
            ast.BinOp(op=ast.Pow(), left=ast.BinOp(op=ast.Sub(), left=norm, right=ast.Constant(value=1)))
            | ast.Call(
                func=ast.Attribute(
                    attr="pow" | "square", value=ast.BinOp(op=ast.Sub(), left=norm, right=ast.Constant(value=1))
                )
            )
        ):
            return any(each.id in names for each in nodes_in(norm, ast.Name))
        case _:
            return False


RULE = Rule(
    required_words=(
        "autograd&grad(|forward_hook&detach()|forward_hook&.data|.item()|.detach()|float(|.data|.tensor(|Tensor(|round(",
        "- 1|backward(|training_step|def forward(&loss|def forward(&Loss",
    ),
    find=find,
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
optimizer = torch.optim.Adam(critic.parameters(), lr=0.001)
for step in range(40):
    real, fake = torch.randn(32, 2), torch.randn(32, 2) + 2
    mixed = ((real + fake) / 2).requires_grad_()
    slopes = torch.autograd.grad(critic(mixed).sum(), mixed)[0]
    penalty = ((slopes.norm(dim=1) - 1) ** 2).mean()
    loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LOS009",
    title="A term of the loss has no graph",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"mixed)[0]": "mixed, create_graph=True)[0]"}),
    fix="Compute the term with gradients: without .item(), .detach(), NumPy or torch.no_grad(), and with "
    "create_graph=True in autograd.grad().",
    rule=RULE,
    detector=Detector,
    inject=line_injector(Piece.LOSS, "loss = loss + 0.1 * outputs.square().mean().item()"),
)
