"""Training goes on in eval mode after an evaluation.

What you see
    From the second epoch on dropout does nothing and batch normalisation uses frozen statistics. The model overfits,
    or its statistics no longer fit its weights.

Why it happens
    A model in eval mode has gradients and can be stepped like any other: that is how normalisation layers are frozen.

Fix
    Call ``model.train()`` at the beginning of every epoch, after the evaluation.

When this is fine
    Fine-tuning in eval mode from the start, batch normalisation or a backbone frozen by its own ``eval()``, and a call
    of ``eval()`` after the sweep, at the beginning of a stage, are on purpose. Certain where a model was stepped in
    train mode with dropout or batch normalisation at work, was then set to eval mode, went through data, or a part of
    it did, without being trained, and was stepped three times with every module still in eval mode, without anybody
    having set the mode again, other than the same line before the next measurement. Parts of a model that is never
    called itself are set with it, and left alone once anything is set to train mode. The text shows a loop in which a
    model is stepped, then set to eval mode, and never set back; a warning where it shows no dropout or normalisation.

References
    torch.nn.Module.train, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from trueloop.analysis.abstract_value import Kind
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.loops import comes_back
from trueloop.analysis.queries.modes import frozen, lively, renewed, set_back, sets, touches, trains, unread
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence, CodePosition
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import NONE, BackwardStarted, Event, Gap, ModelCalled, ModeSet, Ref, Refs, StepTaken
from trueloop.tracing.object_facts import Facts

STEPS = 3


class _Model:
    """What is known of one model."""

    __slots__ = ("fresh", "lively", "measured", "name", "parameters", "part", "sampled", "set_at", "steps", "unused")

    def __init__(self, name: str) -> None:
        self.name = name
        self.lively = False
        """It was stepped with dropout or batch normalisation at work."""
        self.fresh = self.sampled = False
        """No step has followed its being set to eval mode; a part of it was then called without being trained."""
        self.set_at: CodePosition | None = None
        """Where it was set to eval mode; None while it is in train mode."""
        self.part = False  # it was set with a whole that is never called itself
        self.measured = False
        """Since then, it was called without being trained."""
        self.unused = False
        """No backward has followed it."""
        self.steps, self.parameters = 0, NONE


class Detector(failure.Detector):
    """Follows the mode of each model from step to step."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (ModeSet, ModelCalled, BackwardStarted, StepTaken, Gap)

    def __init__(self) -> None:
        self._models = Facts[Ref, _Model]()
        self._waiting = dict[_Model, tuple[Refs, bool, bool]]()
        """Of calls not yet followed by a step: their parameters, all in eval mode, something at work."""
        self._unused = list[_Model]()

    def observe(self, event: ModeSet | ModelCalled | BackwardStarted | StepTaken | Gap) -> Evidence | None:
        """Return evidence at a step."""
        if isinstance(event, StepTaken):
            return self._step(event)
        if isinstance(event, ModelCalled):
            self._called(event)
        elif isinstance(event, ModeSet):
            self._set(event)
        else:
            for model in self._unused:
                model.unused = False
            self._unused.clear()
            if isinstance(event, Gap):
                self._waiting.clear()
        return None

    def _set(self, event: ModeSet) -> None:
        called = self._models.get(event.module) is not None
        for ref, model in self._models.items():
            if ref is event.module or (not called and model.parameters <= event.parameters):
                model.part = not called
                anew = event.training or event.place is None or model.set_at != event.place
                model.set_at = None if event.training else event.place
                model.steps = 0 if anew else model.steps  # by the same line: the next evaluation, one update later
                model.measured = model.unused = False
                self._waiting.pop(model, None)
                model.fresh, model.sampled = not event.training, False
            elif event.training:
                model.steps = 0  # a part of it, perhaps
                model.set_at = None if model.part else model.set_at

    def _called(self, event: ModelCalled) -> None:
        model = self._models.get(event.model) or self._models.put(event.model, _Model(event.model.name))
        model.parameters = event.parameters
        for whole in () if event.has_graph else self._models.facts():
            asked = (whole.fresh or whole.sampled) and whole is not model
            if asked and event.parameters <= whole.parameters:
                whole.sampled = whole.fresh  # between two steps, it takes part in the update
        if model.set_at is not None and (model.unused or not event.has_graph):
            model.measured = True  # the call before was not trained on, or this one cannot be
        model.unused = event.has_graph and not event.recomputed
        if model.unused:
            works = event.dropout_active or event.batchnorm_active
            self._waiting[model] = event.parameters, event.all_eval, works
            self._unused.append(model)
        else:
            self._waiting.pop(model, None)

    def _step(self, event: StepTaken) -> Evidence | None:
        found = None
        for model, (parameters, all_eval, works) in list(self._waiting.items()):
            if parameters.isdisjoint(event.with_gradient):
                continue
            del self._waiting[model]
            if not all_eval:
                model.lively, model.steps = model.lively or works, 0
            elif model.lively and model.set_at is not None and (model.measured or model.sampled):
                model.steps, model.fresh = model.steps + 1, False
                found = self._evidence(event, model) if model.steps == STEPS else found
        return found

    def _evidence(self, event: StepTaken, model: _Model) -> Evidence:
        return Evidence(
            message=f"{event.optimizer.name} has stepped {model.name} {model.steps} times in eval mode, in which it "
            "was left after an evaluation; before, it was trained with dropout or batch normalisation at work.",
            location=event.place,
            related=((model.set_at, "set to eval mode here"),) if model.set_at else (),
        )


def find(source: Source) -> Iterator[Hit]:
    """Yield the steps of loops that set their model to eval mode later on and never back."""
    modes = source.acts(OpKind.MODE)
    for mode in modes:
        model = mode.subject
        if mode.value is not False or model.kind is not Kind.MODEL or not mode.loops:
            continue
        whole = source.within(mode.loops[0], root=mode.root)
        back = any(each.act is OpKind.MODE and each.value is not False and touches(each, model) for each in whole)
        if back or source.handed_out(model, whole) or frozen(source, model):
            continue
        found = _stepped_before(source, mode)
        works = lively(source, model) if found else False
        starts_in_eval = works is None and model.name.startswith("transformers.")
        if found is None or works is False or starts_in_eval or unread(source, "train"):
            continue
        loop, step = found
        yield Hit(
            message="The model is set to eval mode after these steps and never back, so that all further turns of the "
            "loop train it in eval mode.",
            node=step.node,
            related=((mode.node, "set to eval mode here"),),
            fix=set_back(source, mode, loop),
            severity=None if works else Severity.WARNING,
        )


def _stepped_before(source: Source, mode: Op) -> tuple[Loop, Op] | None:
    """Return the innermost loop that steps a model in train mode before it is set to eval mode, and the step."""
    model = mode.subject
    for loop in reversed([each for each in mode.loops if not each.once()]):
        inside = source.within(loop, root=mode.root)
        step = next((each for each in inside if trains(source, each, model, inside)), None)
        if step is None or step.index > mode.index:
            continue
        start = inside[0].index
        earlier = [
            each for each in source.acts(OpKind.MODE)
            if each.root == mode.root and each.index < step.index and sets(each, model)
        ]  # fmt: skip
        in_train_mode = not earlier or (earlier[-1].value is True and earlier[-1].index < start)
        lasting = comes_back(mode, step, loop)
        return (loop, step) if in_train_mode and lasting and not renewed(loop, model, inside) else None
    return None


RULE = Rule(words=("eval(", "step(", "backward("), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    both = (loop.settings["batchnorm"] or loop.settings["dropout"]) and loop.settings["hidden"]
    loop.require(both, "The model has neither dropout nor batch normalisation: the mode changes nothing.", dropout=0.2)
    loop.pieces[Piece.RECORDS] += "\nmodel.train()"
    loop.leave_out(Piece.TRAIN_MODE)


SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
train = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    {begin}for inputs, targets in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(nn.functional.mse_loss(model(x[128:]), y[128:]).item())
"""

FAILURE = Failure(
    code="EVL002",
    title="Eval mode is left on in training",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad=SCRIPT.replace("{begin}", ""),
    good=SCRIPT.replace("{begin}", "model.train()\n    "),
    fix="Call model.train() at the beginning of every epoch.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
