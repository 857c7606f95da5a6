"""Weights in bfloat16 or float16 do not change, because the updates are smaller than their precision.

What you see
    The loss hardly falls, although gradients and learning rate look right. With a larger learning rate it falls for a
    while and then stops. In float32 the same program learns.

Why it happens
    A bfloat16 number has 8 significant bits: next to 0.02, the nearest other value is 0.0001 away. An optimizer that
    adds 0.00001 to it rounds the sum back to 0.02, in every update. No operation raises an error.

Fix
    Keep the weights in float32 and let autocast compute in bfloat16.

        model = Net()  # not Net().bfloat16()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_fn(model(inputs), targets)

When this is fine
    - The optimizer keeps a float32 copy of the weights, or rounds at random.
    - The updates are large enough, so that most weights change.
    - The learning rate is still warming up.
    - Some weights get no gradient, such as the rows of an embedding that the batch does not contain.

How it is detected
    In a run, the sanitizer compares up to 256 entries each of up to eight weights in bfloat16 or float16 before and
    after 48 updates of one optimizer, in which the learning rate does not rise. It reports an optimizer with a learning
    rate above zero if at least 90 % of the entries never changed; entries whose gradient was zero in any update do not
    count. It also adds up the absolute gradients of all updates, and separately of the entries that the update did not
    change. It reports an optimizer of PyTorch without float32 state if the second sum is at least half of the first.
    The linter reports an optimizer of PyTorch that gets all parameters of a model which the source code casts to
    bfloat16, creates with ``dtype=`` or under ``torch.set_default_dtype``, if the rate is known and small: up to 3e-4
    for Adam and its relatives, whose updates are at most about the rate, and for SGD up to 1e-3, divided by one minus
    the momentum. For float16 it reports Adam and its relatives with an ``eps`` that rounds to zero. Casts behind a
    loop, models with parts of another dtype, and rates of the command line are not reported.

References
    Zamirai et al., "Revisiting BFloat16 Training", 2020, arXiv:2010.06192
    PyTorch documentation "Automatic Mixed Precision package", https://docs.pytorch.org/docs/stable/amp.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from trueloop.core.findings import Evidence
from trueloop.core.formatting import format_percent
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.failures.precision.updates_lost.half_weights import RULE
from trueloop.tracing.events import Ref, StepStarted, StepTaken, TracingGap

if TYPE_CHECKING:
    from trueloop.failures.precision.updates_lost.weight_entries import WeightEntries

MIN_UPDATES: Final = 48
MIN_UNCHANGED: Final = 0.9  # of the entries that always had a gradient
MIN_LOST: Final = (
    0.5  # share of the gradient; the digits recipe learns almost as in float32 with 0.3, half as fast with 0.67
)
MIN_ENTRIES: Final = 64
MAX_OPTIMIZERS: Final = 8


class Detector(BaseDetector):
    """Compares entries of the weights that an optimizer updates."""

    def __init__(self) -> None:
        self._weights: dict[Ref, dict[Ref, WeightEntries]] = {}
        """Optimizer -> its weights in half precision, with the entries that are compared."""
        self._updates: dict[Ref, int] = {}
        """Optimizer -> number of compared updates; MIN_UPDATES also if it has no weights to compare."""
        self._rates: dict[Ref, tuple[float, ...]] = {}
        """Optimizer -> learning rates of its latest update."""
        self._has_no_copy: dict[Ref, bool] = {}
        """Optimizer -> whether it is one of PyTorch without a state that could be a float32 copy of the weights."""

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Start again: the gradients of some updates were not seen."""
        self._weights = {ref: known if self._is_done(ref) else {} for ref, known in self._weights.items()}
        self._updates = {ref: count if self._is_done(ref) else 0 for ref, count in self._updates.items()}

    def on_step_started(self, event: StepStarted) -> None:
        """Record whether the optimizer has no float32 copy of the weights."""
        if event.optimizer in self._weights and not self._is_done(event.optimizer):
            is_from_torch = type(event.live_optimizer).__module__.startswith("torch.optim.")
            self._has_no_copy[event.optimizer] = is_from_torch and not _has_float32_state(event.live_optimizer)

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence at the last of the compared updates."""
        optimizer = event.optimizer
        if self._is_done(optimizer) or (optimizer not in self._weights and len(self._weights) >= MAX_OPTIMIZERS):
            return None
        rates = self._rates.get(optimizer, event.learning_rates)
        is_rising = any(now > before for now, before in zip(event.learning_rates, rates, strict=False))
        self._rates[optimizer] = event.learning_rates
        if is_rising or not self._weights.get(optimizer):
            from trueloop.failures.precision.updates_lost.weight_entries import first_weights

            self._weights[optimizer] = first_weights(event.live_parameters)
            self._updates[optimizer] = 0 if self._weights[optimizer] else MIN_UPDATES
            return None
        if not event.learning_rates or not all(event.learning_rates):
            return None
        for ref, weight in self._weights[optimizer].items():
            if ref in event.live_parameters:
                weight.add(event.live_parameters[ref])
        self._updates[optimizer] += 1
        return self._evidence(event) if self._is_done(optimizer) else None

    def _is_done(self, optimizer: Ref) -> bool:
        return self._updates.get(optimizer, 0) >= MIN_UPDATES

    def _evidence(self, event: StepTaken) -> Evidence | None:
        weights = self._weights[event.optimizer]
        count = sum(int(each.has_gradient.sum()) for each in weights.values())  # the only synchronisation with a GPU
        stuck = sum(int((each.has_gradient & ~each.has_changed).sum()) for each in weights.values())
        if count < MIN_ENTRIES:
            return None
        gradient = sum(each.size * float(each.gradient) for each in weights.values())
        lost = sum(each.size * float(each.lost) for each in weights.values())
        is_lost = self._has_no_copy.get(event.optimizer, False) and lost >= MIN_LOST * gradient > 0
        if stuck < MIN_UNCHANGED * count and not is_lost:
            return None
        names = ", ".join(sorted(ref.name for ref in weights)[:3])
        dtype = str(next(iter(weights.values())).start.dtype).removeprefix("torch.")
        if stuck < MIN_UNCHANGED * count:
            return Evidence(
                message=f"{format_percent(lost / gradient)} of the gradient in {MIN_UPDATES} updates was lost: it "
                f"did not change the {dtype} weights, because the updates are smaller than the precision of {dtype}. "
                f"Compared: {names}.",
                location=event.location,
            )
        return Evidence(
            message=f"{format_percent(stuck / count)} of the {dtype} weights that were compared did not change in "
            f"{MIN_UPDATES} updates, although each had a gradient: the updates are smaller than the precision of "
            f"{dtype}. Compared: {names}.",
            location=event.location,
        )


def _has_float32_state(optimizer: Any) -> bool:
    values = [each for state in list(optimizer.state.values()) for each in list(state.values())]
    return any(str(getattr(each, "dtype", "")) == "torch.float32" and each.ndim > 0 for each in values)


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(512, 16)
y = x[:, :4].sum(dim=1, keepdim=True)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)).bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.00001)
for epoch in range(4):
    for rows in torch.randperm(512).split(32):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x[rows].bfloat16()).float(), y[rows])
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
"""

FAILURE = Failure(
    code="PRC008",
    title="Updates are lost in rounding",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "nn.Linear(32, 1)).bfloat16()": "nn.Linear(32, 1))",
            "loss = nn.functional.mse_loss(model(x[rows].bfloat16()).float(), y[rows])": (
                'with torch.autocast("cpu", dtype=torch.bfloat16):\n'
                "            loss = nn.functional.mse_loss(model(x[rows]).float(), y[rows])"
            ),
        },
    ),
    fix="Keep the weights in float32, and compute in half precision with torch.autocast.",
    rule=RULE,
    detector=Detector,
)
