"""A model mixes the samples of a batch: the output for a sample depends on the other samples.

What you see
    The model learns little, or has a good training loss and fails on single samples. The prediction for a sample
    changes with the batch it is in, and with the batch size.

Why it happens
    ``view`` and ``reshape`` never move numbers, so they do not exchange dimensions: after ``x.view(T, B, F)`` of a
    tensor of shape (B, T, F), each row contains numbers of several samples. A softmax, mean or normalisation over
    dimension 0 is over the batch. Attention and recurrent layers without ``batch_first`` treat the samples as time
    steps. All shapes fit, so nothing raises an error.

Fix
    Use ``transpose`` or ``permute`` to exchange dimensions, name the dimension of the features (``dim=-1``), and set
    ``batch_first=True``.

        x = x.view(steps, batch, features)  # wrong
        x = x.transpose(0, 1)  # right
        weights = scores.softmax(dim=0)  # wrong: over the batch
        weights = scores.softmax(dim=-1)  # right

When this is fine
    - Batch normalisation in train mode, or a layer that uses other samples in train mode only.
    - A discriminator with a minibatch standard deviation.
    - A graph network whose rows are the nodes of one graph, or a model whose rows are the steps of one sequence.
    - A model that compares samples with each other, whose output has a row and a column for each sample.
    - Attention between samples that the model is designed for. Switch the finding off for that line.

How it is detected
    In one of the first updates, the sanitizer repeats a call of the model in eval mode, on a copy of its state, and
    gives half of the samples the values of the others. It is reported if the outputs of at least three quarters of the
    unchanged samples change. The first dimension has to be the batch: the loader that shuffles has returned as many
    samples, or the model was called with single samples, or each target belongs to a sample of several dimensions, or
    the targets show that the second dimension is time. Recurrent layers are reported as MDL010. Models on a GPU,
    models with random numbers in eval mode, programs with several optimizers and losses that are not PyTorch's are
    not judged. The linter reports an attention layer without ``batch_first`` whose output is read by ``out[:, 0]``,
    ``out[:, -1]`` or ``out.mean(1)``.

References
    zhouhaoyi/Informer2020#59, ``view`` where ``permute`` is needed,
    https://github.com/zhouhaoyi/Informer2020/issues/59
    DeepReinforcementLearning/DeepReinforcementLearningInAction#32, a softmax over the batch,
    https://github.com/DeepReinforcementLearning/DeepReinforcementLearningInAction/issues/32
    torch.Tensor.view, https://docs.pytorch.org/docs/stable/generated/torch.Tensor.view.html
"""

from collections.abc import Iterator

from trueloop.analysis.queries.batch_first import ATTENTION, read_as_batch_first
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import InformationFlowProbed, SamplesMixed


class Detector(BaseDetector):
    """Reports a model whose output for a sample depends on the other samples."""

    def __init__(self) -> None:
        self._judged, self._obstacle = False, ""

    def on_information_flow_probed(self, event: InformationFlowProbed) -> Evidence | None:
        """Return evidence if the model mixes samples."""
        self._judged |= event.batch
        self._obstacle = event.obstacle or self._obstacle
        mixed = event.mixed
        if mixed is None or mixed.is_recurrent:
            return None
        return Evidence(
            message=f"`{event.model.name}` mixes the samples of a batch. {mixed} {_cause(mixed)}".rstrip(),
            location=mixed.location or event.called_at,
            related=((event.called_at, "the model is called here"),) if mixed.location and event.called_at else (),
        )

    def inconclusive(self) -> str:
        """Return a reason if no model was judged."""
        return "" if self._judged else self._obstacle or "no model with a target for each sample was repeated"


def _cause(mixed: SamplesMixed) -> str:
    if mixed.operation in ("view", "reshape"):
        return f"`{mixed.operation}` does not exchange dimensions: it only cuts the numbers into other rows."
    layer = f" in {mixed.layer}" if mixed.layer else ""
    return f"`{mixed.operation}`{layer} combines them; its input has shape {mixed.shape}." if mixed.operation else ""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the attention layers without ``batch_first`` whose output is read as if it were batch-first."""
    yield from read_as_batch_first(source, ATTENTION, ": each sample attends to the others")


RULE = Rule(required_words=("MultiheadAttention|TransformerEncoder", "forward"), find=find)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(2, 8), nn.Linear(8, 2)
        self.encoder = nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=16)

    def forward(self, x):
        steps = self.encoder(self.embed(x))
        return self.head(steps.mean(1))


torch.manual_seed(0)
inputs = torch.randn(120, 7, 2)
labels = (inputs.sum((1, 2)) > 0).long()
loader = DataLoader(TensorDataset(inputs, labels), batch_size=20, shuffle=True)
model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="MDL015",
    title="The samples of a batch are mixed",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"dim_feedforward=16)": "dim_feedforward=16, batch_first=True)"}),
    fix="Exchange dimensions with transpose or permute, and combine values over the features, not over the batch.",
    rule=RULE,
    detector=Detector,
)
