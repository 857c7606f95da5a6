"""Held-out data are measured with the model in train mode.

What you see
    The validation loss is noisy and too high, and differs between two runs over the same weights. With batch
    normalisation it depends on the batch size, and the running statistics learn from the validation set.

Why it happens
    Train mode is the default. Dropout and batch normalisation do in it what they are told to do.

Fix
    Call ``model.eval()`` before the sweep, and ``model.train()`` after it.

When this is fine
    MC dropout (the model in eval mode, its dropout layers switched on; or several passes over each batch or over the
    loader), the re-estimation of batch normalisation's statistics, teachers and averaged models that no optimizer
    steps, and passes over the training loader are not told. Certain where a model that is being trained, in train mode
    as a whole, with dropout in it, was called once per batch of a loader that no backward ever drew from, to the
    loader's end, with no backward and no step in between; and where, up to the next update, the loader was not gone
    through again, nor the model through any loader in eval mode. With batch normalisation alone it has to happen
    twice. The text alone shows a model with dropout or batch normalisation that is trained and then goes through
    another loader without gradients, for its results, in a program that never sets its mode to eval; or that does so
    only outside of the turns in which the model is put into train mode, trained, and then measured.

References
    torch.nn.Module.eval, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
    PyTorch documentation "Autograd mechanics", section on evaluation mode,
    https://docs.pytorch.org/docs/stable/notes/autograd.html
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.evaluation_loops import sweeps, trained_on
from trueloop.analysis.queries.modes import evaluated, left_from_training, lively, touches, unread, unused
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence
from trueloop.core.formatting import format_count
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.evaluation_passes import Sweep, SweepsEnded
from trueloop.tracing.events import Event, Ref


class Detector(failure.Detector):
    """Looks at the modes of the model in every sweep."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (SweepsEnded,)

    def __init__(self) -> None:
        self._normalised: Counter[Ref] = Counter()
        self._seen = 0

    def observe(self, event: SweepsEnded) -> list[Evidence]:
        """Return evidence when the next update begins, or the run ends."""
        sweeps = event.sweeps
        self._seen += len(sweeps)
        measured = {call.model for sweep in sweeps for call in sweep.calls if not call.training}
        found = [
            self._judge(sweep) for sweep in sweeps if not sweep.again and sweep.calls[0].model not in measured
        ]  # fmt: skip
        return [evidence for evidence in found if evidence is not None]

    def _judge(self, sweep: Sweep) -> Evidence | None:
        calls = [call for call in sweep.calls if call.model is sweep.calls[0].model]
        first = calls[0]
        dropout = all(call.dropout_active for call in calls)
        normalised = all(call.batchnorm_active for call in calls)
        self._normalised[first.model] += normalised
        if not dropout and self._normalised[first.model] < 2:
            return None
        what = " and ".join(
            word for word, on in (("dropout at work", dropout), ("batch normalisation learning", normalised)) if on
        )
        return Evidence(
            message=f"{first.model.name} went through {format_count(sweep.batches, 'held-out batch')} in train mode, "
            f"with {what}.",
            location=first.place,
            update=sweep.update,
        )

    def inconclusive(self) -> str:
        """Return a reason where there was no sweep."""
        return "" if self._seen else "no loader was swept without training"


def find(source: Source) -> Iterator[Hit]:
    """Yield the calls that measure a model in train mode on a loader that it is not trained on."""
    for call in sweeps(source, grad=False):
        trained = trained_on(source, call)
        if trained is None or _set_to_eval(source, call) or not lively(source, call.subject):
            continue
        yield Hit(
            message="The model is measured in train mode: dropout and batch normalisation do what they do in training.",
            node=call.node,
            related=((trained.node, "trained here"),),
            fix=evaluated(source, call),
        )


def _set_to_eval(source: Source, call: Op) -> bool:
    """True where the mode of the model, or of a part of it, may be eval, or other code may set it."""
    elsewhere = unread(source, "eval")
    own = (0, call.root)
    modes = [each for each in source.acts(OpKind.MODE) if each.value is not True]
    elsewhere += [each.node for each in modes if each.root not in own]
    if not all(unused(source, node) for node in elsewhere):
        return True
    if source.handed_out(call.subject, [each for each in source.operations if each.root in own]):
        return True
    set_here = any(touches(each, call.subject) for each in modes if each.root in own)
    return set_here and not left_from_training(source, call)


RULE = Rule(words=("backward", "step(", "DataLoader", "no_grad|inference_mode|set_grad_enabled"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.replace(Piece.EVALUATION, "    model.eval()\n", "")
    both = (loop.settings["batchnorm"] or loop.settings["dropout"]) and loop.settings["hidden"]
    loop.require(both, "The model has neither dropout nor batch normalisation: the mode changes nothing.", dropout=0.2)


FAILURE = Failure(
    code="EVL001",
    title="Train mode is left on in evaluation",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
train = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(x[128:], y[128:]), batch_size=16)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for inputs, targets in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    with torch.no_grad():
        losses = [nn.functional.mse_loss(model(a), b).item() for a, b in held_out]
    print(sum(losses) / len(losses))
""",
    good="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
train = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(x[128:], y[128:]), batch_size=16)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    model.train()
    for inputs, targets in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        losses = [nn.functional.mse_loss(model(a), b).item() for a, b in held_out]
    print(sum(losses) / len(losses))
""",
    fix="Call model.eval() before the sweep and model.train() after it.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
