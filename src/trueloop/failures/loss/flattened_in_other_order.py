"""Outputs of shape (time, batch) and targets of shape (batch, time) are flattened, so they do not belong together.

What you see
    A recurrent model or a transformer learns nothing beyond the frequencies of the tokens, and its accuracy per token
    stays low, although the model is right. All shapes agree, so nothing raises an error.

Why it happens
    ``nn.GRU``, ``nn.LSTM`` and ``nn.Transformer`` without ``batch_first=True`` return (time, batch, features). After
    ``view(-1, classes)``, row 1 is the second sample at time 0. The targets from a loader are (batch, time), and
    element 1 of ``targets.view(-1)`` is the first sample at time 1. The loss then compares each output with the target
    of another sample and another time.

Fix
    Bring both into one order before they are flattened:

        logits = model(x)  # (T, B, V)
        loss = cross_entropy(logits.transpose(0, 1).reshape(-1, V), y.reshape(-1))

    Or leave out the flattening: ``cross_entropy(logits.permute(1, 2, 0), y)`` takes (B, V, T) and (B, T).

When this is fine
    - Both have the time first: the loader returns (time, batch), or the targets were transposed too.
    - Both have the batch first.
    - All targets are equal, such as those of a discriminator.

How it is detected
    In a run, the sanitizer reads the shape (A, B, ...) from which the outputs were flattened, and that of the tensor
    whose memory the targets share. If the targets were copied, it compares them with the tokens that the model got,
    since the targets of a language model are its inputs shifted by one. It reports targets that were flattened from
    the shape (B, A), unless A equals B.

References
    torch.nn.GRU, on batch_first, https://docs.pytorch.org/docs/stable/generated/torch.nn.GRU.html
    torch.nn.CrossEntropyLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
"""

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import BackwardStarted, ModelCalled

MIN_TOKENS: Final = 16  # that are compared with those of the model's input


class TokenReader(BaseDetector):
    """Refers to the tokens that a language model gets."""

    def __init__(self) -> None:
        self.tokens: Callable[[], Any] = lambda: None
        """Returns the latest input of a model in training that consists of integers; None if it was freed."""

    def on_model_called(self, event: ModelCalled) -> None:
        """Record the tokens that a model gets."""
        inputs = event.inputs
        if event.has_graph and inputs is not None and inputs.dim() == 2 and not inputs.is_floating_point():
            self.tokens = weakref.ref(inputs)


class Detector(TokenReader):
    """Compares the order of outputs and targets. Cost: 1 us for each loss; 20 us for targets that were copied."""

    def on_backward_started(self, event: BackwardStarted) -> Iterator[Evidence]:
        """Return evidence for each loss whose targets are flattened in another order than its inputs."""
        for loss in event.losses:
            if loss.unflattened is None or loss.targets is None:
                continue
            first, second = loss.unflattened
            targets = loss.targets
            if min(first, second) < 2 or first == second or targets.numel() != first * second:
                continue
            crossed = _row_length(targets) == first and bool((targets != targets.flatten()[0]).any())
            if crossed or self._continue_tokens(targets, first, second, loss.ignore_index):
                yield Evidence(
                    message=f"The outputs were flattened from the shape ({first}, {second}, ...), the targets from "
                    f"({second}, {first}): each output is compared with the target of another sample and position. "
                    "Exchange the first two dimensions of the outputs with transpose(0, 1).",
                    location=loss.location or event.location,
                )

    def _continue_tokens(self, targets: Any, first: int, second: int, ignored: int | None) -> bool:
        """Return True if the targets are the tokens of the model's input, shifted by one, in rows of ``first``."""
        tokens = self.tokens()
        if tokens is None or not tokens.is_cpu or not targets.is_cpu or targets.is_floating_point():
            return False
        if tuple(tokens.shape) not in ((first, second), (second, first)):
            return False
        rows = tokens if tokens.shape[0] == second else tokens.t()
        crossed, right = targets.reshape(second, first), targets.reshape(first, second).t()
        return _follow(rows, crossed, ignored) and not _follow(rows, right, ignored)


def _row_length(targets: Any) -> int:
    """Return the length of the rows of the tensor that was flattened to the targets; 0 = unknown."""
    from trueloop.tracing.torch_modes import modes_active

    base = None if modes_active() else targets._base  # noqa: SLF001
    if targets.dim() > 2 or base is None or not base.is_contiguous():
        return 0
    shape = [size for size in base.shape if size > 1]
    return shape[-1] if len(shape) == 2 else 0


def _follow(rows: Any, targets: Any, ignored: int | None) -> bool:
    """Return True if each target is the token at the next position, or the one at its own position."""
    for tokens, following in ((rows[:, 1:], targets[:, :-1]), (rows, targets)):
        wrong = (tokens != following) & (following != (ignored if ignored is not None else -1))
        if following.numel() >= MIN_TOKENS and not wrong.any():
            return True
    return False


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randint(0, 6, (40, 12))
y = x.cumsum(1) % 6


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.rnn, self.out = nn.Embedding(6, 8), nn.GRU(8, 16), nn.Linear(16, 6)

    def forward(self, x):
        hidden, _ = self.rnn(self.words(x.t()))
        return self.out(hidden)


model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x).view(-1, 6), y.view(-1))
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="LOS028",
    title="Outputs and targets are flattened in different orders",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(BAD, {"model(x).view(-1, 6)": "model(x).transpose(0, 1).reshape(-1, 6)"}),
    fix="Exchange the first two dimensions of the outputs before you flatten them.",
    detector=Detector,
)
