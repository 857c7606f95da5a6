"""The gradient of an input that is changed step by step, as in an attack or a style transfer, is never cleared.

What you see
    An adversarial attack is weaker than in the paper, so the model seems robust. An image that is optimised overshoots
    and oscillates.

Why it happens
    ``backward()`` adds to ``x.grad``. An input is no parameter of an optimizer, and ``model.zero_grad()`` does not
    clear it either. So each step follows the sum of the gradients of all steps so far.

Fix
    Clear the gradient in each step, or compute it without ``.grad``:

        x.grad = None
        criterion(model(x), y).backward()

        grad, = torch.autograd.grad(criterion(model(x), y), x)

When this is fine
    - A single step, as in FGSM.
    - Each step makes a new leaf: ``x = (x + step).detach().requires_grad_()``.
    - An optimizer over ``[x]`` whose ``zero_grad()`` is called.
    - Momentum with a buffer of its own, as in MI-FGSM.
    - The gradient is summed over several backward passes before the input is changed.

How it is detected
    In a run, the sanitizer looks at the input of each model, and at the leaf from which it was computed. It reports the
    third backward pass in succession that adds to the gradient of such a leaf after its values have changed. Updates by
    an optimizer belong to GRD001. The linter reports a loop that changes a leaf in place and reads its ``.grad`` after
    ``backward()``, if nothing in the loop, or in the functions of the file that it calls, clears or replaces that
    gradient.

References
    torch.Tensor.backward: "This function accumulates gradients in the leaves",
    https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html
    Madry et al., 2018, "Towards Deep Learning Models Resistant to Adversarial Attacks", arXiv:1706.06083
    Dong et al., 2018, "Boosting Adversarial Attacks with Momentum", arXiv:1710.06081
"""

import ast
import weakref
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.gradient.input_gradient_never_cleared.moved_leaves import moved_leaves
from trueloop.tracing.events import BackwardEnded, BackwardStarted, ModelCalled, StepTaken, TracingGap

MIN_STEPS: Final = 3
MAX_OPERATIONS: Final = 12  # between the leaf and the input of the model: clipping, normalisation


class Detector(BaseDetector):
    """Follows the gradient of the leaf that was the input of the latest model call."""

    def __init__(self) -> None:
        self._leaf: Any = None
        """A weak reference to the leaf."""
        self._values: tuple[Any, ...] = ()
        """Its version, its memory and its first values at the latest backward pass."""
        self._before: tuple[Any, int] | None = None
        """Weak reference and version of the gradient that the running backward pass adds to; None = cleared."""
        self._steps = 0

    def on_model_called(self, event: ModelCalled) -> None:
        """Look at the input of the model."""
        leaf = _leaf_of(event.inputs) if event.has_graph and not event.recomputed else None
        if leaf is not None and leaf is not (self._leaf and self._leaf()):
            self._leaf, self._values, self._steps = weakref.ref(leaf), (), 0

    def on_backward_started(self, event: BackwardStarted) -> None:
        """Find out whether the leaf has a gradient already, and has moved since it got it."""
        leaf: Any = self._leaf and self._leaf()
        self._before = None
        if leaf is None or leaf.grad is None:
            return
        gradient: Any = leaf.grad
        if not self._values or self._values == _values_of(leaf):
            return
        is_read = gradient.is_cpu or self._steps == MIN_STEPS - 1  # a synchronisation, but at an almost certain mistake
        if not is_read or bool((gradient != 0).any()):
            self._before = weakref.ref(gradient), gradient._version  # noqa: SLF001

    def on_backward_ended(self, event: BackwardEnded) -> Evidence | None:
        """Return evidence at the third backward pass in succession that adds to such a gradient."""
        leaf = self._leaf and self._leaf()
        if leaf is None:
            return None
        before, self._before = self._before, None
        gradient: Any = leaf.grad
        has_moved = bool(self._values) and self._values != _values_of(leaf)
        if before is not None and gradient is not None and before[0]() is gradient and gradient._version != before[1]:  # noqa: SLF001
            self._steps += 1
        elif has_moved:
            self._steps = 0
        self._values = _values_of(leaf)
        if self._steps != MIN_STEPS or before is None:
            return None
        return Evidence(
            message=f"`backward()` added {MIN_STEPS} times in succession to the gradient of an input of shape "
            f"{tuple(leaf.shape)} that had been changed since: nothing cleared it, so each step follows the sum of all "
            "gradients so far.",
            location=event.location,
        )

    def on_step_taken(self, event: StepTaken) -> None:
        """Forget the leaf if an optimizer has it, or an update by hand that is traced."""
        leaf = self._leaf and self._leaf()
        if leaf is not None and any(each is leaf for each in event.live_parameters.values()):
            self._leaf, self._before, self._steps = None, None, 0

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Discard incomplete observations."""
        self._leaf, self._before, self._steps = None, None, 0


def _leaf_of(tensor: Any) -> Any:
    """Return the leaf from which the input of a model was computed; None if it needs no gradient, or has weights."""
    if tensor is None or not tensor.requires_grad:
        return None
    node, leaf = tensor.grad_fn, tensor if tensor.grad_fn is None else None
    for _ in range(MAX_OPERATIONS):
        if node is None or leaf is not None:
            break
        leaf = getattr(node, "variable", None)
        node = next((below for below, _ in node.next_functions if below is not None), None)
    return None if type(leaf).__name__ != "Tensor" else leaf


def _values_of(leaf: Any) -> tuple[Any, ...]:
    from trueloop.tracing.parameter_snapshot import first_values

    return leaf._version, leaf.data_ptr(), *first_values(leaf)  # noqa: SLF001


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each gradient of a leaf that a loop reads to move it, and that nothing in the loop clears."""
    for each in moved_leaves(source):
        yield Hit(
            message=f"`{ast.unparse(each.read)}` is the sum of the gradients of all iterations: nothing in the loop "
            f"clears it after `{each.name}` was changed.",
            node=each.read,
            related=((each.backward, "adds to the existing gradient"),),
        )


RULE: Final = Rule(required_words=("backward(", ".grad", "requires_grad|Parameter("), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
images, labels = torch.randn(32, 8), torch.randint(3, (32,))
attacked = images.clone().requires_grad_(True)
for step in range(10):
    loss = nn.functional.cross_entropy(model(attacked), labels)
    loss.backward()
    with torch.no_grad():
        attacked += 0.05 * attacked.grad.sign()
        attacked.copy_(torch.clamp(attacked, images - 0.3, images + 0.3))
print((model(attacked).argmax(1) == labels).float().mean())
"""

FAILURE = Failure(
    code="GRD030",
    title="Gradient of an input is never cleared",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"    loss.backward()\n": "    attacked.grad = None\n    loss.backward()\n"}),
    fix="Set x.grad = None in each step, or use torch.autograd.grad.",
    rule=RULE,
    detector=Detector,
)
