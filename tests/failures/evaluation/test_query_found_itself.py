"""EVL030: nearest neighbours that are the samples themselves."""

import pytest

HEAD = """
import torch
from torch.nn import functional as F

z = F.normalize(torch.randn(100, 8), dim=1)
y = torch.randint(5, (100,))
other, other_y = F.normalize(torch.randn(50, 8), dim=1), torch.randint(5, (50,))
"""

FAULTY = {
    "a product": """
nearest = (z @ z.T).argmax(1)
print((y[nearest] == y).float().mean())  # <- EVL030
""",
    "distances in a function": """
def recall(features, labels):
    distances = torch.cdist(features, features)
    index = distances.argmin(dim=1)
    return labels[index].eq(labels).float().mean()  # <- EVL030
""",
    "several neighbours": """
@torch.no_grad()
def recall_at_k(net, x, labels, k=5):
    emb = net(x)
    sim = torch.matmul(emb, emb.t())
    _, idx = sim.topk(k, dim=1)
    return (labels[idx] == labels.unsqueeze(1)).any(1).float().mean()  # <- EVL030
""",
}

CORRECT = {
    "a gallery": """
nearest = (z @ other.T).argmax(1)
print((other_y[nearest] == y).float().mean())
""",
    "without the diagonal": """
similarity = z @ z.T
similarity.fill_diagonal_(-2)
print((y[similarity.argmax(1)] == y).float().mean())
""",
    "the first neighbour is dropped": """
index = (z @ z.T).topk(6).indices[:, 1:]
print((y[index] == y[:, None]).any(1).float().mean())
""",
    "a mask": """
similarity = (z @ z.T).masked_fill(torch.eye(100).bool(), -1)
print((y[similarity.argmax(1)] == y).float().mean())
""",
    "text and image of one pair": """
similarity = z[:50] @ other.T
print((similarity.argmax(1) == torch.arange(50)).float().mean())
""",
    "the class of the largest output": """
print((y[z.argmax(1)] == y).float().mean())
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_searches_among_the_same_samples(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_other_searches(lint_is_clean, script):
    lint_is_clean(HEAD + script)
