"""LOS042: masks that select the padding for the loss."""

import pytest

LOOP = """
import torch
import torch.nn.functional as F
from torch import nn

PAD = 0
criterion = nn.CrossEntropyLoss(reduction="none")

def train(model, loader, optimizer, pad_id, config):
    for tokens, targets, lengths in loader:
        out = model(tokens)
        losses = F.cross_entropy(out.transpose(1, 2), targets, reduction="none")
{lines}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def program(lines: str) -> str:
    return LOOP.format(lines="\n".join(f"        {line}" for line in lines.strip().splitlines()))


FAULTY = {
    "a product": "mask = (targets == pad_id).float()\nloss = (losses * mask).sum() / mask.sum()  # <- LOS042",
    "in one line": "loss = (losses * (tokens == PAD)).mean()  # <- LOS042",
    "an index": "mask = targets.eq(config.pad_token_id)\nloss = losses[mask].mean()  # <- LOS042",
    "flat, with a module": """
each = criterion(out.view(-1, 10), targets.view(-1))
keep = (targets.view(-1) == config["pad_idx"]).float()
loss = (each.view(-1) * keep).sum() / keep.sum()  # <- LOS042
""",
    "by length": """
mask = (torch.arange(tokens.size(1))[None, :] >= lengths[:, None]).float()
loss = (losses * mask).sum() / mask.sum()  # <- LOS042
""",
    "selected": "loss = losses.masked_select(targets == PAD).mean()  # <- LOS042",
    "where": "loss = torch.where(targets == PAD, losses, 0.0).sum()  # <- LOS042",
}
CORRECT = {
    "not padding": "mask = (targets != pad_id).float()\nloss = (losses * mask).sum() / mask.sum()",
    "inverted": "mask = targets == PAD\nloss = losses[~mask].mean()",
    "one minus": "mask = (targets == PAD).float()\nloss = (losses * (1 - mask)).sum() / (1 - mask).sum()",
    "filled": "mask = targets == PAD\nloss = losses.masked_fill(mask, 0).sum()",
    "where not": "loss = torch.where(targets == PAD, 0.0, losses).sum()",
    "masked tokens": "mask = tokens == config.mask_token_id\nloss = losses[mask].mean()",
    "by length": "mask = torch.arange(tokens.size(1))[None] < lengths[:, None]\nloss = losses[mask].mean()",
    "another class": "rare = (targets == 0).float()\nloss = (losses * (1 + rare)).mean()",
    "only printed": "print((losses * (targets == PAD)).mean())\nloss = losses[targets != PAD].mean()",
    "two groups": """
groups = (targets == 0).float()
loss = (losses * groups).sum() / groups.sum() + (losses * (1 - groups)).sum() / (1 - groups).sum()
""",
}
TREATED = """
import torch
from torch import nn

def train(model, x, t, y, optimizer):
    losses = nn.functional.mse_loss(model(x), y, reduction="none")
    loss = (losses * (t == 0)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
FUNCTION = """
import torch
import torch.nn.functional as F

class Masked(torch.nn.Module):
    def forward(self, logits, ids):
        mask = self.mask_of(ids)
        nll = F.nll_loss(logits.log_softmax(1), ids, reduction="none")
        return (nll * mask).sum() / mask.sum()  # <- LOS042

    def mask_of(self, ids):
        return ids == self.pad_idx

def train(model, loader, optimizer):
    criterion = Masked()
    for x, ids in loader:
        loss = criterion(model(x), ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize("lines", FAULTY.values(), ids=FAULTY)
def test_lint_reports_a_mask_of_padding(lint_reports, lines):
    lint_reports(program(lines))


def test_lint_follows_a_method(lint_reports):
    lint_reports(FUNCTION)


@pytest.mark.parametrize("script", [*map(program, CORRECT.values()), TREATED], ids=[*CORRECT, "a treatment"])
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(script, "LOS042")
