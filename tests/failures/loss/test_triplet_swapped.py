"""LOS019: a triplet loss with the negative in the place of the positive."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
anchor, pos_emb, neg_emb = model(torch.randn(8, 8)), model(torch.randn(8, 8)), model(torch.randn(8, 8))
"""

TAIL = """
loss.backward()
optimizer.step()
"""

FAULTY = {
    "function": """
loss = F.triplet_margin_loss(anchor, neg_emb, pos_emb, margin=0.5)  # <- LOS019
""",
    "keywords": """
loss = F.triplet_margin_loss(anchor, negative=pos_emb, positive=neg_emb)  # <- LOS019
""",
    "module": """
loss = nn.TripletMarginWithDistanceLoss()(anchor, neg_emb, pos_emb)  # <- LOS019
""",
}

FAULTY |= {
    "the anchor twice": """
loss = F.triplet_margin_loss(anchor, anchor, neg_emb)  # <- LOS019
""",
    "the anchor under another name": """
positive = anchor
loss = nn.TripletMarginLoss()(anchor, positive, neg_emb)  # <- LOS019
""",
    "the positive twice": """
loss = F.triplet_margin_loss(anchor, pos_emb, pos_emb)  # <- LOS019
""",
}

CORRECT = {
    "two calls for one input": """
x = torch.randn(8, 8)
loss = F.triplet_margin_loss(F.dropout(model(x)), F.dropout(model(x)), neg_emb)
""",
    "parts of one tensor": """
loss = F.triplet_margin_loss(anchor[0], anchor[1], anchor[2])
""",
    "in order": """
loss = F.triplet_margin_loss(anchor, pos_emb, neg_emb)
""",
    "a function with another order": """
def triplet_loss(anchor, negative, positive):
    return F.triplet_margin_loss(anchor, positive, negative)

loss = triplet_loss(anchor, neg_emb, pos_emb)
""",
    "names that say nothing": """
a, b, c = anchor, pos_emb, neg_emb
loss = nn.TripletMarginLoss()(a, b, c)
""",
    "both words in a name": """
pos_or_neg = pos_emb
loss = F.triplet_margin_loss(anchor, pos_or_neg, neg_emb)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script + TAIL)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script + TAIL)
