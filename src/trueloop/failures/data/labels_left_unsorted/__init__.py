"""A collate function sorts the inputs of a batch and leaves the labels in the original order.

What you see
    The loss stays near the loss of guessing, although the same model learns with batches of one sample.

Why it happens
    ``pack_padded_sequence`` wants the sequences sorted by length. If only the sequences are sorted, each of them gets
    the label of another sample. All shapes are right, so no error is raised.

Fix
    Sort the samples, before they are taken apart:

        def collate(batch):
            batch = sorted(batch, key=lambda sample: len(sample[0]), reverse=True)
            sequences, labels = zip(*batch)

    Or pass ``enforce_sorted=False`` to ``pack_padded_sequence``, and sort nothing.

When this is fine
    - The whole samples are sorted, or the labels are reordered in the same way.
    - The batch contains the order, and the outputs of the model get the original order again.
    - The samples have no labels, and inputs are shuffled to make negative pairs.

How it is detected
    In a run, the sanitizer compares what a collate function gets with what it returns, in the first batches of a loader
    without workers. It reports two batches in which all samples are found in another order than the function got them,
    while the labels, one number for each sample, have exactly the original order. A function that also returns the new
    order is not reported. Without a loader it does the same for a function that calls ``pad_sequence`` on samples that
    are pairs or dictionaries: it compares them with the variables where the model is called. No other correct
    program is known that does this, so this is an error. The linter reports a function that sorts the inputs it pads or
    stacks and returns labels of the same samples that are not sorted, if it does nothing else with the order.

References
    torch.nn.utils.rnn.pack_padded_sequence, https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.rnn.pack_padded_sequence.html
    torch.utils.data, "Working with collate_fn", https://docs.pytorch.org/docs/stable/data.html
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.failures.data.labels_left_unsorted.sorted_inputs import sorted_inputs
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity
from trueloop.tracing.events import Event

MIN_BATCHES = 2


@dataclass(slots=True, kw_only=True, eq=False)
class InputsReordered(Event):
    """RARE. A collate function returned the inputs of a batch in another order than the samples that it got."""

    function: str
    samples: int
    labels_follow: bool
    """Whether the labels are in the new order too; otherwise they are in the original order."""


class Detector(BaseDetector):
    """Counts the batches in which the labels do not follow the inputs."""

    def __init__(self) -> None:
        self._batches: dict[str, float] = {}
        """Function -> number of batches in which its labels did not follow; -inf = they do follow."""

    def on_inputs_reordered(self, event: InputsReordered) -> Evidence | None:
        """Return evidence in the second batch."""
        if event.labels_follow:
            self._batches[event.function] = -math.inf
            return None
        self._batches[event.function] = count = self._batches.get(event.function, 0) + 1
        if count != MIN_BATCHES:
            return None
        return Evidence(
            message=f"`{event.function}` returns the {event.samples} inputs of a batch in another order than their "
            "labels: the labels are still in the order in which it got the samples.",
            location=event.location,
        )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each place where a function sorts the inputs of a batch but not the labels that it returns with them."""
    for sorting, labels in sorted_inputs(source):
        yield Hit(
            message=f"The inputs of the batch are sorted here, but `{labels.id}` keeps the order of the samples: each "
            "input gets the label of another sample.",
            node=sorting,
            related=((labels, "returned in the original order"),),
        )


RULE = Rule(required_words=("sort", "pad_sequence|pack_sequence|stack("), find=find)

BAD = """
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader

def collate(batch):
    labels = torch.tensor([label for _, label in batch])
    sequences = sorted((each for each, _ in batch), key=len, reverse=True)
    return pad_sequence(sequences, batch_first=True), torch.tensor([len(each) for each in sequences]), labels

torch.manual_seed(0)
data = [(torch.randn(4 + i % 7, 3), i % 2) for i in range(96)]
loader = DataLoader(data, batch_size=16, shuffle=True, collate_fn=collate)
rnn, head = nn.GRU(3, 8, batch_first=True), nn.Linear(8, 2)
optimizer = torch.optim.Adam([*rnn.parameters(), *head.parameters()], lr=0.005)
for inputs, lengths, labels in loader:
    optimizer.zero_grad()
    _, hidden = rnn(pack_padded_sequence(inputs, lengths, batch_first=True))
    nn.functional.cross_entropy(head(hidden[-1]), labels).backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="DAT011",
    title="Collate function sorts the inputs but not the labels",
    severity=Severity.ERROR,
    bad=BAD,
    good=BAD.replace(
        "(batch):\n", "(batch):\n    batch = sorted(batch, key=lambda each: len(each[0]), reverse=True)\n", 1
    ),
    fix="Sort the samples before you take inputs and labels apart, or pass enforce_sorted=False.",
    rule=RULE,
    detector=Detector,
)
