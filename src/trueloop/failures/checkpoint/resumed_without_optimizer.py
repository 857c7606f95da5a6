"""Training is resumed with the old weights and a new optimizer.

What you see
    After every restart the loss jumps up and takes hundreds of updates to come back; a run that was interrupted often
    ends worse than one that was not.

Why it happens
    An optimizer that was just built is a valid one. Its averages are empty: Adam's first steps after the restart have
    the size of its first steps ever, whatever the gradients had been like, and momentum starts from rest.

Fix
    Load what was saved: ``optimizer.load_state_dict(checkpoint["optimizer"])``, before the first step, and the same
    for the scheduler and the scaler.

When this is fine
    Fine-tuning takes the weights of a full checkpoint and wants a new optimizer; rounds of federated learning, going
    back to the best weights within a run and plain SGD without momentum lose nothing. None of them is named. That the
    program means to resume is certain in two cases only: it loads the scheduler's state, or the scaler's, and leaves
    the optimizer's, which the same file holds; or it writes the next checkpoint, optimizer included, over the one it
    began from. An optimizer whose state is set by hand, without ``load_state_dict``, would be wrongly named: hence a
    warning. The text alone shows the first where it saves states of optimizers, and loads none.

References
    PyTorch tutorial "Saving & Loading a General Checkpoint for Inference and/or Resuming Training",
    https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html
    Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, arXiv:1412.6980
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from trueloop.analysis.queries.captured_states import resumed
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence, CodePosition
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.tracing.events import (
    CheckpointRead,
    CheckpointWritten,
    Event,
    OptimizerCreated,
    Ref,
    StateLoaded,
    StepTaken,
)


@dataclass(slots=True)
class _Resumed:
    """A file with the states of model and optimizer, from which something was loaded."""

    file: Ref
    path: str
    at_the_start: bool
    read_at: CodePosition | None
    model_at: CodePosition | None = None
    model_loaded: bool = False
    companion: str = ""
    """What else was loaded that only a resumed run needs: "scheduler", "scaler"."""
    companion_at: CodePosition | None = None


class Detector(failure.Detector):
    """Follows the newest file that holds an optimizer's state: which of its states are loaded before the next step?"""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (
        CheckpointRead,
        CheckpointWritten,
        StateLoaded,
        OptimizerCreated,
        StepTaken,
    )

    def __init__(self) -> None:
        self._newest: _Resumed | None = None
        self._stateful: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._stepped = False

    def observe(
        self, event: CheckpointRead | CheckpointWritten | StateLoaded | OptimizerCreated | StepTaken
    ) -> Evidence | None:
        """Return evidence at the first step, or the next checkpoint, of a run resumed in part."""
        if isinstance(event, StepTaken):
            return self._taken(event)
        if isinstance(event, CheckpointRead):
            if event.holds_model and event.holds_optimizer:
                self._newest = _Resumed(event.file, event.path, not self._stepped, event.place)
        elif isinstance(event, StateLoaded):
            self._loaded(event)
        elif isinstance(event, OptimizerCreated):
            if event.stateful:
                self._stateful.add(event.optimizer)
        else:
            return self._written(event)
        return None

    def _taken(self, event: StepTaken) -> Evidence | None:
        self._stepped = True
        if self._newest is None or not self._newest.companion or event.optimizer not in self._stateful:
            return None
        return self._evidence(self._newest, event.optimizer.kind)

    def _written(self, event: CheckpointWritten) -> Evidence | None:
        newest = self._newest
        if newest is None or not event.holds_optimizer or not event.path or event.path != newest.path:
            return None
        if not newest.at_the_start or not self._stepped or not self._stateful:
            return None
        return self._evidence(newest, next(iter(self._stateful)).kind, event.place)

    def _loaded(self, event: StateLoaded) -> None:
        newest = self._newest
        if newest is None:
            return
        if event.what == "optimizer":
            self._newest = None  # as it should be
        elif event.what == "model" and event.file is newest.file:
            newest.model_loaded, newest.model_at = True, event.place
        elif event.what in {"scheduler", "scaler"}:
            newest.companion, newest.companion_at = event.what, event.place

    def _evidence(self, resumed: _Resumed, kind: str, written_at: CodePosition | None = None) -> Evidence | None:
        if not resumed.model_loaded:
            return None
        self._newest = None
        related = [(resumed.read_at, "the file is read here")]
        if written_at is None:
            proof = f"though the {resumed.companion}'s was"
            related.append((resumed.companion_at, f"the {resumed.companion}'s state is loaded here"))
        else:
            proof = "though the run goes on to write the same file"
            related.append((written_at, "and written again here"))
        return Evidence(
            message=f"{resumed.file.name} holds the weights and the optimizer's state; the weights were loaded, the "
            f"optimizer's state was not, {proof}: {kind} starts from nothing.",
            location=resumed.model_at or resumed.read_at,
            related=tuple((place, words) for place, words in related if place is not None),
        )

    def inconclusive(self) -> str:
        """Say why a file in use leaves the question open."""
        if self._newest is not None and self._newest.model_loaded and self._stepped:
            return "weights were taken from a full checkpoint, and whether to resume or to fine-tune cannot be told"
        return ""


def find(source: Source) -> Iterator[Hit]:
    """Yield the loads of a checkpoint that go on with the schedule or scale, and leave the optimizer behind."""
    for model, other in resumed(source):
        message = f"The model and its {other.subject.kind} are resumed from a checkpoint, but its optimizer is not."
        yield Hit(message=message, node=model.node, related=((other.node, "resumed here"),))


RULE = Rule(words=("load_state_dict", "torch", "save"), find=find)


FAILURE = Failure(
    code="CKP002",
    title="Training is resumed without the optimizer's state",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import os
import tempfile
import torch
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(64, 6), torch.randn(64, 1)


def build():
    model = nn.Linear(6, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 10)


def train(model, optimizer, scheduler):
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        scheduler.step()


path = os.path.join(tempfile.mkdtemp(), "last.pt")
model, optimizer, scheduler = build()
train(model, optimizer, scheduler)
states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
torch.save(states, path)

model, optimizer, scheduler = build()  # after a restart
checkpoint = torch.load(path)
model.load_state_dict(checkpoint["model"])
scheduler.load_state_dict(checkpoint["scheduler"])
train(model, optimizer, scheduler)
""",
    good="""
import os
import tempfile
import torch
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(64, 6), torch.randn(64, 1)


def build():
    model = nn.Linear(6, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 10)


def train(model, optimizer, scheduler):
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        scheduler.step()


path = os.path.join(tempfile.mkdtemp(), "last.pt")
model, optimizer, scheduler = build()
train(model, optimizer, scheduler)
states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
torch.save(states, path)

model, optimizer, scheduler = build()  # after a restart
checkpoint = torch.load(path)
model.load_state_dict(checkpoint["model"])
optimizer.load_state_dict(checkpoint["optimizer"])
scheduler.load_state_dict(checkpoint["scheduler"])
train(model, optimizer, scheduler)
""",
    fix='Load the optimizer\'s state too: optimizer.load_state_dict(checkpoint["optimizer"]).',
    rule=RULE,
    detector=Detector,
)
