"""LOS067: the easiest instead of the hardest pairs of a batch."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F

net = nn.Linear(4, 2)
optimizer = torch.optim.Adam(net.parameters())

"""
STEP = """

def step(x, y):
    optimizer.zero_grad()
    batch_loss(net(x), y).backward()
    optimizer.step()
"""
FAULTY = {
    "masked_fill": """
def batch_loss(z, y):
    d = torch.cdist(z, z)
    same = y[:, None] == y[None]
    near = d.masked_fill(~same, float("inf")).min(dim=1)[0]  # <- LOS067
    far = d.masked_fill(same, -float("inf")).max(dim=1)[0]
    return F.relu(near - far + 0.2).mean()
""",
    "by their names": """
def mine(embeddings, labels):
    dist = (embeddings[:, None] - embeddings[None]).norm(dim=-1)
    same = labels[:, None] == labels
    hardest_pos = torch.where(same, dist, torch.inf).amin(1)  # <- LOS067
    hardest_neg = torch.where(same, -torch.inf, dist).amax(1)  # <- LOS067
    return hardest_pos, hardest_neg

def batch_loss(z, y):
    p, n = mine(z, y)
    return F.softplus(p - n).mean()
""",
    "a class, unpacked": """
class BatchHard(nn.Module):
    def __init__(self, margin=0.3):
        super().__init__()
        self.margin = margin

    def forward(self, emb, labels):
        pairwise = torch.cdist(emb, emb, p=2)
        mask = labels.unsqueeze(0) == labels.unsqueeze(1)
        ap, _ = (pairwise + 1e6 * (~mask)).min(1)  # <- LOS067
        an, _ = (pairwise * (~mask)).max(1)
        return torch.clamp(ap - an + self.margin, min=0).mean()

criterion = BatchHard()

def batch_loss(z, y):
    return criterion(z, y)
""",
    "a ranking loss in a loop": """
ranking = nn.MarginRankingLoss(margin=0.3)

def batch_loss(z, y):
    dist_mat = torch.cdist(z, z)
    mask = y[:, None] == y
    dist_ap, dist_an = [], []
    for i in range(len(z)):
        dist_ap.append(dist_mat[i][mask[i]].min())  # <- LOS067
        dist_an.append(dist_mat[i][~mask[i]].max())
    dist_ap, dist_an = torch.stack(dist_ap), torch.stack(dist_an)
    return ranking(dist_an, dist_ap, torch.ones_like(dist_an))
""",
    "similarities": """
def batch_loss(z, y):
    z = F.normalize(z, dim=1)
    sim = z @ z.T
    same = y[:, None] == y
    neg = sim.masked_fill(same, 2.0).min(1).values
    pos = sim.masked_fill(~same, -2.0).max(1).values  # <- LOS067
    return F.relu(neg - pos + 0.2).mean()
""",
    "indices": """
def batch_loss(z, y):
    dist = torch.cdist(z, z)
    same = y[:, None] == y
    hard_positive = dist.masked_fill(~same, 1e9).argmin(1)  # <- LOS067
    hard_negative = dist.masked_fill(same, -1e9).argmax(1)  # <- LOS067
    return F.triplet_margin_loss(z, z[hard_positive], z[hard_negative])
""",
}
FAULTY |= {
    "a product with a mask": """
def batch_loss(z, y):
    dist = ((z[None] - z[:, None]).pow(2).sum(-1) + 1e-12).sqrt()
    same = y.unsqueeze(0) == y.unsqueeze(1)
    far = (dist * same).max(dim=1).values
    near = (dist * ~same).min(dim=1).values  # <- LOS067
    return F.relu(far - near + 0.2).mean()
""",
    "a mask of numbers": """
def batch_loss(z, y):
    d = torch.cdist(z, z)
    different = y[:, None].ne(y[None])
    different = different.float()
    positive, _ = torch.max(d * (1 - different), dim=1)
    negative, _ = torch.min(different * d, dim=1)  # <- LOS067
    return F.relu(positive - negative + 0.2).mean()
""",
    "the nearest other centre": """
def batch_loss(z, y):
    centres = torch.stack([z[y == k].mean(0) for k in range(3)])
    gaps = torch.cdist(centres, centres)
    nearest = (gaps * (1 - torch.eye(3))).min(1).values  # <- LOS067
    return F.relu(1 - nearest).mean() + z.pow(2).max() * 0.01
""",
}
CORRECT = {
    "a product with a mask, and a large number elsewhere": """
def batch_loss(z, y):
    dist = torch.cdist(z, z)
    same = (y[:, None] == y[None]).float()
    far = (dist * same).max(1).values
    near = (dist * (1 - same) + 1e6 * same).min(1).values
    return F.relu(far - near + 0.2).mean()
""",
    "weights, not a mask": """
def batch_loss(z, y):
    dist, weight = torch.cdist(z, z), torch.rand(len(y))
    same = y[:, None] == y[None]
    far = dist.masked_fill(~same, -1.0).max(1).values
    return F.relu(far - (weight * dist.masked_fill(same, 1e6)).min(1).values + 0.2).mean()
""",
    "a minimum of signed values": """
def batch_loss(z, y):
    low = (z * (y > 0)[:, None].float()).min(dim=1).values
    return F.relu(low + z.max(dim=1).values).mean()
""",
    "a row without its own distance": """
def batch_loss(z, y):
    dist = torch.cdist(z, z)
    same = y[:, None] == y[None]
    near = dist[~same].min()
    return F.relu(dist[same].max() - near + 0.2)
""",
    "batch hard": """
def batch_loss(z, y):
    d = torch.cdist(z, z)
    same = y[:, None] == y[None]
    hardest_pos = (d * same).max(dim=1)[0]
    hardest_neg = (d + 1e6 * same).min(dim=1)[0]
    return F.relu(hardest_pos - hardest_neg + 0.2).mean()
""",
    "easy positives": """
def batch_loss(z, y):
    d = torch.cdist(z, z)
    same = y[:, None] == y[None]
    easy_pos = d.masked_fill(~same, 1e6).min(1).values
    hard_neg = d.masked_fill(same, 1e6).min(1).values
    return F.relu(easy_pos - hard_neg + 0.2).mean()
""",
    "similarities": """
def batch_loss(z, y):
    sim = F.normalize(z, dim=1) @ F.normalize(z, dim=1).T
    same = y[:, None] == y
    hardest_positive = sim.masked_fill(~same, 2.0).min(1).values
    hardest_negative = sim.masked_fill(same, -2.0).max(1).values
    return F.relu(hardest_negative - hardest_positive + 0.2).mean()
""",
    "negated distances": """
def batch_loss(z, y):
    d = torch.cdist(z, z)
    same = y[:, None] == y
    hardest_positive = -(-d).masked_fill(~same, 1e6).min(1).values
    hardest_negative = -(-d).masked_fill(same, -1e6).max(1).values
    return F.relu(hardest_positive - hardest_negative + 0.2).mean()
""",
    "a ranking loss": """
def batch_loss(z, y):
    dist = torch.cdist(z, z)
    mask = y[:, None] == y
    ap = torch.stack([dist[i][mask[i]].max() for i in range(len(z))])
    an = torch.stack([dist[i][~mask[i]].min() for i in range(len(z))])
    return F.margin_ranking_loss(an, ap, torch.ones_like(an), margin=0.3)
""",
    "a semi-hard negative": """
def batch_loss(z, y):
    dist = torch.cdist(z, z)
    same = y[:, None] == y
    pos = dist.masked_fill(~same, 0).max(1).values
    semi_hard_neg = dist.masked_fill(same | (dist < pos[:, None]), -1e6).max(1).values
    return F.relu(pos - semi_hard_neg + 0.2).mean()
""",
    "Q values": """
def batch_loss(q, y):
    lower, upper = q.min(1).values, (q * y).max(1).values
    return F.relu(lower - upper).mean()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script + STEP)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script + STEP)


SEVERAL_FAULTY = {
    "argpartition": """
def pdist(v):
    return (v[:, None] - v[None]).pow(2).sum(2)
class HardNegativePairSelector:
    def get_pairs(self, embeddings, positive, negative):
        d = pdist(embeddings.detach()).numpy()
        neg_d = d[negative[:, 0], negative[:, 1]]
        k = len(positive)
        top = np.argpartition(neg_d, -k)[-k:]  # <- LOS067
        return negative[top]
""",
    "topk": """
def hard_negatives(z, negatives, k):
    distance = torch.cdist(z, z)
    values, indices = distance[negatives].topk(k)  # <- LOS067
    return indices
""",
    "the nearest positives": """
def mine(z, positive_pairs, k):
    positive_dist = (z[positive_pairs[:, 0]] - z[positive_pairs[:, 1]]).norm(dim=1)
    hard_positives = torch.argsort(positive_dist)[:k]  # <- LOS067
    return hard_positives
""",
    "the least similar negatives": """
def mine_hard(q, negatives, k):
    neg_sim = q @ negatives.T
    return torch.topk(neg_sim, k, dim=1, largest=False).indices  # <- LOS067
""",
    "sorted downwards": """
def hard_negative_mining(z, y, k):
    neg_distances = torch.cdist(z, z)[y[:, None] != y]
    return np.argsort(-neg_distances.numpy())[:k]  # <- LOS067
""",
}
SEVERAL_CORRECT = {
    "the nearest negatives": """
def hard_negatives(z, negatives, k):
    distance = torch.cdist(z, z)
    first = distance[negatives].topk(k, largest=False).indices
    return first, np.argpartition(distance[negatives], k)[:k], (-distance[negatives]).topk(k)
""",
    "the farthest positives": """
def hard_positives(positive_dist, k):
    return positive_dist.topk(k), np.argsort(positive_dist)[-k:], np.argsort(positive_dist)[::-1][:k]
""",
    "the most similar negatives": """
def mine_hard(q, negatives, k):
    neg_sim = q @ negatives.T
    return torch.topk(neg_sim, k, dim=1).indices, neg_sim.argsort(dim=1, descending=True)[:k]
""",
    "negatives by their loss": """
def hard_negative_mining(loss, negative_mask, k):
    neg_loss = loss[negative_mask]
    return neg_loss.topk(k).values.mean()
""",
    "easy and semi-hard negatives": """
def easy_negatives_for_hard_positives(neg_dist, k):
    return neg_dist.topk(k)
def semi_hard_negatives(neg_dist, k):
    return neg_dist.topk(k)
""",
    "neighbours": """
def nearest(z, negatives, k):
    return torch.cdist(z, negatives).topk(k)
""",
}


@pytest.mark.parametrize("script", SEVERAL_FAULTY.values(), ids=SEVERAL_FAULTY.keys())
def test_lint_reports_the_easiest_of_several_pairs(lint_reports, script):
    lint_reports("import numpy as np\nimport torch\n" + script)


@pytest.mark.parametrize("script", SEVERAL_CORRECT.values(), ids=SEVERAL_CORRECT.keys())
def test_lint_accepts_the_hardest_of_several_pairs(lint_is_clean, script):
    lint_is_clean("import numpy as np\nimport torch\n" + script, "LOS067")
