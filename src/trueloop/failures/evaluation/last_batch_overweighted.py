"""A metric is the mean of batch means, although the last batch is smaller.

What you see
    The validation loss changes with the batch size although the model and the data do not. If the last batch has one
    sample, that sample counts as much as a full batch.

Why it happens
    The mean of the batch means is the mean over all samples only if all batches have the same size.

Fix
    Sum over samples and divide by their number, or weight each batch mean by the batch size:

        for a, b in loader:
            total += F.mse_loss(model(a), b, reduction="sum").item()
        loss = total / len(loader.dataset)

When this is fine
    - All batches have the same size, because of ``drop_last=True`` or because it divides the number of samples.
    - The number is only for a progress bar, or you average over tasks and want equal weights.

How it is detected
    Only the linter finds it, from the source code: a sum of batch means is divided by the number of batches of a loader
    that is created in the same file. A run does not show which numbers are averaged.

References
    torch.utils.data.DataLoader, drop_last, https://docs.pytorch.org/docs/stable/data.html
    TorchMetrics, overview, https://lightning.ai/docs/torchmetrics/stable/pages/overview.html
"""

from collections.abc import Iterator

from trueloop.analysis.queries.batch_means import means_of_batch_means
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.failures.failure import Failure, Rule, Severity


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the divisions of a sum of batch means by the number of batches."""
    for quotient, loss in means_of_batch_means(source):
        quotient_text = " ".join(source.text.segment(quotient).split())
        yield Hit(
            message=f"`{quotient_text}` weights every batch equally, but the last batch may be smaller.",
            node=quotient,
            related=((loss.node, "this is the mean of one batch"),),
        )


RULE = Rule(required_words=("DataLoader", "len("), find=find)

SCRIPT = """
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
        losses = [nn.functional.mse_loss(model(a), b{reduction}).item() for a, b in held_out]
    print(sum(losses) / len({count}))
"""

FAILURE = Failure(
    code="EVL006",
    title="A smaller last batch is weighted like a full batch",
    severity=Severity.NOTE,
    bad=SCRIPT.replace("{reduction}", "").replace("{count}", "losses"),
    good=SCRIPT.replace("{reduction}", ', reduction="sum"').replace("{count}", "held_out.dataset"),
    fix="Sum over samples, and divide by their number.",
    rule=RULE,
)
