"""LOS060: scores or distances of pairs with the wrong sign."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F

enc, items = nn.Linear(8, 4), nn.Embedding(50, 4)
optimizer = torch.optim.Adam([*enc.parameters(), *items.parameters()])
batches = [(torch.randn(6, 8), torch.randint(50, (6,)), torch.randint(50, (6, 3))) for _ in range(4)]

def update(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAULTY = {
    "short names of distances": """
for x, near, far in batches:
    d_ap = (enc(x) - items(near)).pow(2).sum(1)
    d_an = (enc(x) - items(far[:, 0])).pow(2).sum(1)
    update(torch.clamp(0.5 + d_an - d_ap, min=0).mean())  # <- LOS060
""",
    "distances with a margin": """
for x, near, far in batches:
    pos_dist = F.pairwise_distance(enc(x), items(near))
    neg_dist = F.pairwise_distance(enc(x), items(far[:, 0]))
    update(F.relu(neg_dist - pos_dist + 0.5).mean())  # <- LOS060
""",
    "negative sampling": """
for x, near, far in batches:
    v = enc(x)
    pos_score = (v * items(near)).sum(1)
    neg_score = torch.bmm(items(far), v[:, :, None]).squeeze(2)
    loss = -(F.logsigmoid(pos_score) + F.logsigmoid(neg_score).sum(1)).mean()  # <- LOS060
    update(loss)
""",
    "BPR in a class": """
class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(50, 4)
    def bpr_loss(self, user, pos, neg):
        pos_scores = (user * self.items(pos)).sum(-1)
        neg_scores = (user * self.items(neg)).sum(-1)
        return -F.logsigmoid(neg_scores - pos_scores).mean()  # <- LOS060
model = Recommender()
for x, near, far in batches:
    loss = model.bpr_loss(enc(x), near, far[:, 0])
    update(loss)
""",
    "similarities with a margin": """
def ranking_loss(anchor, positive, negative, margin=0.2):
    pos_sim = F.cosine_similarity(anchor, positive)
    neg_sim = F.cosine_similarity(anchor, negative)
    return F.relu(margin + pos_sim - neg_sim).mean()  # <- LOS060
for x, near, far in batches:
    update(ranking_loss(enc(x), items(near), items(far[:, 0])))
""",
}

CORRECT = {
    "short names in order": """
for x, near, far in batches:
    dp, dn = F.pairwise_distance(enc(x), items(near)), F.pairwise_distance(enc(x), items(far[:, 0]))
    update(F.relu(dp - dn + 0.5).mean())
""",
    "distances": FAULTY["distances with a margin"].replace("neg_dist - pos_dist", "pos_dist - neg_dist"),
    "negative sampling": FAULTY["negative sampling"].replace("logsigmoid(neg_score)", "logsigmoid(-neg_score)"),
    "negated when it is computed": FAULTY["negative sampling"].replace(
        "torch.bmm(items(far), v[:, :, None]).squeeze(2)", "torch.bmm(items(far), v[:, :, None]).squeeze(2).neg()"
    ),
    "BPR": FAULTY["BPR in a class"].replace("neg_scores - pos_scores", "pos_scores - neg_scores"),
    "similarities": FAULTY["similarities with a margin"].replace("pos_sim - neg_sim", "neg_sim - pos_sim"),
    "distances in logsigmoid": """
for x, near, far in batches:
    pos_dist = torch.norm(enc(x) - items(near), dim=1)
    neg_dist = torch.norm(enc(x) - items(far[:, 0]), dim=1)
    update(-(F.logsigmoid(6 - pos_dist) + F.logsigmoid(neg_dist - 6)).mean())
""",
    "classes": """
for x, near, far in batches:
    out = enc(x)
    pos_logits, neg_logits = out[:, 0], out[:, 1]
    update(F.softplus(pos_logits).mean() + F.softplus(neg_logits).mean())
""",
    "scores that are distances": """
for x, near, far in batches:
    pos_score = -(enc(x) - items(near)).norm(dim=1)
    neg_score = -(enc(x) - items(far[:, 0])).norm(dim=1)
    update(F.relu(neg_score - pos_score + 0.5).mean())
""",
}
CORRECT = {name: script.replace("  # <- LOS060", "") for name, script in CORRECT.items()}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_pairs_with_the_wrong_sign(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_signs(lint_is_clean, script):
    lint_is_clean(HEAD + script)
