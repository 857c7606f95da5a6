"""Functional dropout stays on in eval mode.

Symptom
    Predictions of a model in eval mode differ from call to call, and the validation loss is too high.

Why nothing raises
    ``torch.nn.functional.dropout`` knows no module: its argument ``training`` is True where it is not given, and
    ``model.eval()`` changes the flags of modules only.

Look-alikes
    Monte Carlo dropout draws several predictions with dropout at work. Several passes over each batch or over the
    loader, a model of which a part is left in train mode, and ``training=True`` in so many words are not told: who
    means it says so. Certain where the source of the call shows ``dropout``, ``dropout1d``, ``2d`` or ``3d`` of torch
    without ``training``, with a rate above 0, in the forward of a module that has run it in train mode before, and a
    model in eval mode as a whole went through it once per batch of a loader no backward ever drew from, to the
    loader's end. Noise that a model wants in eval mode as well (the prenet of Tacotron 2) should be given
    ``training=True``. Not judged: evaluation without a DataLoader, a function that was bound by ``partial`` or in
    another local name, compiled models, and ``dropout_p`` of ``scaled_dot_product_attention``.

Fix
    Give it the mode of the module, ``F.dropout(x, p, training=self.training)``, or use ``nn.Dropout``.

References
    torch.nn.functional.dropout, https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.dropout.html
    Gal and Ghahramani, "Dropout as a Bayesian Approximation", 2016, https://arxiv.org/abs/1506.02142
    Shen et al., "Natural TTS Synthesis by Conditioning WaveNet on Mel Spectrogram Predictions", 2018,
    https://arxiv.org/abs/1712.05884
"""

from __future__ import annotations

from typing import Any, ClassVar

from trueloop.ground.events import DropoutForced, Event, ModelCalled, Ref
from trueloop.ground.failure import Failure, Severity
from trueloop.ground.findings import Evidence, Place
from trueloop.ground.sweeps import MOMENTS, Sweep, Sweeps


class Detector:
    """Looks for dropout in every sweep of a model in eval mode."""

    moments: ClassVar[tuple[type[Event], ...]] = (*MOMENTS, DropoutForced)

    def __init__(self) -> None:
        self._sweeps = Sweeps()
        self._now: list[DropoutForced] = []
        """In the forward that is just running."""
        self._forced: dict[tuple[Ref, Ref], dict[Place | None, DropoutForced]] = {}
        """Loader and model -> by place, since the latest update."""
        self._seen = 0

    def observe(self, event: Any) -> list[Evidence] | None:
        """Return evidence when the next update begins, or the run ends."""
        if isinstance(event, DropoutForced):
            self._now.append(event)
            return None
        if isinstance(event, ModelCalled):
            forced, self._now = self._now, []
            if forced and event.all_eval and event.loader is not None:
                self._forced.setdefault((event.loader, event.model), {}).update((each.place, each) for each in forced)
        sweeps = self._sweeps.observe(event)
        if not sweeps:
            return None
        self._seen += len(sweeps)
        found = [evidence for sweep in sweeps if not sweep.again for evidence in self._judge(sweep)]
        self._forced.clear()
        return found

    def _judge(self, sweep: Sweep) -> list[Evidence]:
        return [
            Evidence(
                message=f"{each.function} at rate {each.probability:g} was at work in {each.module.name}, which is in "
                f"eval mode, while {model.name} went through {sweep.batches} held-out batches.",
                place=each.place,
                update=sweep.update,
            )
            for model in sweep.models
            if all(call.all_eval for call in sweep.calls if call.model is model)
            for each in self._forced.get((sweep.loader, model), {}).values()
        ]

    def abstains(self) -> str:
        """Return a reason where there was no sweep."""
        return "" if self._seen else "no loader was swept without training"


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
    detector=Detector,
)
