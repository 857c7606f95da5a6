"""The text recipe: whole documents held out, every byte predicted once, padding that cannot be felt."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from trueloop.core.errors import InvalidConfig
from trueloop.data import pad_sequences
from trueloop.recipes.text import (
    BitsPerByte,
    Pieces,
    TextOptions,
    Transformer,
    assemble,
    documents,
    next_byte_loss,
    split,
)

SMALL = TextOptions(length=16, width=8, blocks=2, heads=2)

texts = st.lists(st.binary(max_size=60), max_size=5)


def test_documents_are_distinct_and_in_a_fixed_order():
    found = documents()
    assert found == sorted(set(found))
    assert sum(map(len, found)) > 400_000


@pytest.mark.parametrize("seed", [0, 1])
def test_splits_are_whole_documents_disjoint_and_repeatable(seed: int):
    parts = split(documents(), seed=seed)
    assert sorted(text for part in parts for text in part) == documents()
    assert parts == split(documents(), seed=seed)
    assert [len(part) for part in parts[1:]] == [len(documents()) // 10] * 2
    assert split(documents(), seed=2)[1] != parts[1]


@given(texts, st.integers(1, 20))
def test_every_byte_except_a_documents_first_is_predicted_once(texts: list[bytes], length: int):
    pieces = Pieces(texts, length)
    predicted = [byte for i in range(len(pieces)) for byte in pieces[i][1:].tolist()]
    assert predicted == [byte for text in texts for byte in text[1:]]
    assert all(2 <= len(pieces[i]) <= length + 1 for i in range(len(pieces)))


def a_batch(*lengths: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return pad_sequences([torch.randint(256, (length,)) for length in lengths])


def pieces_of(batch: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return each piece as a batch of its own, without padding."""
    return [pad_sequences([row[mask]]) for row, mask in zip(*batch, strict=True)]


def a_model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(SMALL).double().eval()


def test_the_loss_of_a_batch_is_the_sum_over_its_pieces():
    model, batch = a_model(), a_batch(17, 3, 2)
    together = next_byte_loss(model, batch)
    alone = [next_byte_loss(model, piece) for piece in pieces_of(batch)]
    assert float(together.count or 0) == 16 + 2 + 1 == sum(float(loss.count or 0) for loss in alone)
    torch.testing.assert_close(together.sum, torch.stack([loss.sum for loss in alone]).sum(), rtol=1e-12, atol=0)


def test_padding_does_not_change_the_loss():
    model, batch = a_model(), a_batch(17, 5)
    bytes_BT, mask_BT = batch
    noisy_BT = torch.where(mask_BT, bytes_BT, 77)
    assert torch.equal(next_byte_loss(model, batch).sum, next_byte_loss(model, (noisy_BT, mask_BT)).sum)


def test_later_bytes_do_not_change_earlier_outputs():
    model, bytes_BT = a_model(), torch.randint(256, (2, 12))
    later = bytes_BT.clone()
    later[:, 8:] = (later[:, 8:] + 1) % 256
    before, after = model(bytes_BT), model(later)
    assert torch.equal(before[:, :8], after[:, :8])
    assert not torch.equal(before[:, 8:], after[:, 8:])


def test_shapes_and_repeated_blocks():
    model = Transformer(SMALL)
    assert model(torch.zeros(3, 7, dtype=torch.long)).shape == (3, 7, 256)
    assert isinstance(model.blocks, nn.ModuleList)
    assert len(model.blocks) == 2
    assert TextOptions().length == Transformer(TextOptions()).positions.num_embeddings


def test_an_untrained_model_guesses_uniformly():
    loss = next_byte_loss(a_model(), a_batch(17, 17, 17))
    assert float(loss.sum.detach()) / float(loss.count or 0) == pytest.approx(math.log(256), rel=0.02)


def test_bits_per_byte_does_not_depend_on_the_batches():
    model, batch = a_model(), a_batch(17, 3, 9)
    whole, cut = BitsPerByte(), BitsPerByte()
    loss = next_byte_loss(model, batch)
    whole.update(loss.output.detach(), loss.target)
    for piece in pieces_of(batch):
        one = next_byte_loss(model, piece)
        cut.update(one.output.detach(), one.target)
    bits = float(loss.sum.detach()) / float(loss.count or 0) / math.log(2)
    assert whole.compute() == pytest.approx(bits, rel=1e-6)
    assert cut.compute() == pytest.approx(bits, rel=1e-6)
    assert math.isnan(BitsPerByte().compute())


def test_a_batch_of_the_recipe_fits_its_model():
    parts = assemble(SMALL)
    assert parts.collate is not None
    loss = parts.objective(parts.model, parts.collate([parts.train[i] for i in range(4)]))
    loss.sum.backward()
    assert all(parameter.grad is not None for parameter in parts.model.parameters())


@pytest.mark.parametrize(
    "options", [{"length": 0}, {"width": 0}, {"blocks": 0}, {"heads": 0}, {"width": 10, "heads": 4}, {"dropout": 1.0}]
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any]):
    with pytest.raises(InvalidConfig, match=f"options.{next(iter(options))} is"):
        TextOptions(**options)
