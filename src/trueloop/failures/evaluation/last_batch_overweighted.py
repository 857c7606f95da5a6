"""A metric is the mean of the means of batches, the last of which is smaller.

What you see
    The validation loss changes with the batch size though the model and the data do not. With one sample left over,
    this sample counts as much as a whole batch.

Why it happens
    A mean of means is a number like any other. It equals the mean over samples only where all batches are equal.

Fix
    Sum over samples and divide by their number at the end, or weight each batch's mean by its size.

When this is fine
    Batches of equal size (``drop_last=True``, or a size that divides the data), a running figure for the progress bar,
    and a macro average over tasks. Which numbers a program averages, and what for, does not show while it runs, so no
    running program is accused of it: it shows in the text only, as a sum of batch means over the number of batches of a
    loader that is made in the same file.

References
    torch.utils.data.DataLoader, drop_last, https://docs.pytorch.org/docs/stable/data.html
    TorchMetrics, overview, https://lightning.ai/docs/torchmetrics/stable/pages/overview.html
"""

from __future__ import annotations

from collections.abc import Iterator

from trueloop.analysis.queries.batch_means import means_of_means
from trueloop.analysis.source_file import Hit, Source
from trueloop.failures.failure import Failure, Rule, Severity


def find(source: Source) -> Iterator[Hit]:
    """Yield the divisions of a sum of batches' means by the number of batches."""
    for quotient, loss in means_of_means(source):
        yield Hit(
            message="Every batch counts the same here, also the last one, which may be smaller.",
            node=quotient,
            related=((loss.node, "the mean of one batch"),),
        )


RULE = Rule(words=("DataLoader", "len("), find=find)


FAILURE = Failure(
    code="EVL006",
    title="The last batch counts for too much",
    severity=Severity.NOTE,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(161, 8)
y = x.sum(1, keepdim=True)
train = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(x[128:], y[128:]), batch_size=16)
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
        losses = [nn.functional.mse_loss(model(a), b).item() for a, b in held_out]
    print(sum(losses) / len(losses))
""",
    good="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(161, 8)
y = x.sum(1, keepdim=True)
train = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(x[128:], y[128:]), batch_size=16)
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
        losses = [nn.functional.mse_loss(model(a), b, reduction="sum").item() for a, b in held_out]
    print(sum(losses) / len(held_out.dataset))
""",
    fix="Sum over samples, and divide by their number.",
    rule=RULE,
)
