"""Training is resumed with the saved weights but a new optimizer.

What you see
    After every restart the loss jumps up and takes hundreds of updates to recover. Often the final loss is worse.

Why it happens
    A new optimizer has forgotten the previous gradients: momentum and Adam's running averages start at zero. Adam's
    first steps are then as large as at the beginning of training, although small steps are needed by now.

Fix
    Before the first step, load the states of the optimizer, the scheduler and the gradient scaler.

        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])

When this is fine
    - You fine-tune: the weights come from a checkpoint, and the optimizer is new on purpose.
    - You start a round of federated learning, or return to the best weights within a run.
    - You use SGD without momentum, which has no state.

How it is detected
    In a run, the sanitizer reports two cases. (1) The program loads the state of the scheduler or the scaler, but not
    the optimizer's state, which is in the same file. (2) The program loads a checkpoint into a model that it has not
    trained yet, and goes on: a loop starts at the epoch or step that was read from the file (unless the function that
    loads is about fine-tuning or a reset), or the file is overwritten with a new checkpoint that includes an optimizer.
    The overwritten file is not reported if the program has trained another model before, unless it also reads an epoch
    or a step from the file. An optimizer whose state is restored without ``load_state_dict`` is reported too, so this
    is a warning. The linter reports case 1, and a load of weights next to which the number is set at which
    ``range(start, ...)`` goes on, in a program that never loads the state of an optimizer.

References
    PyTorch tutorial "Saving & Loading a General Checkpoint for Inference and/or Resuming Training",
    https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html
    Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, arXiv:1412.6980
"""

import ast
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

from trueloop.analysis.abstract_value import ValueKind
from trueloop.analysis.operations import OpKind
from trueloop.analysis.program_files import parse_files
from trueloop.analysis.queries.captured_states import loads_before_optimizers, loads_without_optimizer
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.checkpoint.resumed_without_optimizer.counts_on import counts_on
from trueloop.failures.checkpoint.resumed_without_optimizer.resumed_counts import COUNTERS, continues_count
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import (
    CheckpointRead,
    CheckpointWritten,
    ModelCalled,
    OptimizerCreated,
    Ref,
    StateLoaded,
    StepTaken,
)


@dataclass(slots=True)
class _ResumedFile:
    """A checkpoint file with the states of a model and an optimizer, and which states were loaded from it."""

    file: Ref
    path: str
    read_at: CodePosition | None
    model_at: CodePosition | None = None
    model_loaded: bool = False
    resumes_if_overwritten: bool = False
    """Whether a new checkpoint in the same file shows that the run was resumed, see "How it is detected"."""
    resumes_count: bool = False
    """Whether a loop starts at the epoch or step of the file, and the model was not trained before it was loaded."""
    model: Ref | None = None
    companion: str = ""
    """Kind of another loaded state, which only a resumed run needs: "scheduler" or "scaler"; "" = none so far."""
    companion_at: CodePosition | None = None


class Detector(BaseDetector):
    """Tracks which states of the newest full checkpoint are loaded before the next step."""

    def __init__(self) -> None:
        self._newest: _ResumedFile | None = None
        self._stateful: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._trained: weakref.WeakSet[Ref] = weakref.WeakSet()
        """Models that were called with a graph."""
        self._evaluated: weakref.WeakSet[Ref] = weakref.WeakSet()
        """Models that were called without a graph."""
        self._stepped = self._stepped_since = False
        """Whether an optimizer has stepped, and one with a state since the newest checkpoint was read."""

    def on_model_called(self, event: ModelCalled) -> None:
        """Record a model that may be trained."""
        (self._trained if event.has_graph else self._evaluated).add(event.model)

    def on_checkpoint_read(self, event: CheckpointRead) -> None:
        """Record the file."""
        if event.holds_model and event.holds_optimizer:
            self._stepped_since = False
            self._newest = _ResumedFile(event.file, event.path, event.location)

    def on_optimizer_created(self, event: OptimizerCreated) -> None:
        """Record the new optimizer."""
        if event.stateful:
            self._stateful.add(event.optimizer)

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence at the first step or the next checkpoint of a partly resumed run."""
        self._stepped = True
        self._stepped_since |= event.optimizer in self._stateful
        newest = self._newest
        if newest is None or event.optimizer not in self._stateful or not (newest.companion or newest.resumes_count):
            return None
        return self._evidence(newest, event.optimizer.kind)

    def on_checkpoint_written(self, event: CheckpointWritten) -> Evidence | None:
        """Return evidence at the first step or the next checkpoint of a partly resumed run."""
        newest = self._newest
        if newest is None or not event.holds_optimizer or not event.path or event.path != newest.path:
            return None
        optimizer = next(iter(self._stateful), None)
        if not newest.resumes_if_overwritten or not self._stepped_since or optimizer is None:
            return None
        return self._evidence(newest, optimizer.kind, event.location)

    def on_state_loaded(self, event: StateLoaded) -> None:
        """Record the loaded state."""
        newest = self._newest
        if newest is None:
            return
        if event.what == "optimizer":
            self._newest = None  # resumed completely
        elif event.what == "model" and event.file is newest.file:
            newest.model_loaded, newest.model_at, newest.model = True, event.location, event.target
            is_counted = event.location is not None and not COUNTERS.isdisjoint(_constants(event.location))
            is_new = event.target not in self._trained
            newest.resumes_if_overwritten = is_new and (not self._stepped or is_counted)
            newest.resumes_count = (
                is_new and is_counted and event.location is not None and _continues_count(event.location)
            )
        elif event.what in {"scheduler", "scaler"}:
            newest.companion, newest.companion_at = event.what, event.location

    def _evidence(
        self, resumed: _ResumedFile, optimizer_class: str, overwritten_at: CodePosition | None = None
    ) -> Evidence | None:
        is_teacher = resumed.model in self._evaluated and resumed.model not in self._trained
        if not resumed.model_loaded or is_teacher:
            return None
        self._newest = None
        related = [(resumed.read_at, "the file is read here")]
        if resumed.companion and overwritten_at is None:
            contrast = f"although the state of the {resumed.companion} was"
            related.append((resumed.companion_at, f"the {resumed.companion}'s state is loaded here"))
        elif overwritten_at is None:
            contrast = "although training goes on at the saved epoch or step"
        else:
            contrast = "although the run continues to save to this file"
            related.append((overwritten_at, "the file is written again here"))
        return Evidence(
            message=f"The weights in {resumed.file.name} were loaded but the optimizer's state in the same file was "
            f"not, {contrast}: {optimizer_class} starts again without its running averages.",
            location=resumed.model_at or resumed.read_at,
            related=tuple((location, label) for location, label in related if location is not None),
        )

    def inconclusive(self) -> str:
        """Return a reason if weights were loaded from a full checkpoint, maybe for fine-tuning."""
        if self._newest is not None and self._newest.model_loaded and self._stepped:
            return "weights were loaded from a full checkpoint; it is unknown whether to resume or to fine-tune"
        return ""


def _constants(location: CodePosition) -> frozenset[str]:
    """Return the strings in the function that contains a line."""
    return frozenset(each for each in location.code.co_consts if isinstance(each, str))


def _continues_count(location: CodePosition) -> bool:
    """Return True if a loop starts at a number that is read where a state is loaded."""
    at = location.source_location
    tree = (parse_files([at.path]) or {}).get(at.path)
    return tree is not None and continues_count(tree, at.line)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield loads of a checkpoint that restore the scheduler or scaler, but not the optimizer."""
    for model, other in loads_without_optimizer(source):
        message = f"The states of the model and the {other.subject.kind} are loaded, but the optimizer's state is not."
        yield Hit(message=message, node=model.node, related=((other.node, "loaded here"),))
    for call, start in counts_on(source):
        yield Hit(
            message=f"The weights are loaded and the run goes on at `{ast.unparse(start)}`, but the state of the "
            "optimizer is never loaded: it begins again without its running averages.",
            node=call,
            related=((start, "training goes on here"),),
        )
    for load, built in loads_before_optimizers(source):
        owner = source.text.segment(load.node.func.value)
        weights = [
            each
            for each in source.ops(OpKind.LOAD_STATE_DICT)
            if each.subject.kind is ValueKind.MODEL and each.calls == load.calls and each.index < load.index
        ]
        yield Hit(
            message=f"`{owner}` is still None when this runs, so its state is not loaded: the optimizer comes later.",
            node=(weights[-1] if weights else load).node,
            related=((load.node, "skipped"), (load.calls[-1], "called here"), (built.node, "built here")),
        )


RULE = Rule(required_words=("load_state_dict", "torch", "save|range("), find=find)


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
GOOD = changed(
    BAD,
    {
        'scheduler.load_state_dict(checkpoint["scheduler"])': (
            'optimizer.load_state_dict(checkpoint["optimizer"])\nscheduler.load_state_dict(checkpoint["scheduler"])'
        )
    },
)

FAILURE = Failure(
    code="CKP002",
    title="Training is resumed without the optimizer's state",
    severity=Severity.WARNING,
    bad=BAD,
    good=GOOD,
    fix='Load the state of the optimizer too: optimizer.load_state_dict(checkpoint["optimizer"]).',
    rule=RULE,
    detector=Detector,
)
