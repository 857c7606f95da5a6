"""``view`` or ``reshape`` is used to exchange dimensions, which scrambles the numbers.

What you see
    The model learns something, but far less than it should: each row of the tensor contains numbers of several time
    steps, channels or samples. All shapes are right, so nothing raises an error.

Why it happens
    ``view`` and ``reshape`` keep the numbers in their order in memory and only cut them into other rows. A tensor of
    shape (B, T, F) that is reshaped to (B, F, T) is not the transposed tensor. The usual places are the heads of an
    attention layer, images with the channels last, the input of a recurrent layer, and logits before a cross-entropy.

Fix
    Exchange dimensions with ``transpose`` or ``permute``; split and merge dimensions only next to each other.

        q = q.reshape(B, heads, T, width)  # wrong
        q = q.reshape(B, T, heads, width).transpose(1, 2)  # right
        images = images.reshape(B, 3, 32, 32)  # wrong, if they are (B, 32, 32, 3)
        images = images.permute(0, 3, 1, 2)  # right

When this is fine
    - Splitting or merging neighbours: (B, T, H * D) to (B, T, H, D), or (B, T, F) to (B * T, F).
    - Joining frames, (B, T, F) to (B, T / 2, 2 * F), where the sizes are not those of another dimension.
    - A dimension of size 1 that changes its place.
    - Numbers whose order has no meaning, such as noise.

How it is detected
    In one of the first updates, a call of the model is repeated on a copy of its state, and the shapes before and after
    each ``view`` and ``reshape`` are compared, as are those of the model's input, and between the model and a loss. A
    batch of images (N, 3, H, W) is judged by its values: if the means of every third number differ, and numbers 3 * W
    apart are the neighbours, the channels are last. It is reported if the same sizes come in another order, or if a
    dimension is split or merged around another one, so that (B, T, H * D) becomes (B, H, T, D). Each cross-entropy is
    checked for logits (N, C, H, W) that a view cut into rows of C. Dimensions of equal size cannot be distinguished. If
    samples are mixed by it, MDL015 says so. The linter reports a call whose arguments are sizes of the same tensor,
    named or read from its shape in the same function, if they come in another order, or with a new size between them or
    before the batch; an embedding or a linear layer passes the sizes of its input on. So it does for
    ``view(frames, batch, ...)`` of a tensor whose first dimension was merged from (batch, frames), and a tensor that is
    created by ``zeros(frames, batch)`` and filled. It also reports a view to one row per sample of the last states of
    an LSTM, GRU or RNN with several layers or directions, of the shape (layers * directions, batch, hidden), and of the
    outputs of one without ``batch_first``, of the shape (time, batch, hidden); a view to (..., 3, height, width) in a
    file that reads images with PIL or OpenCV and never exchanges dimensions, or of what is computed from an array that
    is created with the sizes (height, width, 3); and ``view(-1, classes)`` of the output of a convolution, with padding
    or a kernel of 1 and no pooling over all positions before it, whose rows a cross-entropy compares with flattened
    targets. Samples that ``wave`` or ``pydub`` return, which are interleaved, are reported as ``reshape(channels,
    -1)``, and bytes that the program itself writes in another order of the sizes than it reads.

References
    zhouhaoyi/Informer2020#59, https://github.com/zhouhaoyi/Informer2020/issues/59
    Jingkang50/OpenPSG#56, https://github.com/Jingkang50/OpenPSG/issues/56
    torch.Tensor.view, https://docs.pytorch.org/docs/stable/generated/torch.Tensor.view.html
"""

import weakref
from collections.abc import Iterator
from typing import Any

from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.model.reshaped_for_transposed.channels_last import find_channels_last
from trueloop.failures.model.reshaped_for_transposed.created_sizes import find_created_sizes
from trueloop.failures.model.reshaped_for_transposed.flattened_channels import find_flattened_channels
from trueloop.failures.model.reshaped_for_transposed.interleaved_reads import find_interleaved_reads
from trueloop.failures.model.reshaped_for_transposed.merged_sizes import find_merged_sizes
from trueloop.failures.model.reshaped_for_transposed.recurrent_views import find_recurrent_views
from trueloop.failures.model.reshaped_for_transposed.swapped_sizes import find_swapped_sizes
from trueloop.tracing.events import BackwardLosses, InformationFlowProbed, ModelCalled, Ref


class Detector(BaseDetector):
    """Reports each ``view`` or ``reshape`` to the shape of a transposed tensor."""

    def __init__(self) -> None:
        self._judged, self._obstacle = False, ""
        self._models: weakref.WeakSet[Ref] = weakref.WeakSet()
        """Models whose input was a reshaped tensor."""
        self._images_seen: weakref.WeakSet[Ref] = weakref.WeakSet()

    def on_model_called(self, event: ModelCalled) -> Evidence | None:
        """Return evidence if the input of a model in training is a view of exchanged dimensions."""
        from trueloop.tracing.torch_modes import modes_active

        inputs: Any = event.inputs
        if inputs is None or not event.has_graph or event.model in self._models or modes_active():
            return None
        from trueloop.failures.model.reshaped_for_transposed.interleaved_colours import are_colours_interleaved

        if event.model not in self._images_seen:
            self._images_seen.add(event.model)
            if are_colours_interleaved(inputs):
                self._models.add(event.model)
                return Evidence(
                    message=f"The input of {event.model.name} has the shape {tuple(inputs.shape)}, but every third "
                    "number of an image has one colour: the images have the channels last and were reshaped, not "
                    "permuted, so each channel contains all colours.",
                    location=event.location,
                )
        base = inputs._base  # noqa: SLF001
        if base is None or not base.is_contiguous() or not inputs.is_contiguous():
            return None
        from trueloop.tracing.information_flow.exchanged_dimensions import exchanged_size

        before, after = tuple(base.shape), tuple(inputs.shape)
        size = exchanged_size(before, after) if base.numel() == inputs.numel() else 0
        if not size:
            return None
        self._models.add(event.model)
        return Evidence(
            message=f"The input of {event.model.name} is a view from shape {before} to {after}. This does not exchange "
            f"dimensions: along the dimension of size {size}, each new slice has numbers of several old ones.",
            location=event.location,
        )

    def on_information_flow_probed(self, event: InformationFlowProbed) -> Iterator[Evidence]:
        """Return evidence for each such reshape."""
        self._judged |= not event.obstacle
        self._obstacle = event.obstacle or self._obstacle
        for each in event.exchanged:
            yield Evidence(
                message=f"`{each.operation or 'view'}` from shape {each.before} to {each.after} does not exchange "
                f"dimensions: along the dimension of size {each.size}, each new slice has numbers of several old ones.",
                location=each.location or event.called_at,
            )

    def on_backward_losses(self, event: BackwardLosses) -> Iterator[Evidence]:
        """Return evidence for logits (N, C, H, W) that a view cut into rows of C before a cross-entropy."""
        for loss in event.losses:
            if loss.flattened is not None and loss.shape:
                order = ", ".join(map(str, (0, *range(2, len(loss.flattened)), 1)))
                yield Evidence(
                    message=f"The logits of shape {loss.flattened} were reshaped to {loss.shape} without moving the "
                    f"{loss.shape[1]} classes to the end: a row has no scores of one position for all classes, but "
                    f"of several positions. `permute({order})` moves them.",
                    location=loss.location or event.location,
                )

    def inconclusive(self) -> str:
        """Return a reason if no model was judged."""
        return "" if self._judged else self._obstacle or "no model call with a loss of PyTorch was repeated"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``view`` or ``reshape`` that should exchange dimensions."""
    found = list(find_swapped_sizes(source))
    for find_more in (find_merged_sizes, find_created_sizes):
        found += find_more(source, {id(each.node) for each in found})
    yield from found
    yield from find_recurrent_views(source)
    yield from find_channels_last(source)
    yield from find_flattened_channels(source)
    yield from find_interleaved_reads(source)


RULE = Rule(
    required_words=(
        ".view(|reshape(",
        ".size(|.shape|len(|LSTM|GRU|RNN|Image|imread|Conv|frombuffer|fromfile|samples(|zeros|empty",
    ),
    find=find,
)

BAD = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width=16, heads=4):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(3, 3 * width), nn.Linear(width, 1)

    def split(self, x):
        B, T, width = x.shape
        return x.reshape(B, self.heads, T, width // self.heads)

    def forward(self, x):
        q, k, v = map(self.split, self.qkv(x).chunk(3, dim=-1))
        mixed = (q @ k.transpose(-2, -1)).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2)[:, 0]).squeeze(-1)


torch.manual_seed(0)
model = Attention()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    x = torch.randn(32, 7, 3)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), x[:, 0].sum(1))
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="MDL017",
    title="A reshape is used to exchange dimensions",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "return x.reshape(B, self.heads, T, width // self.heads)": (
                "return x.reshape(B, T, self.heads, width // self.heads).transpose(1, 2)"
            )
        },
    ),
    fix="Exchange dimensions with transpose or permute.",
    rule=RULE,
    detector=Detector,
)
