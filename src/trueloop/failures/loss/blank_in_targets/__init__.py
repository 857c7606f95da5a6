"""The targets of the CTC loss contain the blank, so a real symbol is trained as "no symbol".

What you see
    The loss falls, but one symbol is never recognised, or the character error rate stays high. A decoder that uses
    another blank than the loss returns a symbol at nearly every frame.

Why it happens
    ``CTCLoss`` reserves one class for "no symbol": class 0, unless you pass ``blank``. If the alphabet begins at 0 and
    the blank was meant to be the last class, the loss takes the first symbol for the blank. The targets must not
    contain the blank, but PyTorch does not check it.

Fix
    Pass the class that the model and the decoder use as the blank, or let the labels begin at 1.

        loss_fn = nn.CTCLoss(blank=len(alphabet))  # the model has len(alphabet) + 1 outputs

    If the blank is the padding of the targets, pass their true lengths as ``target_lengths``.

When this is fine
    - Zeros that pad the targets behind their ``target_lengths``.
    - Targets of length 0.

How it is detected
    The sanitizer looks for the blank among the targets of the first 64 calls, up to ``target_lengths``, and reports the
    second call that contains it. Targets on a GPU are not read.

    The linter reports an alphabet that is numbered from 0 in a program whose CTC losses have the blank 0, as a warning:
    ``{c: i for i, c in enumerate(letters)}``, ``letters.index(c)`` or ``ord(c) - ord("a")``, where the first symbol is
    a letter or a digit, or the symbols are ``sorted(set(text))``. It is silent if a blank is inserted, or the numbers
    or the targets are raised by 1. Targets by ``torch.randint`` from 0 on are an error.

References
    torch.nn.CTCLoss: "Target index cannot be blank",
    https://docs.pytorch.org/docs/stable/generated/torch.nn.CTCLoss.html
    Graves et al., "Connectionist Temporal Classification", 2006, https://doi.org/10.1145/1143844.1143891
"""

from dataclasses import dataclass

from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.failures.loss.blank_in_targets.symbols_in_source import RULE
from trueloop.tracing.events import Event

MIN_CALLS = 2


@dataclass(slots=True, kw_only=True, eq=False)
class CtcTargetsRead(Event):
    """The targets of a CTC loss were read."""

    blank: int
    blanks: int
    """Number of targets that are the blank."""
    targets: int
    """Number of targets within the target lengths."""
    unused_last: int | None
    """The last class, if it is not the blank and no target; None = it is used."""


class Detector(BaseDetector):
    """Counts the calls whose targets contain the blank."""

    def __init__(self) -> None:
        self._seen = False
        self._calls = 0

    def on_ctc_targets_read(self, event: CtcTargetsRead) -> Evidence | None:
        """Return evidence at the second call with the blank among its targets."""
        self._seen = True
        self._calls += bool(event.blanks)
        if not event.blanks or self._calls != MIN_CALLS:
            return None
        last = event.unused_last
        hint = f" Class {last}, the last one, is no target: is it the blank?" if last is not None else ""
        return Evidence(
            message=f"{event.blanks} of {event.targets} targets of the CTC loss are class {event.blank}, which is its "
            f'blank (`blank={event.blank}`): this symbol is trained as "no symbol".{hint}',
            location=event.location,
        )

    def inconclusive(self) -> str:
        """Return a reason if no targets were read."""
        return "" if self._seen else "no CTC loss with targets on the CPU was computed"


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
SYMBOLS, STEPS = 5, 12
model = nn.Linear(8, SYMBOLS + 1)  # the last class is the blank
loss_fn = nn.CTCLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
lengths = torch.full((16,), STEPS), torch.full((16,), 4)
for step in range(20):
    x, targets = torch.randn(STEPS, 16, 8), torch.randint(SYMBOLS, (16, 4))
    optimizer.zero_grad()
    loss = loss_fn(model(x).log_softmax(2), targets, *lengths)
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LOS020",
    title="CTC targets contain the blank",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad=BAD,
    good=changed(BAD, {"nn.CTCLoss()": "nn.CTCLoss(blank=SYMBOLS)"}),
    fix="Pass the class of the blank to the loss, nn.CTCLoss(blank=...), or number the symbols from 1.",
    rule=RULE,
    detector=Detector,
)
