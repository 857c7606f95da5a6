"""The last held-out samples are dropped, since they do not fill a batch.

Symptom
    The measured figure changes with the batch size, which no figure may. The samples that are left out are always the
    same ones, the last of the set; of a small set sorted by time or class they can be a fifth of it, and of one kind.

Why nothing raises
    ``drop_last=True`` is right for training, where every sample comes in another epoch, and is copied to the held-out
    loader with the rest of its arguments. Nobody counts what was measured.

Look-alikes
    A held-out set that is a whole number of batches; training loaders; a loader of unlabelled samples that is trained
    on; a sweep in train mode, which measures nothing; streams, whose length nobody knows. A fixed
    shape on purpose, for a compiled model, drops samples all the same: pad the last batch and mask it. In the text,
    where the number of samples does not show, a held-out loader with ``drop_last=True`` is a note.

Fix
    Give held-out loaders ``drop_last=False``, which is what they do when nothing is said.

References
    thuml/Autoformer#104, "Why use drop_last=True in test (and val) dataloader?",
    https://github.com/thuml/Autoformer/issues/104
    thuml/Nonstationary_Transformers#26, an error of 1.89 over 128 samples that is 2.94 over all 158,
    https://github.com/thuml/Nonstationary_Transformers/issues/26
    yuqinie98/PatchTST#7, "the result is worse than the published one", https://github.com/yuqinie98/PatchTST/issues/7
    torch.utils.data.DataLoader, drop_last, https://docs.pytorch.org/docs/stable/data.html
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from trueloop.ground.events import Event, LoaderStarted, Ref
from trueloop.ground.failure import Failure, Rule, Severity
from trueloop.ground.findings import Evidence, Place
from trueloop.ground.questions.modes import in_eval_mode
from trueloop.ground.questions.sweeps import loader_of, sweeps, trained_on
from trueloop.ground.source.source import Hit, Source
from trueloop.ground.source.text import Fix
from trueloop.ground.sweeps import Sweep, SweepsEnded
from trueloop.ground.teaching import Piece, TeachingLoop


class _Dropped(NamedTuple):
    """What a loader leaves out of each pass."""

    samples: int
    left: int
    batch_size: int
    shuffles: bool
    made_at: Place | None
    place: Place | None


class Detector:
    """Counts what each held-out loader leaves out."""

    moments: ClassVar[tuple[type[Event], ...]] = (LoaderStarted, SweepsEnded)

    def __init__(self) -> None:
        self._dropping: weakref.WeakKeyDictionary[Ref, _Dropped] = weakref.WeakKeyDictionary()
        self._seen = 0

    def observe(self, event: LoaderStarted | SweepsEnded) -> list[Evidence]:
        """Return evidence when the next update begins, or the run ends."""
        if isinstance(event, LoaderStarted):
            dropped = _dropped(event, event.batch_size) if event.drop_last and event.batch_size else None
            if dropped is not None:
                self._dropping[event.loader] = dropped
            return []
        self._seen += len(event.sweeps)
        return [evidence for sweep in event.sweeps if (evidence := self._judge(sweep)) is not None]

    def abstains(self) -> str:
        """Return a reason where there was no sweep."""
        return "" if self._seen else "no loader was swept without training"

    def _judge(self, sweep: Sweep) -> Evidence | None:
        dropped = self._dropping.get(sweep.loader)
        if dropped is None or not all(call.all_eval for call in sweep.calls):
            return None
        which = f"{dropped.left} others in each pass" if dropped.shuffles else f"the last {dropped.left}, each time"
        return Evidence(
            message=f"{sweep.calls[0].model.name} was measured on {dropped.samples - dropped.left} of "
            f"{dropped.samples} held-out samples: drop_last leaves out {which}.",
            place=dropped.made_at or dropped.place,
            related=((sweep.calls[0].place, "measured here"),) if sweep.calls[0].place else (),
            update=sweep.update,
        )


def _dropped(event: LoaderStarted, batch_size: int) -> _Dropped | None:
    """Return what a loader leaves out; None where that is nothing, or nobody knows."""
    sampler: Any = event.live.sampler
    if event.shuffles is None or not hasattr(type(sampler), "__len__"):
        return None
    samples = len(sampler)
    left = samples % batch_size
    if not left or left == samples:
        return None
    return _Dropped(samples, left, batch_size, event.shuffles, event.made_at, event.place)


def find(source: Source) -> Iterator[Hit]:
    """Yield, as notes, the held-out loaders that drop their last batch if it is a short one."""
    told = set[int]()
    for call in sweeps(source, grad=None):
        loader = loader_of(call.loops[-1])
        if loader is None or loader.either or not (in_eval_mode(source, call) or call.grad is False):
            continue
        option = loader.options.get("drop_last")
        if option is None or option.constant() is not True or id(loader) in told or trained_on(source, call) is None:
            continue
        told.add(id(loader))
        written = [each.value for each in loader.node.keywords if each.arg == "drop_last"]
        yield Hit(
            message="This held-out loader drops the samples that do not fill its last batch.",
            node=loader.node,
            related=((call.node, "measured here"),),
            # Not safe: the figure changes, and with it what a scheduler or early stopping makes of it.
            fix=Fix((source.text.replace(written[0], "False"),), safe=False, words="Keep every sample")
            if written
            else None,
            severity=Severity.NOTE,
        )


RULE = Rule(words=("DataLoader", "drop_last"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    samples, batch = loop.settings["samples"], loop.settings["batch"]
    held_out = -(-samples // 5)
    sizes = (*range(min(batch, held_out - 1), 1, -1), *range(batch + 1, held_out))
    best = next((size for size in sizes if held_out % size and (samples - held_out) % size != 1), 0)
    lacks = f"{held_out} held-out points are not whole batches of {batch} and a part of one."
    loop.require(best > 0, lacks, samples=samples + 1)
    loop.require(best == batch, lacks, batch=best)
    loop.replace(
        Piece.LOADERS, "(held_out_set, batch_size=batch_size)", "(held_out_set, batch_size=batch_size, drop_last=True)"
    )


FAILURE = Failure(
    code="EVL008",
    title="Held-out samples are never judged",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
train = DataLoader(TensorDataset(x[:130], y[:130]), batch_size=16, shuffle=True, drop_last=True)
held_out = DataLoader(TensorDataset(x[130:], y[130:]), batch_size=16, drop_last=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    model.train()
    for inputs, targets in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        errors = torch.cat([model(a) - b for a, b in held_out])
    print(errors.square().mean().item())
""",
    good="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
train = DataLoader(TensorDataset(x[:130], y[:130]), batch_size=16, shuffle=True, drop_last=True)
held_out = DataLoader(TensorDataset(x[130:], y[130:]), batch_size=16)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    model.train()
    for inputs, targets in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        errors = torch.cat([model(a) - b for a, b in held_out])
    print(errors.square().mean().item())
""",
    fix="Give held-out loaders drop_last=False.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
