"""Functional dropout stays on in eval mode.

What you see
    Predictions of a model in eval mode differ from call to call, and the validation loss is too high.

Why it happens
    ``torch.nn.functional.dropout`` knows no module: its argument ``training`` is True where it is not given, and
    ``model.eval()`` changes the flags of modules only.

Fix
    Give it the mode of the module, ``F.dropout(x, p, training=self.training)``, or use ``nn.Dropout``.

When this is fine
    Monte Carlo dropout (several passes over each batch or over the loader, a batch repeated within a tensor, several
    draws within one forward), a call under a condition, a model of which a part is left in train mode, and a written
    ``training=True`` are not told. Certain where the source of the call shows ``dropout``, ``dropout1d``, ``2d`` or
    ``3d`` of torch without ``training``, with a rate above 0, in the forward of a module that has run it in train mode
    before, and a model in eval mode as a whole went through it with no more values per batch than then, once per batch
    of a loader no backward ever drew from, to the loader's end, or through several batches before an update and another
    start of the loader, or the run's end. Noise wanted in eval mode as well (Tacotron 2, pix2pix), or for samples that
    the loader itself repeats, should be given ``training=True``. Not judged: evaluation without a DataLoader, compiled
    models, functions of other names, and ``dropout_p`` of ``scaled_dot_product_attention``. The text alone shows the
    same in one file, unless it reads ``training`` elsewhere; a note without the evaluation.

References
    torch.nn.functional.dropout, https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.dropout.html
    Gal and Ghahramani, "Dropout as a Bayesian Approximation", 2016, https://arxiv.org/abs/1506.02142
    Shen et al., "Natural TTS Synthesis by Conditioning WaveNet on Mel Spectrogram Predictions", 2018,
    https://arxiv.org/abs/1712.05884
    Isola et al., "Image-to-Image Translation with Conditional Adversarial Networks", 2017,
    https://arxiv.org/abs/1611.07004
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence, CodePosition
from trueloop.core.formatting import format_count
from trueloop.failures import failure
from trueloop.failures.evaluation.dropout_always_on.functional_dropout import measured, told_the_mode, untold
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.evaluation_passes import Sweep, SweepsEnded
from trueloop.tracing.events import BatchDrawn, DropoutUntold, Event, Gap, ModelCalled, Ref

Call = tuple[Ref, CodePosition | None]
"""A line in the forward of a module."""


class _Forced(NamedTuple):
    """Dropout in a model in eval mode."""

    event: DropoutUntold
    several: bool
    """More of it than there was in train mode: several samples are wanted."""


class Detector(failure.Detector):
    """Looks for dropout in every sweep of a model in eval mode."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (ModelCalled, BatchDrawn, DropoutUntold, Gap, SweepsEnded)

    def __init__(self) -> None:
        self._now: list[DropoutUntold] = []
        """In the forward that is just running."""
        self._wanted = False
        """There is dropout of the kind, so that the sizes of batches matter."""
        self._batch = 0
        """Values in the largest tensor of the newest batch."""
        self._trained: dict[Call, Fraction] = {}
        """The most values in train mode, for each of the batch."""
        self._forced: dict[tuple[Ref, Ref], dict[Call, _Forced]] = {}  # by loader and model
        self._seen = 0

    def observe(self, event: Any) -> list[Evidence] | None:
        """Return evidence when the next update begins, or the run ends."""
        kind = type(event)
        if kind is ModelCalled:
            self._call(event)
        elif kind is BatchDrawn:
            if self._wanted:
                self._batch = _values(event.batch, sys.modules["torch"].Tensor)
        elif kind is DropoutUntold:
            self._wanted = True
            self._now.append(event)
        elif kind is Gap:
            self._now = []
        else:
            return self._ended([*event.sweeps, *event.left])
        return None

    def _ended(self, sweeps: Sequence[Sweep]) -> list[Evidence]:
        self._seen += len(sweeps)
        found = [evidence for sweep in sweeps if not sweep.again for evidence in self._judge(sweep)]
        swept = {sweep.loader for sweep in sweeps}
        self._forced = {key: forced for key, forced in self._forced.items() if key[0] not in swept}
        return found

    def _call(self, event: ModelCalled) -> None:
        if not self._now:  # the usual case
            return
        now, self._now = self._now, []
        calls: dict[Call, list[DropoutUntold]] = {}
        for each in now:
            calls.setdefault((each.module, each.place), []).append(each)
        if not self._batch:
            return
        for call, those in calls.items():
            share = Fraction(sum(each.values for each in those), self._batch)
            if all(each.training for each in those):
                self._trained[call] = max(share, self._trained.get(call, share))
            elif event.all_eval and event.loader is not None and call in self._trained:
                several = share > self._trained[call] or any(each.again for each in those)
                before = self._forced.setdefault((event.loader, event.model), {})
                before[call] = _Forced(those[0], several or (call in before and before[call].several))

    def _judge(self, sweep: Sweep) -> list[Evidence]:
        return [
            Evidence(
                message=f"{event.function} at rate {event.probability:g} was at work in {event.module.name}, which is "
                f"in eval mode, while {model.name} went through {format_count(sweep.batches, 'held-out batch')}.",
                location=event.place,
                update=sweep.update,
            )
            for model in sweep.models
            if all(call.all_eval for call in sweep.calls if call.model is model)
            for event, several in self._forced.get((sweep.loader, model), {}).values()
            if not several
        ]

    def inconclusive(self) -> str:
        """Return a reason where there was no sweep."""
        return "" if self._seen else "no loader was swept without training"


def _values(batch: Any, tensor: type[Any], depth: int = 3) -> int:
    """Return how many numbers the largest tensor in a batch holds; held-out batches may be without targets."""
    if isinstance(batch, tensor):
        return batch.numel()
    if not depth:
        return 0
    inside: Any = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return max([_values(each, tensor, depth - 1) for each in inside], default=0)


def find(source: Source) -> Iterator[Hit]:
    """Yield functional dropout that is not told the mode, in a model that is measured in eval mode."""
    found = [(each, method, measured(source, each)) for each, method in untold(source)]
    for each, method, call in sorted(found, key=lambda one: one[2] is None):
        yield Hit(
            message="Dropout is not told the mode of the module here: it stays on in eval mode.",
            node=each.node,
            related=((call.node, "measured here in eval mode"),) if call else (),
            fix=told_the_mode(source, each.node, method, safe=call is not None),
            severity=None if call else Severity.NOTE,
        )


RULE = Rule(words=("functional", "dropout(|dropout as|dropout1d|dropout2d|dropout3d", "forward"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.require(bool(loop.settings["dropout"] and loop.settings["hidden"]), "There is no dropout.", dropout=0.2)
    loop.replace(Piece.MODEL, "self.dropout(x)", f"nn.functional.dropout(x, {loop.settings['dropout']!r})")


FAILURE = Failure(
    code="EVL004",
    title="Dropout is always on",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        x = torch.relu(self.inner(x))
        return self.head(nn.functional.dropout(x, 0.3))


x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
train = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(x[128:], y[128:]), batch_size=16)
model = Net()
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
    good="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        x = torch.relu(self.inner(x))
        return self.head(nn.functional.dropout(x, 0.3, training=self.training))


x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
train = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(x[128:], y[128:]), batch_size=16)
model = Net()
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
    fix="Pass training=self.training, or use nn.Dropout.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
