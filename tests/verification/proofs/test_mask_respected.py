"""Padding that influences outputs or the loss, and padding without influence."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trueloop.core.errors import InvalidConfig

NAME = "mask-respected"


class Pooled(nn.Module):
    """The mean over valid positions, or over all positions."""

    def __init__(self, *, masked=True):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.head, self.masked = nn.Embedding(11, 8), nn.Linear(8, 3), masked

    def forward(self, ids, attention_mask):
        h = self.tokens(ids)
        if not self.masked:
            return self.head(h.mean(1))
        weight = attention_mask[..., None].to(h.dtype)
        return self.head((h * weight).sum(1) / weight.sum(1))


class Tagged(nn.Module):
    """Classifies tokens with attention that ignores padding (token 0), or does not ignore it."""

    def __init__(self, *, masked=True):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.head, self.masked = nn.Embedding(11, 8), nn.Linear(8, 3), masked
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, ids):
        h = self.tokens(ids)
        padding = ids == 0 if self.masked else None
        return self.head(h + self.attention(h, h, h, key_padding_mask=padding)[0])


@pytest.fixture
def padded():
    torch.manual_seed(2)
    ids = torch.randint(1, 11, (5, 6))
    mask = torch.arange(6)[None] < torch.tensor([6, 4, 3, 5, 2])[:, None]
    return ids * mask, mask


def pooled_loss(model, batch):
    return F.cross_entropy(model(batch["input_ids"], batch["attention_mask"]), batch["labels"])


def pooled_batch(ids, mask):
    return {"input_ids": ids, "attention_mask": mask.long(), "labels": torch.tensor([0, 1, 2, 0, 1])}


def test_masked_pooling_holds(holds, padded):
    evidence = holds(NAME, model=Pooled(), loss=pooled_loss, batch=pooled_batch(*padded))
    assert evidence.numbers["masked_positions"] == 10


def test_pooling_over_padding_is_found(broken, padded):
    evidence = broken(NAME, model=Pooled(masked=False), loss=pooled_loss, batch=pooled_batch(*padded))
    assert evidence.cause == "the model"
    assert evidence.numbers["outputs_move"] > 0


def test_a_name_says_which_it_is(broken, padded):
    batch = pooled_batch(*padded)
    batch["real"] = batch.pop("attention_mask")

    def loss(model, batch):
        return F.cross_entropy(model(batch["input_ids"], batch["real"]), batch["labels"])

    broken(NAME, model=Pooled(masked=False), loss=loss, batch=batch, mask="real")


def test_a_name_that_is_not_there(prove, padded):
    with pytest.raises(InvalidConfig, match="no 'reel'"):
        prove(NAME, model=Pooled(), loss=pooled_loss, batch=pooled_batch(*padded), mask="reel")


def token_loss(model, batch, *, ignoring=True):
    ids, targets, mask = batch
    counted = targets.masked_fill(~mask, -100) if ignoring else targets
    return F.cross_entropy(model(ids).transpose(1, 2), counted)


@pytest.mark.parametrize("by", ["tensor", "found"])
def test_a_loss_over_padding_is_found(broken, holds, padded, by):
    ids, mask = padded
    batch = (ids, ids % 3, mask)
    hint = {"mask": mask} if by == "tensor" else {}

    class PerToken(nn.Sequential):
        pass

    torch.manual_seed(0)
    model = PerToken(nn.Embedding(11, 8), nn.Linear(8, 3))
    holds(NAME, model=model, loss=token_loss, batch=batch, **hint)
    evidence = broken(NAME, model=model, loss=lambda m, b: token_loss(m, b, ignoring=False), batch=batch, **hint)
    assert evidence.cause == "the loss"


def test_a_mask_read_off_the_content_is_tried_by_cutting(holds, broken, padded):
    ids, mask = padded
    batch = (ids, (ids % 3).masked_fill(~mask, -100))

    def loss(model, batch):
        return F.cross_entropy(model(batch[0]).transpose(1, 2), batch[1])

    def real(batch):
        return batch[0] != 0

    evidence = holds(NAME, model=Tagged(), loss=loss, batch=batch, mask=real)
    assert "cut off" in evidence.message
    assert broken(NAME, model=Tagged(masked=False), loss=loss, batch=batch, mask=real).cause == "the model"


def test_the_other_polarity_is_no_alarm(holds, padded):
    ids, mask = padded
    batch = (ids, ids % 3, ~mask)  # True at padding, as in torch's attention
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 3))
    holds(NAME, model=model, loss=lambda m, b: token_loss(m, (b[0], b[1], ~b[2])), batch=batch)


def test_without_padding_it_does_not_apply(not_applicable, padded, classes, net):
    ids, mask = padded
    full = pooled_batch(ids, torch.ones_like(mask))
    not_applicable(NAME, model=Pooled(), loss=pooled_loss, batch=full)
    not_applicable(NAME, model=net(), loss=nn.CrossEntropyLoss(), batch=classes)


def test_padding_is_looked_for_in_later_batches(holds, padded):
    ids, mask = padded
    full = pooled_batch(ids.clamp(min=1), torch.ones_like(mask))
    holds(NAME, model=Pooled(), loss=pooled_loss, loader=[full, full, pooled_batch(ids, mask)])
