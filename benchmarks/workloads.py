"""Define the models and the data of the benchmarks, which are small, seeded, and the same for every system."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Batch = tuple[Tensor, Tensor]

# Shapes: B batch, T positions, D width, V vocabulary, C classes.


def mlp(seed: int = 0, inputs: int = 32, hidden: int = 64) -> nn.Module:
    """Create the 32-64-10 perceptron, which has so little arithmetic that the loop dominates its time."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def mlp_batches(count: int = 50, batch: int = 32, seed: int = 1, inputs: int = 32) -> list[Batch]:
    """Make batches of inputs (B, 32) and classes (B,)."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(batch, inputs, generator=generator), torch.randint(10, (batch,), generator=generator))
        for _ in range(count)
    ]


class Block(nn.Module):
    """One pre-norm transformer block with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x_BTD: Tensor) -> Tensor:  # noqa: N803
        """Mix over positions, then over channels."""
        batch, length, width = x_BTD.shape
        heads = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(self.norm_attention(x_BTD)).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x_BTD = x_BTD + self.mix(mixed)  # noqa: N806
        return x_BTD + self.mlp(self.norm_mlp(x_BTD))


class SmallGPT(nn.Module):
    """A byte-level transformer; returns logits (B, V, T), the layout of `nn.CrossEntropyLoss`."""

    def __init__(
        self, width: int = 96, layers: int = 3, heads: int = 4, length: int = 64, vocabulary: int = 256
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens_BT: Tensor) -> Tensor:  # noqa: N803
        """Predict the next byte at every position."""
        x_BTD = self.token(tokens_BT) + self.position  # noqa: N806
        for block in self.blocks:
            x_BTD = block(x_BTD)  # noqa: N806
        return self.head(self.norm(x_BTD)).transpose(1, 2)


def gpt(seed: int = 0) -> nn.Module:
    """Build a transformer that takes a few tens of milliseconds per update on one core."""
    torch.manual_seed(seed)
    return SmallGPT()


def gpt_batches(count: int = 8, batch: int = 8, length: int = 64, seed: int = 1) -> list[Batch]:
    """Make batches of tokens (B, T) and the tokens that follow them (B, T)."""
    generator = torch.Generator().manual_seed(seed)
    texts = [torch.randint(256, (batch, length + 1), generator=generator) for _ in range(count)]
    return [(text[:, :-1].contiguous(), text[:, 1:].contiguous()) for text in texts]


def cnn(seed: int = 0, width: int = 16) -> nn.Module:
    """Build a convolutional net with normalisation and dropout for 8 × 8 images."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(8 * width, 10),
    )  # fmt: skip


def cnn_batches(count: int = 20, batch: int = 64, seed: int = 1) -> list[Batch]:
    """Make batches of images (B, 1, 8, 8) and classes (B,)."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(batch, 1, 8, 8, generator=generator), torch.randint(10, (batch,), generator=generator))
        for _ in range(count)
    ]


def join_batches(batches: Sequence[Batch]) -> Batch:
    """Concatenate batches into one batch."""
    inputs, targets = zip(*batches, strict=True)
    return torch.cat(inputs), torch.cat(targets)
