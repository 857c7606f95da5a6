"""Stored samples are changed in place each time that they are read.

What you see
    The loss gets worse from epoch to epoch, or training succeeds for one epoch and fails afterwards. The samples of the
    dataset become smaller and smaller, or drift away, if you print them after each epoch.

Why it happens
    ``self.images[index]`` and ``data[start:end]`` are views: they share memory with the array. ``image -= mean``,
    ``image.sub_(mean)`` and ``transforms.Normalize(inplace=True)`` write into it, so in the next epoch the same sample
    is normalised again.

Fix
    Compute a new array:

        def __getitem__(self, index):
            return (self.images[index] - self.mean) / self.std, self.labels[index]

    Or copy the sample first, with ``self.images[index].copy()`` or ``.clone()``, or normalise all samples once.

When this is fine
    - The samples are written into a cache once, when they are first read.
    - Rows of a replay buffer are replaced by new ones.
    - The dataset computes new samples in each epoch.
    - Weights, states and averages that the program updates itself, which are no samples.
    - The samples are loaded in workers, which change their own copy, for one epoch.

How it is detected
    In a run, the sanitizer compares up to 24 samples of each array with their earlier values: the arrays and lists in
    the datasets of loaders, in objects of the program with ``__getitem__`` and ``__len__``, and in the variables of
    running functions. It reports an array if 8 or more samples
    changed twice by the same factor and offset, as with ``(x - mean) / std``, and a sample has as many numbers as the
    model's input. In a variable, the model must also have got the changed samples themselves. In a dataset it also
    reports random changes that add up, if the samples change a few at a time while they are read. A program may reduce
    its samples step by step on purpose, so this is a warning. The linter reports a ``__getitem__`` that takes
    ``self.images[index]``, also through ``torch.from_numpy``, and changes it by ``+=``, ``sub_()``, ``out=`` or at
    random places, if the stored items are arrays and no other method sets them. It follows the sample into the
    functions, objects and lists of transforms that ``__getitem__`` calls with it, also in other files, up to the first
    one that returns a new array. It also reports a method of the dataset that computes a mask from a stored sample, as
    in ``mask = tokens >= 0``, and then overwrites the masked values where they are stored.

References
    NumPy, "Copies and views", https://numpy.org/doc/stable/user/basics.copies.html
    PyTorch, "Tensor Views", https://docs.pytorch.org/docs/stable/tensor_view.html
    torch.utils.data, "Map-style datasets", https://docs.pytorch.org/docs/stable/data.html
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import format_float
from trueloop.failures.data.samples_changed_in_place.views_in_source import RULE
from trueloop.failures.failure import BaseDetector, Failure, Severity
from trueloop.tracing.events import LoaderStarted, ModelCalled, TracingGap
from trueloop.tracing.user_location import is_user_code

if TYPE_CHECKING:
    from torch import Tensor

    from trueloop.failures.data.samples_changed_in_place.stored_samples import StoredSamples

ROWS = 24  # samples of an array that are compared
MAX_ARRAYS = 24
SEARCHES = 2  # calls of models at which the variables of the program are searched


class Detector(BaseDetector):
    """Compares stored samples at each call of a model."""

    def __init__(self) -> None:
        self._in_datasets: list[tuple[StoredSamples, CodePosition | None]] = []
        self._in_variables: list[StoredSamples] = []
        self._searches = 0
        self._reported = False

    def on_loader_started(self, event: LoaderStarted) -> None:
        """Record the samples that the dataset of a new loader has in memory."""
        from trueloop.failures.data.samples_changed_in_place.stored_samples import stored_in

        if event.epoch or len(self._in_datasets) >= MAX_ARRAYS:
            return
        dataset = event.live_loader.dataset
        while type(dataset).__name__ == "Subset":
            dataset = dataset.dataset
        code: Any = getattr(getattr(type(dataset), "__getitem__", None), "__code__", None)
        location = CodePosition(code, -1) if code is not None and is_user_code(code) else event.made_at
        self._in_datasets += [(each, location or event.location) for each in stored_in(dataset)]

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Forget earlier values, since some samples may have changed more than once."""
        for each in (*self._in_variables, *(each for each, _ in self._in_datasets)):
            each.forget()

    def on_model_called(self, event: ModelCalled) -> Evidence | None:
        """Return evidence if stored samples changed again in the same way."""
        inputs = event.inputs
        if self._reported or inputs is None or not inputs.ndim:
            return None
        if event.has_graph and self._searches < SEARCHES and inputs.is_cpu:
            from trueloop.failures.data.samples_changed_in_place.stored_samples import stored_in_variables

            self._searches += 1
            self._add_hand_made()
            self._in_variables = list(stored_in_variables())[:MAX_ARRAYS]
        features = math.prod(inputs.shape[1:])
        for each, location in self._in_datasets:
            if each.features == features and (found := self._compare(each, location)):
                return found
        for each in self._in_variables:
            if each.features == features and inputs.is_cpu and (found := self._compare(each, event.location, inputs)):
                return found
        return None

    def _add_hand_made(self) -> None:
        """Record the samples of datasets that no loader reads, as the program makes the batches itself."""
        from trueloop.failures.data.samples_changed_in_place.stored_samples import hand_made_datasets, stored_in

        known = {location.code for _, location in self._in_datasets if location is not None}
        for dataset, code in hand_made_datasets():
            if code not in known and len(self._in_datasets) < MAX_ARRAYS:
                self._in_datasets += [(each, CodePosition(code, -1)) for each in stored_in(dataset)]

    def _compare(
        self, samples: StoredSamples, location: CodePosition | None, inputs: Tensor | None = None
    ) -> Evidence | None:
        samples.update()
        change = samples.changed_twice()
        if change is None and inputs is None and (rows := samples.noise_added_twice()):
            self._reported = True
            return Evidence(
                message=f"Stored samples are changed in place when they are read: {rows} of up to {ROWS} that were "
                f"compared "
                "have got random changes twice, each time on top of the earlier ones.",
                location=location,
            )
        if change is None or (inputs is not None and not samples.are_in(inputs)):
            return None
        self._reported = True
        sign = "-" if change.offset < 0 else "+"
        return Evidence(
            message=f"Stored samples are changed in place when they are read: {change.rows} of up to {ROWS} that were "
            f"compared have changed twice, each time from x to {format_float(change.factor)} * x {sign} "
            f"{format_float(abs(change.offset))}.",
            location=location,
        )


BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Table(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y
    def __len__(self):
        return len(self.x)
    def __getitem__(self, index):
        sample = self.x[index]
        sample -= 5.0
        sample /= 3.0
        return sample, self.y[index]

torch.manual_seed(0)
x = torch.randn(160, 6)
loader = DataLoader(Table(3 * x + 5, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.002)
for epoch in range(4):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
"""

FAILURE = Failure(
    code="DAT010",
    title="Stored samples are changed in place when they are read",
    severity=Severity.WARNING,
    bad=BAD,
    good=BAD.replace("self.x[index]", "self.x[index].clone()"),
    fix="Compute new values, as in x = (x - mean) / std, or copy the sample first: x = self.x[index].clone().",
    rule=RULE,
    detector=Detector,
)
