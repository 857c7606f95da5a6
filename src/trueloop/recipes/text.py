"""Bytes of text: a small decoder-only transformer on Python's language reference.

Model: transformer, 2 blocks, 124,160 parameters
Data: the standard library's pydoc topics, about 460 kB in 78 documents
Time: one to two minutes on a CPU, about 2.0 bits per byte on held-out documents

Documents are cut into pieces of at most ``length`` bytes and padded to the longest of their batch. The loss ignores
padding, and its count is the number of real bytes: a batch of short pieces has a proportionally small weight. Only
whole documents are held out, never pieces of a training document.
"""
# ruff: noqa: N803, N806 - shapes are part of the name: B pieces, T bytes, D features, V byte values

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from trueloop.core.errors import InvalidConfig
from trueloop.data import pad_sequences
from trueloop.export.io_description import Reading
from trueloop.recipes.recipe import Parts, Recipe, require_at_least, require_share
from trueloop.training.config import OptimConfig, ScheduleConfig, TrainConfig
from trueloop.training.objective import Loss

BYTES = 256
IGNORED = -100  # torch's default for targets to ignore


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """The transformer and the pieces of text."""

    length: int = 128
    """Context length: maximum number of bytes in a piece."""
    width: int = 64
    """Number of features per position."""
    blocks: int = 2
    """Number of transformer blocks."""
    heads: int = 4
    """Number of attention heads; a divisor of the width."""
    dropout: float = 0.0
    """Dropout probability of each residual branch."""
    split_seed: int = 0
    """Seed of the split into training and held-out documents."""

    def __post_init__(self) -> None:
        require_at_least(1, length=self.length, width=self.width, blocks=self.blocks, heads=self.heads)
        require_at_least(0, split_seed=self.split_seed)
        require_share(dropout=self.dropout)
        if self.width % self.heads:
            raise InvalidConfig(
                f"options.width is {self.width} and options.heads is {self.heads}.",
                fix="Choose a width that is a multiple of heads: each head has width / heads features.",
            )


def build() -> Recipe:
    """Return the recipe."""
    return Recipe(
        name="text",
        summary="Bytes of text: a small decoder-only transformer on Python's language reference.",
        train=TrainConfig(
            epochs=6,
            effective_batch=16,
            threads=1,
            optim=OptimConfig(lr=3e-3, weight_decay=0.1, betas=(0.9, 0.95)),
            schedule=ScheduleConfig(name="cosine", warmup=0.05),
        ),
        options=TextOptions(),
        assemble=assemble,
    )


def assemble(options: TextOptions) -> Parts:
    """Return the transformer, its loss per byte, and the training, validation and test pieces."""
    train, val, test = (Pieces(part, options.length) for part in split(documents(), seed=options.split_seed))
    return Parts(
        model=Transformer(options),
        objective=next_byte_loss,
        train=train,
        val=val,
        test=test,
        metrics={"bits_per_byte": BitsPerByte},
        collate=pad_sequences,
        reading=Reading(kind="text", length=options.length, description="UTF-8 text as bytes, numbers from 0 to 255."),
    )


def documents() -> list[bytes]:
    """Return the topics as bytes, in a fixed order, without duplicates."""
    from pydoc_data.topics import topics

    return sorted({text.encode() for text in topics.values()})


def split(texts: Sequence[bytes], *, seed: int) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Return training (80 %), validation and test (10 % each) documents.

    Args:
        texts: the documents, three or more.
        seed: seed of the split.
    """
    shuffled = list(texts)
    random.Random(seed).shuffle(shuffled)  # noqa: S311 - a repeatable order, not a secret
    held_out = max(1, len(shuffled) // 10)
    return shuffled[2 * held_out :], shuffled[:held_out], shuffled[held_out : 2 * held_out]


class Pieces(Dataset[Tensor]):
    """Documents cut into pieces of at most ``length`` + 1 bytes, for inputs and for targets shifted by one.

    Neighbouring pieces share one byte, so that every byte except a document's first is predicted once.

    Args:
        texts: whole documents.
        length: context length in bytes.
    """

    def __init__(self, texts: Sequence[bytes], length: int) -> None:
        self._pieces = [text[i : i + length + 1] for text in texts for i in range(0, len(text) - 1, length)]

    def __len__(self) -> int:
        return len(self._pieces)

    def __getitem__(self, index: int) -> Tensor:
        """Return one piece [T], int64."""
        return torch.tensor(list(self._pieces[index]))


def next_byte_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Loss:
    """Return the cross-entropy summed over real bytes, in nats, and their number.

    Args:
        model: model that maps bytes [B, T] to logits [B, T, V].
        batch: padded pieces [B, T + 1], and a mask of the same shape that is True for real bytes.
    """
    bytes_BT, mask_BT = batch
    targets_BT = bytes_BT[:, 1:].masked_fill(~mask_BT[:, 1:], IGNORED)
    logits_BVT = model(bytes_BT[:, :-1]).transpose(1, 2)
    total = F.cross_entropy(logits_BVT, targets_BT, ignore_index=IGNORED, reduction="sum")
    return Loss(sum=total, count=mask_BT[:, 1:].sum(), output=logits_BVT, target=targets_BT)


class BitsPerByte:
    """Cross-entropy per real byte in bits: 8 for a uniform guess; gzip -9 needs 2.6 for the validation documents."""

    def __init__(self) -> None:
        self._nats: Tensor | float = 0.0
        self._count: Tensor | int = 0

    def update(self, output: Tensor, target: Tensor) -> None:
        """Add one batch of logits [B, V, T] and targets [B, T], without waiting for the GPU."""
        self._nats = self._nats + F.cross_entropy(output, target, ignore_index=IGNORED, reduction="sum").double()
        self._count = self._count + (target != IGNORED).sum()

    def compute(self) -> float:
        """Return the bits per byte; nan before the first update."""
        return float(self._nats / self._count / torch.log(torch.tensor(2.0))) if self._count else float("nan")


class Block(nn.Module):
    """Causal self-attention, then a feed-forward network, each with a LayerNorm before it and a residual connection.

    Source: Radford et al., 2019 (GPT-2).
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.feed_norm = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return [B, T, D]; position t only depends on positions up to t, so padding at the end has no influence."""
        x_BTD = x_BTD + self.dropout(self._attend(self.attention_norm(x_BTD)))
        return x_BTD + self.dropout(self.feed(self.feed_norm(x_BTD)))

    def _attend(self, x_BTD: Tensor) -> Tensor:
        B, T, D = x_BTD.shape
        # [B, T, 3D] -> three of [B, heads, T, D / heads]
        q, k, v = self.query_key_value(x_BTD).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.attention_out(mixed.transpose(1, 2).reshape(B, T, D))


class Transformer(nn.Module):
    """Maps bytes [B, T] to logits [B, T, V] of the next byte; input and output share one embedding."""

    def __init__(self, options: TextOptions) -> None:
        super().__init__()
        width = options.width
        self.bytes = nn.Embedding(BYTES, width)
        self.positions = nn.Embedding(options.length, width)
        self.blocks = nn.ModuleList(Block(width, options.heads, options.dropout) for _ in range(options.blocks))
        self.norm = nn.LayerNorm(width)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)  # as in GPT-2

    def forward(self, bytes_BT: Tensor) -> Tensor:
        """Return logits [B, T, V]."""
        x_BTD = self.bytes(bytes_BT) + self.positions.weight[: bytes_BT.shape[1]]
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return F.linear(self.norm(x_BTD), self.bytes.weight)
