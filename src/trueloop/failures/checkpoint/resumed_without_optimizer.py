"""Training is resumed with the saved weights but a new optimizer.

What you see
    After every restart the loss jumps up and takes hundreds of updates to recover. A run that was interrupted often
    ends worse than one that was not.

Why it happens
    A new optimizer is a valid one, but its averages are empty: Adam's first steps have the size of its very first
    ones, whatever the gradients were before, and momentum starts at zero.

Fix
    Load the optimizer's state before the first step, and those of the scheduler and the scaler.

        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])

When this is fine
    - Fine-tuning uses the weights of a full checkpoint with a new optimizer.
    - Rounds of federated learning, and going back to the best weights within a run.
    - Plain SGD without momentum has no state to lose.

How it is detected
    At run time, in the two cases that prove a resume: the program loads the state of the scheduler or the scaler
    but not the optimizer's, which the same file holds; or it writes its next checkpoint, optimizer included, over
    the one it started from. An optimizer whose state is set without ``load_state_dict`` is reported too, hence a
    warning. Lint reports the first case in files that save optimizer states and load none.

References
    PyTorch tutorial "Saving & Loading a General Checkpoint for Inference and/or Resuming Training",
    https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html
    Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, arXiv:1412.6980
"""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass

from trueloop.analysis.queries.captured_states import loads_without_optimizer
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import CheckpointRead, CheckpointWritten, OptimizerCreated, Ref, StateLoaded, StepTaken


@dataclass(slots=True)
class _ResumedFile:
    """A checkpoint file with the states of model and optimizer, and what was loaded from it."""

    file: Ref
    path: str
    at_the_start: bool
    read_at: CodePosition | None
    model_at: CodePosition | None = None
    model_loaded: bool = False
    companion: str = ""
    """The other state loaded that only a resumed run needs: "scheduler" or "scaler"."""
    companion_at: CodePosition | None = None


class Detector(BaseDetector):
    """Tracks which states of the newest full checkpoint are loaded before the next step."""

    subscribes_to = (CheckpointRead, CheckpointWritten, StateLoaded, OptimizerCreated, StepTaken)

    def __init__(self) -> None:
        self._newest: _ResumedFile | None = None
        self._stateful: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._stepped = False

    def observe(
        self, event: CheckpointRead | CheckpointWritten | StateLoaded | OptimizerCreated | StepTaken
    ) -> Evidence | None:
        """Return evidence at the first step or the next checkpoint of a partly resumed run."""
        if isinstance(event, StepTaken):
            return self._observe_step(event)
        if isinstance(event, CheckpointRead):
            if event.holds_model and event.holds_optimizer:
                self._newest = _ResumedFile(event.file, event.path, not self._stepped, event.location)
        elif isinstance(event, StateLoaded):
            self._observe_load(event)
        elif isinstance(event, OptimizerCreated):
            if event.stateful:
                self._stateful.add(event.optimizer)
        else:
            return self._observe_write(event)
        return None

    def _observe_step(self, event: StepTaken) -> Evidence | None:
        self._stepped = True
        if self._newest is None or not self._newest.companion or event.optimizer not in self._stateful:
            return None
        return self._evidence(self._newest, event.optimizer.kind)

    def _observe_write(self, event: CheckpointWritten) -> Evidence | None:
        newest = self._newest
        if newest is None or not event.holds_optimizer or not event.path or event.path != newest.path:
            return None
        if not newest.at_the_start or not self._stepped or not self._stateful:
            return None
        return self._evidence(newest, next(iter(self._stateful)).kind, event.location)

    def _observe_load(self, event: StateLoaded) -> None:
        newest = self._newest
        if newest is None:
            return
        if event.what == "optimizer":
            self._newest = None  # resumed completely
        elif event.what == "model" and event.file is newest.file:
            newest.model_loaded, newest.model_at = True, event.location
        elif event.what in {"scheduler", "scaler"}:
            newest.companion, newest.companion_at = event.what, event.location

    def _evidence(
        self, resumed: _ResumedFile, kind: str, overwritten_at: CodePosition | None = None
    ) -> Evidence | None:
        if not resumed.model_loaded:
            return None
        self._newest = None
        related = [(resumed.read_at, "the file is read here")]
        if overwritten_at is None:
            proof = f"although the {resumed.companion}'s was"
            related.append((resumed.companion_at, f"the {resumed.companion}'s state is loaded here"))
        else:
            proof = "although the run writes the same file again"
            related.append((overwritten_at, "the file is written again here"))
        return Evidence(
            message=f"{resumed.file.name} holds the weights and the optimizer's state; the weights were loaded, the "
            f"optimizer's state was not, {proof}: {kind} starts with empty averages.",
            location=resumed.model_at or resumed.read_at,
            related=tuple((place, words) for place, words in related if place is not None),
        )

    def inconclusive(self) -> str:
        """Return a reason where a full checkpoint was used and the intent is unknown."""
        if self._newest is not None and self._newest.model_loaded and self._stepped:
            return "weights were loaded from a full checkpoint, either to resume or to fine-tune"
        return ""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield loads of a checkpoint that restore the scheduler or scaler, but not the optimizer."""
    for model, other in loads_without_optimizer(source):
        message = f"The model and its {other.subject.kind} are resumed from a checkpoint, but the optimizer is not."
        yield Hit(message=message, node=model.node, related=((other.node, "resumed here"),))


RULE = Rule(required_words=("load_state_dict", "torch", "save"), find=find)


BAD = """
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
"""

FAILURE = Failure(
    code="CKP002",
    title="Training is resumed without the optimizer's state",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            'scheduler.load_state_dict(checkpoint["scheduler"])': (
                'optimizer.load_state_dict(checkpoint["optimizer"])\nscheduler.load_state_dict(checkpoint["scheduler"])'
            )
        },
    ),
    fix='Load the state of the optimizer too: optimizer.load_state_dict(checkpoint["optimizer"]).',
    rule=RULE,
    detector=Detector,
)
