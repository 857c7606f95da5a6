"""The accuracy of a tagger or language model counts padding tokens, which its loss ignores.

What you see
    The token accuracy depends on the length of the longest sequence in a batch. If padding has a usual label such as
    "O", it is far too high, as a model that answers "O" everywhere is right at every padded position. If padding has a
    label that the loss ignores, it is too low, as no model ever predicts it.

Why it happens
    The loss gets a mask or ``ignore_index``, and the line of the accuracy does not: ``(predicted == tags).sum()``
    divided by ``tags.numel()`` counts all positions of the padded batch.

Fix
    Count the positions that the loss counts:

        mask = tags != PAD  # or the mask of the collate function
        correct += (predicted == tags)[mask].sum().item()
        total += mask.sum().item()

When this is fine
    - The predictions and the tags contain real positions only: they were indexed with the mask before.
    - The comparison is combined with the mask: ``(predicted == tags) & mask``.
    - All sequences have the same length.

How it is detected
    The linter looks for predictions that are compared with the labels of a batch, in a loop over batches, or in a
    function, method or metric class that gets them, also in another file. It reports hits that are averaged or divided
    by the number of all labels, if the program pads its batches, in a collate function or with ``pad_sequence``, and
    each of its cross-entropies has an ``ignore_index`` or an input that is indexed with a mask. Nothing is reported if
    the loop or function uses a mask for anything but a call of the model. In a run, the sanitizer reads the label that
    the losses ignore, and reports a comparison of integer tensors of which one contains it in 2 % of its positions, if
    the text divides the hits by all positions. A label from 0 up must fill up the rows. Comparisons of NumPy arrays
    are found by the linter only.

References
    torch.nn.CrossEntropyLoss, ``ignore_index``, https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    Hugging Face course, token classification: "the labels with the index -100 are ignored" in the metric too,
    https://huggingface.co/learn/llm-course/chapter7/2
"""

from dataclasses import dataclass

from trueloop.core.findings import Evidence
from trueloop.core.formatting import format_percent
from trueloop.failures.evaluation.padding_judged.rule import RULE
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import Event


@dataclass(slots=True, kw_only=True, eq=False)
class PaddingCompared(Event):
    """The program counted hits at all positions of labels that contain padding."""

    text: str
    """The comparison."""
    ignored: int
    """The label of padding, which the losses of the program ignore."""
    positions: int
    padding: int
    """Number of positions with this label."""


class Detector(BaseDetector):
    """Reports comparisons with padding."""

    def on_padding_compared(self, event: PaddingCompared) -> Evidence | None:
        """Return evidence of the comparison."""
        return Evidence(
            message=f"`{event.text}` counts {event.positions} labels, and {event.padding} of them "
            f"({format_percent(event.padding / event.positions)}) are {event.ignored}, which the loss ignores: it is "
            "not the accuracy of the real tokens.",
            location=event.location,
            dedup_key=event.text,
        )


BAD = """
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

torch.manual_seed(0)
sentences = [torch.randint(1, 20, (length,)) for length in (9, 4, 7, 3, 8, 5, 6, 2)]
data = [(words, words % 3 + 1) for words in sentences]


def pad_batch(samples):
    words, tags = zip(*samples)
    return pad_sequence(words, batch_first=True), pad_sequence(tags, batch_first=True)


loader = DataLoader(data, batch_size=4, collate_fn=pad_batch)
model = nn.Sequential(nn.Embedding(20, 16, padding_idx=0), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(5):
    for words, tags in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(words).flatten(0, 1), tags.flatten(), ignore_index=0).backward()
        optimizer.step()
correct = total = 0
with torch.no_grad():
    for words, tags in loader:
        predicted = model(words).argmax(-1)
        correct += (predicted == tags).sum().item()
        total += tags.numel()
print("accuracy", correct / total)
"""

FAILURE = Failure(
    code="EVL019",
    title="Padding tokens count in the accuracy",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "correct += (predicted == tags).sum().item()": "correct += (predicted == tags)[tags != 0].sum().item()",
            "total += tags.numel()": "total += (tags != 0).sum().item()",
        },
    ),
    fix="Count the positions that are not padding: `(predicted == tags)[mask].sum() / mask.sum()`.",
    rule=RULE,
    detector=Detector,
)
