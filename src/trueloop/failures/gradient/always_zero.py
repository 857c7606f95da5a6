"""The gradient of a parameter is exactly zero in every update.

What you see
    A layer does not learn, though it takes part in the forward pass and its parameters have a gradient.

Why it happens
    Zero is a valid gradient. Common causes are ReLUs whose inputs are always negative ("dead" ReLUs), a saturated
    sigmoid, a factor of zero, two factors that are both initialised with zeros, and a loss that ignores an output.

Fix
    Inspect the activations after the layer. If all are zero or saturated, change the initialisation or the activation.

        self.activation = nn.LeakyReLU()  # or nn.GELU(): neither becomes "dead"

When this is fine
    - The run is in its first updates with LoRA or with residual branches that are initialised with zero.
    - The weight of a loss term is still zero and is increased later.
    - A mixture of experts sends no sample to this expert.
    - The bias cancels out in the loss, such as the last bias of a WGAN critic:
      ``critic(fake).mean() - critic(real).mean()``.

How it is detected
    In a run, the sanitizer reports a parameter whose gradient was zero in all updates that it checked (at least 16
    updates, spread over at least 64), if other parameters of the same optimizer had nonzero gradients. It does not
    report a bias if the weight of the same layer has nonzero gradients, and does not check gradients on a GPU. A zero
    gradient may be intended, so this is a note. It is a warning if all gradients of an optimizer were zero in
    all of these updates: then nothing is trained.

References
    Lu et al., 2019, "Dying ReLU and Initialization: Theory and Numerical Examples", arXiv:1903.06733
    torch.nn.init, https://docs.pytorch.org/docs/stable/nn.init.html
"""

from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.failures.teaching_script import Piece, line_injector
from trueloop.tracing.events import NO_REFS, Ref, Refs, StepTaken, WatchEnded
from trueloop.tracing.weak_id_dict import WeakIdDict

MIN_UPDATES = 64  # from the first to the last update whose gradients were read
MIN_READ = 16  # number of updates whose gradients were read


class _OptimizerState:
    """The parameters of one optimizer whose gradients were always zero."""

    __slots__ = ("first", "location", "others", "reported", "steps", "zero")

    def __init__(self, event: StepTaken) -> None:
        self.first, self.steps, self.reported = event.update, 0, False
        self.zero: Refs = event.zero_gradients()
        self.others: Refs = NO_REFS
        self.location = event.location


class Detector(BaseDetector):
    """Tracks, for each optimizer, the parameters whose gradient was zero in every step."""

    def __init__(self) -> None:
        self._states = WeakIdDict[Ref, _OptimizerState]()
        self._pending: dict[Ref, _OptimizerState] = {}
        """Optimizers with always-zero gradients that are not reported yet, including optimizers that were deleted."""
        self._read = self._read_enough = False

    def on_step_taken(self, event: StepTaken) -> list[Evidence] | None:
        """Return evidence, once per optimizer."""
        if event.grad_norm is not None and not self._step(event):
            return None  # the usual case
        return self._find(event.update)

    def on_watch_ended(self, event: WatchEnded) -> list[Evidence]:
        """Return evidence, once per optimizer; also of optimizers that had no other gradients."""
        enough = [each for each in self._pending.items() if event.update - each[1].first >= MIN_UPDATES]
        nothing = [each for each in enough if not each[1].others and not each[1].reported]
        return [*self._find(event.update), *(self._trains_nothing(*each) for each in nothing)]

    def _trains_nothing(self, optimizer: Ref, state: _OptimizerState) -> Evidence:
        return Evidence(
            message=f"All gradients of {optimizer.name} were exactly zero in all {state.steps} updates that were "
            "checked: it trained nothing.",
            location=state.location,
            severity=Severity.WARNING,
            fix="Check whether the loss is NaN or constant, and what is between the model and the loss.",
            first_update=state.first,
            dedup_key=optimizer,
        )

    def _find(self, update: int) -> list[Evidence]:
        evidence: list[Evidence] = []
        for optimizer, state in list(self._pending.items()):
            if update - state.first >= MIN_UPDATES and state.others:
                del self._pending[optimizer]  # its next step adds it again if it is not reported
                if names := _always_zero(state):
                    evidence.append(self._evidence(optimizer, state, names, update))
        return evidence

    def _step(self, event: StepTaken) -> bool:
        """Record a step; return True if some gradients of its optimizer were always zero."""
        state = self._states.get(event.optimizer)
        if state is None:
            state = self._states.put(event.optimizer, _OptimizerState(event))
            self._read = True
        state.steps += 1
        if state.steps == MIN_READ:
            self._read_enough = True
        if not state.zero:
            return False
        state.zero &= event.zero_gradients()
        state.others |= event.with_gradient - event.zero_gradients()
        state.location = event.location
        if not state.zero:
            self._pending.pop(event.optimizer, None)
        elif state.steps >= MIN_READ and not state.reported:
            self._pending[event.optimizer] = state
        return True

    def _evidence(self, optimizer: Ref, state: _OptimizerState, names: list[str], update: int) -> Evidence:
        state.reported = True
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return Evidence(
            message=f"The gradient of {', '.join(names[:3])}{more} was exactly zero in all {state.steps} updates "
            f"that were checked, from update {state.first} to {update}.",
            location=state.location,
            first_update=state.first,
            dedup_key=optimizer,
        )

    def inconclusive(self) -> str:
        """Return a reason if no gradients, or too few, could be read."""
        if not self._read:
            return "no gradient could be read: there was none, or not on the CPU"
        return "" if self._read_enough else f"no optimizer had {MIN_READ} updates whose gradients were read"


def _always_zero(state: _OptimizerState) -> list[str]:
    """Return the names of parameters with zero gradient, except a bias whose weight has another gradient."""
    nonzero = {ref.name for ref in state.others}
    return sorted(
        ref.name
        for ref in state.zero
        if not ref.name.endswith("bias") or f"{ref.name.removesuffix('bias')}weight" not in nonzero
    )


BAD = """
import torch
from torch import nn

x = torch.rand(256, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
nn.init.constant_(model[0].bias, -100.0)
shortcut = nn.Linear(8, 1)
optimizer = torch.optim.SGD([*model.parameters(), *shortcut.parameters()], lr=0.01)
for step in range(200):
    rows = torch.randint(256, (32,))
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(shortcut(x[rows]) + model(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="GRD006",
    title="A gradient is always zero",
    severity=Severity.NOTE,
    bad=BAD,
    good=changed(BAD, {"nn.init.constant_(model[0].bias, -100.0)\n": ""}),
    fix="Inspect the activations after the layer; change its initialisation, activation or learning rate.",
    detector=Detector,
    inject=line_injector(Piece.MODEL, "for parameter in model.parameters():\n    nn.init.zeros_(parameter)"),
)
