"""The initial weights are far too large, so the loss starts far above that of a constant prediction.

What you see
    The loss starts at tens, hundreds or thousands where a guess costs 2.3, falls for the whole run, and is still above
    that of a model that always predicts the mean when the run ends.

Why it happens
    A layer adds up one product for each of its inputs. With weights from ``randn``, ``rand`` or ``normal_(0, 1)`` its
    outputs are larger than its inputs by the square root of their number, or by their number, and each further layer
    multiplies that. Initial weights keep the scale if they are smaller by the square root of the number of inputs.

Fix
    Leave the weights as PyTorch initialises them, or use a function of ``nn.init`` that knows the number of inputs.

        nn.init.kaiming_normal_(layer.weight)
        weight = torch.randn(inputs, outputs) / inputs**0.5

When this is fine
    - The loss falls below that of a constant prediction in spite of the weights.
    - The large weights are those of an embedding, or were trained before.

How it is detected
    In a run, the sanitizer computes the root mean square of each matrix before the first update, times the square root
    of its smaller side: 0.6 for PyTorch's initialisation of a linear layer, 1.4 for Kaiming's. It reports the largest
    one if it is 5 or more, if the loss starts at 3 times that of the best constant prediction or more, and if the loss
    of 48 or more updates did not fall clearly below that. It does not read weights on a GPU.

    The linter reports a deviation that is passed as the mean: ``nn.init.normal_(weight, 0.01)`` and
    ``weight.data.normal_(0.01)`` have mean 0.01 and deviation 1, and ``uniform_(weight, 0.1)`` is from 0.1 to 1.

References
    He et al., 2015, "Delving Deep into Rectifiers", arXiv:1502.01852
    torch.nn.init, https://docs.pytorch.org/docs/stable/nn.init.html
"""

from __future__ import annotations

import ast
import math
import re
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import format_float
from trueloop.core.source_text import dotted_name
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import GraphNode, LossGraphRead, Ref, StepStarted, WatchEnded

if TYPE_CHECKING:
    from trueloop.tracing.trackers.learning_progress import LearningProgress

LAYERS = ("Addmm", "Mm", "Convolution")
TRANSPOSED = ("T", "Transpose")
MIN_SCALE = 5.0  # root mean square times the square root of the inputs; 1.4 is usual for ReLU
MIN_START = 3.0  # times the loss of the best constant prediction
MIN_SIDE = 8  # inputs and outputs of a layer; the weights of fewer scatter
MAX_WEIGHTS = 256
MAX_OPTIMIZERS = 8  # as many as the tracker compares


class Detector(BaseDetector):
    """Measures the weights of layers before the first update."""

    progress: LearningProgress

    def __init__(self) -> None:
        self._scales: weakref.WeakKeyDictionary[Ref, tuple[float, int]] = weakref.WeakKeyDictionary()
        """Matrix -> its root mean square, and its smaller side."""
        self._optimizers: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._in_layers: weakref.WeakSet[Ref] = weakref.WeakSet()
        """Matrices that a linear layer or convolution multiplies by."""
        self._called_at: CodePosition | None = None

    def on_step_started(self, event: StepStarted) -> None:
        """Measure the matrices of an optimizer before its first update."""
        if event.optimizer in self._optimizers or len(self._optimizers) >= MAX_OPTIMIZERS:
            return
        self._optimizers.add(event.optimizer)
        for ref, weight in event.live_parameters.items():
            if len(self._scales) < MAX_WEIGHTS and weight.dim() > 1 and weight.is_cpu and weight.is_floating_point():
                self._scales[ref] = _root_mean_square(weight), min(weight.shape[0], weight[0].numel())

    def on_loss_graph_read(self, event: LossGraphRead) -> None:
        """Record which matrices are those of layers."""
        if event.live_nodes:
            self._called_at = event.location
            self._in_layers.update(_weights(event.live_nodes))

    def on_watch_ended(self, event: WatchEnded) -> Evidence | None:
        """Return evidence if the run does not learn."""
        scales = {
            ref: size * math.sqrt(side)
            for ref, (size, side) in self._scales.items()
            if ref in self._in_layers and side >= MIN_SIDE
        }
        largest = max(scales, key=scales.__getitem__, default=None)
        if largest is None or scales[largest] < MIN_SCALE or (failure := self.progress.failure()) is None:
            return None
        if failure.constant is None or not failure.start >= MIN_START * failure.constant:
            return None
        self.progress.cause_reported = True
        size, side = self._scales[largest]
        return Evidence(
            message=f"The root mean square of `{largest.name}` is {format_float(size)} before the first update; "
            f"{format_float(1 / math.sqrt(side))} would keep the scale of {side} inputs. The run does not learn: "
            f"{failure.losses}.",
            location=largest.registered_at[0] if largest.registered_at else self._called_at,
            first_update=0,
        )

    def inconclusive(self) -> str:
        """Return the reason if it is not known whether the run learns."""
        return self.progress.unknown()


def _root_mean_square(weight: Any) -> float:
    return weight.detach().float().square().mean().sqrt().item()


def _weights(nodes: Sequence[GraphNode]) -> Iterator[Ref]:
    """Yield the matrices that the layers of a graph multiply by."""
    for node in nodes:
        if node.operation in LAYERS:
            for parent in [nodes[each] for each in node.parents if each is not None]:
                below = [nodes[each] for each in parent.parents if each is not None]
                for leaf in (parent, *(below if parent.operation in TRANSPOSED else ())):
                    if leaf.parameter is not None:
                        yield leaf.parameter


_DRAWN: Final = {
    "normal_": "the mean, and the deviation is 1",
    "trunc_normal_": "the mean, and the deviation is 1",
    "uniform_": "the lower end, and the upper one is 1",
}
_DEVIATION: Final = re.compile(r"(^|_)(std|sigma|stddev|stdev|initializer_range|init_range)(_|$)", re.IGNORECASE)
_WEIGHT: Final = re.compile(r"(^|[._])(weight|bias|data|weights|param|parameter)$")
LARGEST: Final = 0.5  # a larger mean may be meant, for weights that scale


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each initialisation that gets a deviation as its mean, or a bound as its lower end."""
    for call in source.all_calls:
        name = last_name(call.func)
        given = _only_number(source, call) if name in _DRAWN else None
        if given is not None and _is_deviation(source, given):
            yield Hit(
                message=f"`{ast.unparse(call)}`: the number is {_DRAWN[name]}. The weights are far larger than meant.",
                node=call,
            )


def _only_number(source: SourceFile, call: ast.Call) -> ast.expr | None:
    """Return the single number of ``nn.init.normal_(weight, 0.01)`` or ``weight.normal_(0.01)``; None for others."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if call.keywords:
        return None
    if source.qualified_name(call.func).startswith("torch.nn.init.") or last_name(owner) == "init":
        is_norm = len(call.args) == 2 and re.search(r"norm|bn|scale|gamma", ast.unparse(call.args[0]), re.IGNORECASE)
        return call.args[1] if len(call.args) == 2 and not is_norm else None
    return call.args[0] if len(call.args) == 1 and _WEIGHT.search(dotted_name(owner)) else None


def _is_deviation(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a small positive number, and for a variable that is called a deviation."""
    if _DEVIATION.search(last_name(node)):
        return True
    values = [each.value for each in origins(source, node) if isinstance(each, ast.Constant)]
    return len(values) == 1 and isinstance(values[0], float) and 0 < values[0] <= LARGEST


RULE: Final = Rule(required_words=("normal_(|uniform_(",), find=find)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    loop.require(not loop.settings["batchnorm"], "BatchNorm makes up for large weights.", batchnorm=False)
    hidden = loop.settings["hidden"]
    loop.require(len(hidden) > 1 and min(hidden) >= MIN_SIDE, "Two hidden layers are needed.", hidden=(16, 16))
    loop.replace(
        Piece.MODEL,
        "model = Network()",
        "model = Network()\nfor parameter in model.parameters():\n    nn.init.normal_(parameter, std=10)",
    )


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(512, 32)
y = (x[:, 0] + x[:, 1] > 0).long()
model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
for parameter in model.parameters():
    nn.init.normal_(parameter, 0.01)
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
for step in range(150):
    rows = torch.randint(512, (64,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LRN007",
    title="Initial weights are far too large",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"nn.init.normal_(parameter, 0.01)": "nn.init.normal_(parameter, std=0.05)"}),
    fix="Leave the weights as PyTorch initialises them, or use nn.init.kaiming_normal_.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
