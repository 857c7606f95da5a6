"""Both sides of a loss are the same tensor, so it is always zero and has no gradient.

What you see
    A distillation or consistency loss is 0, or 1e-9, from the first update on. The student learns no more from the
    teacher than without it, whatever the temperature and the weight of the term.

Why it happens
    The two sides of such a loss have nearly the same name and shape, and one is easily written twice:
    ``F.kl_div(F.log_softmax(teacher / T, -1), F.softmax(teacher / T, -1))``. The divergence of a distribution from
    itself is zero, and so is its gradient, also where the model is trained. PyTorch does not notice.

Fix
    Pass the output of the model that is trained as the first side.

        log_prob = F.log_softmax(student / T, dim=-1)
        loss = F.kl_div(log_prob, F.softmax(teacher / T, dim=-1), reduction="batchmean")

When this is fine
    - The sides come from two calls of a model, as with dropout in R-Drop.
    - The divergence from a detached copy, of which the second derivative is taken, as in TRPO.
    - Teacher and student, or an old and a new policy, that are the same only at the start.
    - ``F.cross_entropy(x, F.softmax(x, -1))``, which is the entropy.
    - An assertion that two results are equal.

How it is detected
    The sanitizer compares the sides of ``kl_div`` by their values, and those of ``mse_loss`` by their memory, in the
    first 96 calls with gradients enabled. It reports a line at which they were the same in 8 updates, and never
    different. Tensors on a GPU are not read.

    The linter reports a divergence whose sides are computed from the same variable by the same operations, apart from
    the logarithm and ``detach()``, also in variables, and such a squared or absolute error, unless a side is detached
    in a program that differentiates twice.

References
    labmlai/annotated_deep_learning_paper_implementations#66, the teacher's logits on both sides,
    https://github.com/labmlai/annotated_deep_learning_paper_implementations/issues/66
    Hinton et al., "Distilling the Knowledge in a Neural Network", 2015, arXiv:1503.02531
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trueloop.analysis.queries.assignments import is_assigned_between
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import Event

MIN_UPDATES: Final = 8
_ERRORS: Final = frozenset(("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "MSELoss", "L1Loss", "SmoothL1Loss"))
_UNCHANGED: Final = frozenset(("detach", "clone", "float", "contiguous", "to", "cpu", "cuda"))
_DISTRIBUTIONS: Final = frozenset(("softmax", "log_softmax", "Softmax", "LogSoftmax"))
_MAX_DEPTH: Final = 4


@dataclass(slots=True, kw_only=True, eq=False)
class SidesCompared(Event):
    """The sides of a loss were compared."""

    function: str
    is_equal: bool
    """Whether they are the same, and not constant."""


class Detector(BaseDetector):
    """Counts the updates in which the sides of the loss at each line were the same."""

    def __init__(self) -> None:
        self._seen = False
        self._updates: dict[CodePosition | None, set[int]] = {}
        self._differing: set[CodePosition | None] = set()

    def on_sides_compared(self, event: SidesCompared) -> Evidence | None:
        """Return evidence in the 8th update in which the loss of a line had equal sides."""
        self._seen = True
        updates = self._updates.setdefault(event.location, set())
        if not event.is_equal:
            self._differing.add(event.location)
        if event.location in self._differing or event.update in updates:
            return None
        updates.add(event.update)
        if len(updates) != MIN_UPDATES:
            return None
        return Evidence(
            message=f"`{event.function}` got the same values on both sides in {MIN_UPDATES} updates, and never others: "
            "this term is zero and has no gradient.",
            location=event.location,
        )

    def inconclusive(self) -> str:
        """Return a reason if no loss was compared."""
        return "" if self._seen else "no divergence or squared error of tensors on the CPU was computed"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each divergence or error whose two sides are computed from the same variable in the same way."""
    for call in source.all_calls:
        made = [call.func] if isinstance(call.func, ast.Call) else possible_values(source, call.func)
        losses = {last_name(e.func) if isinstance(e, ast.Call) else "" for e in made} or {last_name(call.func)}
        if len(call.args) < 2 or not (losses <= _ERRORS or losses <= {"kl_div", "KLDivLoss"}):
            continue
        depth = 0 if losses <= _ERRORS else _MAX_DEPTH  # what an error compares may have changed in place since
        (way, first), (other, second) = (_side(source, each, depth) for each in call.args[:2])
        function = function_of(source, call)
        if first is None or second is None or way != other or ast.unparse(first) != ast.unparse(second):
            continue
        is_second_derivative = "create_graph" in source.text.source and "detach" in ast.unparse(function)
        lines = sorted((first.lineno, second.lineno))
        if not is_second_derivative and not is_assigned_between(function, {ast.unparse(first)}, *lines):
            yield Hit(
                message=f"Both sides of `{ast.unparse(call.func)}` are computed from `{ast.unparse(first)}` in the "
                "same way: this term is always zero and has no gradient.",
                node=call,
                related=((first, "one side"), (second, "the other side")),
            )


def _side(source: SourceFile, node: ast.expr, depth: int) -> tuple[str, ast.expr | None]:
    """Return how a side of a loss is computed, apart from logarithms, and from which variable; None if from several.

    A divergence may get its sides in ``depth`` variables; an error, with 0, only values that are the same.
    """
    match node:
        case ast.BinOp(left=inner, op=ast.Div(), right=ast.Name() | ast.Attribute() | ast.Constant() as scale):
            way, base = _side(source, inner, depth)
            return f"{way} / {ast.unparse(scale)}", base
        case ast.Call(func=func, args=args):
            owner, name = getattr(func, "value", None), last_name(getattr(func, "func", func))
            is_function = last_name(owner) in ("", "F", "self") or source.qualified_name(func).startswith("torch.")
            inner = args[0] if args and is_function else owner
            is_distribution = bool(depth) and name in _DISTRIBUTIONS
            is_known = is_distribution or name in _UNCHANGED or (depth and name in ("log", "exp"))
            way, base = _side(source, inner, depth) if inner is not None and is_known else ("", None)
            return f"{way} softmax" if is_distribution else way, base
        case ast.Name() | ast.Attribute(value=ast.Name()):
            values = possible_values(source, node) if depth > 1 and isinstance(node, ast.Name) else []
            own = [each for each in values if function_of(source, each) is function_of(source, node)]
            if len(values) == len(own) == 1 and (own[0].end_lineno or 0) < node.lineno:
                way, base = _side(source, own[0], depth - 1)
                return (way, base) if base is not None else ("", node)
            return "", node
        case _:
            return "", None


RULE = Rule(
    required_words=("kl_div|mse_loss|l1_loss|huber_loss|KLDivLoss|MSELoss|L1Loss|HuberLoss",),
    find=find,
)

BAD = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
teacher, student = nn.Linear(8, 4).requires_grad_(False), nn.Linear(8, 4)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
for step in range(20):
    x, y = torch.randn(32, 8), torch.randint(4, (32,))
    student_logits, teacher_logits = student(x), teacher(x)
    targets = F.softmax(teacher_logits / 2, dim=-1)
    log_prob = F.log_softmax(teacher_logits / 2, dim=-1)
    loss = F.cross_entropy(student_logits, y) + 4 * F.kl_div(log_prob, targets, reduction="batchmean")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LOS079",
    title="A loss compares an output with itself",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=BAD,
    good=changed(BAD, {"log_softmax(teacher_logits": "log_softmax(student_logits"}),
    fix="Pass the output of the model that is trained as the first side.",
    rule=RULE,
    detector=Detector,
)
