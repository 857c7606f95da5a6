"""A checkpoint is loaded with strict=False, and not one of its names is the model's.

What you see
    Fine-tuning is no better than training from nothing, or a model that was good when it was saved answers nonsense.
    The file is right, the load returns at once, and the weights are those of the initialisation.

Why it happens
    ``strict=False`` asks for exactly that: names that fit are loaded, others are left. Saved by
    ``DistributedDataParallel``, Lightning or ``torch.compile`` every name begins with "module.", "model." or
    "_orig_mod.", and then none fits. What was left is in the result, which most programs drop.

Fix
    Take the prefix off: ``torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")``, load with
    ``strict=True``, or look at ``missing_keys`` and ``unexpected_keys`` of the result.

When this is fine
    A checkpoint that fits in part, as a backbone without its head does, or an adapter; a second attempt with another
    prefix after a first one that fitted nothing; ``strict=True``, which raises. Reported is a load after which the
    model runs and of which no name fitted. A checkpoint that is offered to several parts of a model, some of which
    want nothing of it, looks the same: hence a warning. A text does not show which names a file holds.

References
    pytorch/examples#1029, "nn.module load_state_dict strict=False can silently load a corrupted model",
    https://github.com/pytorch/examples/issues/1029
    pytorch/pytorch#141256, "silent failures and hours of debugging", https://github.com/pytorch/pytorch/issues/141256
    torch.nn.Module.load_state_dict, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
"""

from __future__ import annotations

from typing import ClassVar

from trueloop.core.findings import Evidence
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Severity
from trueloop.tracing.events import Event, ModelCalled, Ref, StateLoaded, WatchEnded


class Detector(failure.Detector):
    """Looks at what fitted of each state that was loaded into a model."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (StateLoaded, ModelCalled, WatchEnded)
    activated_by: ClassVar[tuple[type[Event], ...]] = (StateLoaded,)

    def __init__(self) -> None:
        self._waiting: dict[Ref, StateLoaded] = {}
        self._loaded = False

    def observe(self, event: StateLoaded | ModelCalled | WatchEnded) -> list[Evidence] | None:
        """Return evidence when a model runs after a load that fitted nothing, with no better one in between."""
        if isinstance(event, StateLoaded):
            if event.what == "model":
                self._loaded = True
                self._waiting.pop(event.target, None)
                if event.names is not None and not event.names.matched:
                    self._waiting[event.target] = event
            return None
        if not self._waiting:
            return None
        told, self._waiting = list(self._waiting.values()), {}
        return [_evidence(each) for each in told]

    def inconclusive(self) -> str:
        """Return a reason where no model was loaded."""
        return "" if self._loaded else "no state was loaded into a model"


def _evidence(event: StateLoaded) -> Evidence:
    names = event.names
    assert names is not None
    prefix = _prefix(names.unexpected, names.missing)
    said = f": {names.unexpected!r} was given where {names.missing!r} is wanted" if names.unexpected else ""
    return Evidence(
        message=f"None of {names.given} names in the state is one of the {names.wanted} of {event.target.name}{said}; "
        "strict=False loaded nothing.",
        location=event.place,
        fix=prefix,
        about=event.target,
        update=event.update,
    )


def _prefix(given: str, wanted: str) -> str:
    """Say what to do about two names of which one ends in the other; "" for any others."""
    if given != wanted and given.endswith(wanted):
        return f"Take {given.removesuffix(wanted)!r} off the names of the state, and load it with strict=True."
    if given != wanted and wanted.endswith(given):
        return f"Put {wanted.removesuffix(given)!r} before the names of the state, or load it into that part."
    return ""


FAILURE = Failure(
    code="CKP005",
    title="Nothing of a checkpoint is loaded",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

torch.manual_seed(0)
trained = nn.DataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
state = trained.state_dict()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
model.load_state_dict(state, strict=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
""",
    good="""
import torch
from torch import nn

torch.manual_seed(0)
trained = nn.DataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
state = trained.module.state_dict()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
model.load_state_dict(state, strict=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
""",
    fix="Give the state the model's names, and load it with strict=True.",
    detector=Detector,
)
