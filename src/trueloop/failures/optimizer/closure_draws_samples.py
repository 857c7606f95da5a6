"""The closure of an LBFGS optimizer draws new samples whenever it is called, so each call has another loss function.

What you see
    LBFGS stops to improve early, or its loss jumps up and down, while Adam with the same samples works. In a
    physics-informed network the residual stagnates, whatever the line search.

Why it happens
    One ``step()`` of LBFGS calls the closure up to ``max_eval`` times, 25 by default. The line search compares the
    losses of these calls, and the differences of their gradients become the estimate of the curvature. If each call
    draws its own points or batch, the differences are those of the samples.

Fix
    Draw once before each step, and use these samples in all calls of the closure:

        points = sample_points()  # not in the closure
        optimizer.step(lambda: compute_loss_and_gradients(points))

When this is fine
    - Another optimizer, such as Adam or SGD, which calls the closure once.
    - ``LBFGS(..., max_iter=1)`` or ``max_eval=1``, which call the closure once, too.
    - A closure that seeds the generator at each call, so that it draws the same samples.
    - New samples now and then, under a condition.

How it is detected
    In a run, the sanitizer reports the second step of LBFGS between all of whose evaluations a global random generator
    has drawn numbers, without dropout and passes over loaders. The linter reports a closure for LBFGS with a call that
    draws random numbers, or ``next(iterator)``, also in the functions that it calls.

References
    torch.optim.LBFGS, https://docs.pytorch.org/docs/stable/generated/torch.optim.LBFGS.html
    Bollapragada et al., "A Progressive Batching L-BFGS Method for Machine Learning", 2018, arXiv:1802.05374
"""

import ast
import random
import re
from collections.abc import Iterator
from ctypes import string_at
from typing import Any, Final

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.class_instances import called_function
from trueloop.analysis.queries.closures import calls_closure_repeatedly, closure_of
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Evidence
from trueloop.core.source_text import encloses, nodes_in
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import BackwardStarted, LoaderStarted, ModelCalled, StepStarted, StepTaken

MIN_STEPS: Final = 2
MAX_DEPTH: Final = 3
_DRAW: Final = re.compile(
    r"torch\.(rand|randn|randint|randperm|rand_like|randn_like|randint_like|normal|bernoulli|multinomial)$|"
    r"(numpy\.random|random)\.(rand|randn|randint|random|random_sample|uniform|normal|standard_normal|permutation|"
    r"choice|choices|sample|shuffle|gauss)$|pyDOE2?\.lhs$"
)
_IN_PLACE: Final = frozenset(("uniform_", "normal_", "random_", "bernoulli_", "exponential_"))
_GENERATOR: Final = re.compile(r"(^|_)(rng|rs|gen|generator|sobol|lhs)$", re.IGNORECASE)
_METHODS: Final = frozenset(("uniform", "normal", "random", "integers", "choice", "permutation", "draw"))
_SEEDS: Final = re.compile(r"seed|set_rng_state|set_state|fork_rng|default_rng")


class Detector(BaseDetector):
    """Compares the random generators before the evaluations of each step of an LBFGS optimizer."""

    activated_by = (StepStarted,)

    def __init__(self) -> None:
        self._states: list[int] | None = None
        """State of the generators at each backward pass of the running step; None = it is not judged."""
        self._steps = 0

    def on_step_started(self, event: StepStarted) -> None:
        """Begin to compare."""
        group = event.live_optimizer.param_groups[0] if event.optimizer.kind == "LBFGS" else {}
        self._states = [] if min(group.get("max_iter", 0), group.get("max_eval", 0)) > 1 else None

    def on_loader_started(self, event: LoaderStarted) -> None:
        """Stop comparing: a pass over a loader draws a seed, and may be over all samples."""
        self._states = None

    def on_model_called(self, event: ModelCalled) -> None:
        """Stop comparing if dropout draws numbers."""
        self._states = None if event.dropout_active else self._states

    def on_backward_started(self, event: BackwardStarted) -> None:
        """Read the state of the generators."""
        if self._states is not None:
            self._states.append(_state_of_generators())

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence at the second step all of whose evaluations have random numbers of their own."""
        states, self._states = self._states or [], None
        self._steps += event.closure and 1 < len(states) == len(set(states))
        if self._steps < MIN_STEPS or len(states) < 2:
            return None
        self.ignore(StepStarted)
        return Evidence(
            message=f"{event.call} called its closure {len(states)} times, and before each call random numbers were "
            "drawn: the line search compares losses of different samples.",
            location=event.location,
        )


def _state_of_generators() -> int:
    """Return a number that changes as soon as a global generator of Python, NumPy or PyTorch has drawn a number."""
    import numpy as np
    import torch

    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else [])]
    numpy: Any = np.random.get_state()
    return hash(
        (random.getstate(), numpy[1].tobytes(), numpy[2], *(string_at(each.data_ptr(), each.nbytes) for each in states))
    )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each step of an LBFGS optimizer whose closure draws samples."""
    steps = {id(each.node): each for each in source.ops(OpKind.STEP) if calls_closure_repeatedly(each)}
    for step in steps.values():
        closure = closure_of(source, step)
        draw = next(_draws(source, closure), None) if closure is not None else None
        if draw is not None:
            yield Hit(
                message=f"`{ast.unparse(step.node)}` calls its closure many times and compares the losses, but "
                f"`{ast.unparse(draw)}` draws new samples at each call.",
                node=step.node,
                related=((draw, "drawn at each call"), (closure, "the closure")),
            )


def _draws(source: SourceFile, function: Any, depth: int = MAX_DEPTH) -> Iterator[ast.Call]:
    """Yield each call that draws samples whenever a function is called; none if the function seeds the generator."""
    calls = nodes_in(function, ast.Call)
    if any(_SEEDS.search(last_name(each.func)) for each in calls):
        return
    if any("cache" in ast.unparse(each) for each in getattr(function, "decorator_list", ())):
        return
    for call in calls:
        if _is_conditional(source, function, call):
            continue
        if _is_draw(source, call):
            yield call
        called = called_function(source, call) if depth else None
        if called is not None and called is not function:
            yield from _draws(source, called, depth - 1)


def _is_draw(source: SourceFile, call: ast.Call) -> bool:
    """Return True for a call that draws random numbers, or takes the next batch of an iterator."""
    name = last_name(call.func)
    if name == "next":
        return bool(call.args) and isinstance(call.args[0], ast.Name | ast.Attribute)
    is_of_generator = name in _METHODS and _GENERATOR.search(last_name(getattr(call.func, "value", None)))
    return bool(is_of_generator) or name in _IN_PLACE or _DRAW.match(source.qualified_name(call.func)) is not None


def _is_conditional(source: SourceFile, function: Any, call: ast.Call) -> bool:
    """Return True if a function does not run a call each time, or may return before it."""
    around = [each for each in enclosing_nodes(source, call) if encloses(function, each) and each is not function]
    branches = [each for each in around if isinstance(each, ast.If | ast.IfExp | ast.Try)]
    is_within = any(not encloses(getattr(each, "test", None), call) for each in branches)
    return is_within or any(each.lineno < call.lineno for each in nodes_in(function, ast.Return))


RULE: Final = Rule(required_words=("LBFGS", ".step(", "rand|uniform|normal|next(|lhs"), find=find)

_CLOSURE, _POINTS = "    def closure():\n", "        x = torch.rand(64, 1)\n"
BAD = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=10, line_search_fn="strong_wolfe")
for step in range(8):
    def closure():
        x = torch.rand(64, 1)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), torch.sin(6 * x))
        loss.backward()
        return loss

    print(optimizer.step(closure).item())
"""

FAILURE = Failure(
    code="OPT022",
    title="Closure of LBFGS draws new samples at each call",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {_CLOSURE + _POINTS: _POINTS.removeprefix("    ") + _CLOSURE}),
    fix="Draw the samples before the step, and use them in all calls of the closure.",
    rule=RULE,
    detector=Detector,
)
