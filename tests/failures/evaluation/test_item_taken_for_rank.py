"""EVL032: the item in a place instead of the place of an item."""

import pytest

HEAD = """
import math
import numpy as np
import torch

"""

FAULTY = {
    "rows and targets": """
def evaluate(scores, target, k=10):
    rows = torch.arange(len(scores))
    order = scores.argsort(dim=1, descending=True)
    rank = order[rows, target]  # <- EVL032
    hit = (rank < k).float()
    return hit.mean(), (hit / torch.log2(rank.float() + 2)).mean()
""",
    "gather, for MRR": """
def mrr(logits, answers):
    sorted_ids = torch.argsort(logits, dim=-1, descending=True)
    place = sorted_ids.gather(1, answers.unsqueeze(1)).squeeze(1) + 1  # <- EVL032
    return (1.0 / place.float()).mean()
""",
    "a loop over users": """
def hit_rate(model, test_items, k):
    hits = 0
    for user, item in test_items.items():
        scores = model(user)
        best_first = np.argsort(-scores.numpy())
        if best_first[item] < k:  # <- EVL032
            hits += 1
    return hits / len(test_items)
""",
    "the indices of a sort": """
class Metric:
    def update(self, scores, labels):
        _, ranking = scores.sort(dim=1, descending=True)
        found = ranking[torch.arange(len(labels)), labels]  # <- EVL032
        self.hits += (found < 10).sum()
        self.dcg += (1 / torch.log2(found + 2.0)).sum()
""",
    "a function that returns the rank": """
def rank_of(scores, target):
    return torch.sort(scores, descending=True).indices[target].item() + 1  # <- EVL032

ranks = [rank_of(torch.randn(9), t) for t in (1, 4)]
""",
    "a list of ranks": """
ranks = []
for query, gold in [(torch.randn(9), 3), (torch.randn(9), 5)]:
    order = torch.argsort(query, descending=True).tolist()
    ranks.append(order[gold])  # <- EVL032
print(sum(1 / (r + 1) for r in ranks))
""",
    "pairs on the diagonal": """
def recall(images, texts, k=5):
    similarity = images @ texts.T
    labels = torch.arange(len(images))
    order = similarity.argsort(1, descending=True)
    ranks = order[torch.arange(len(images)), labels]  # <- EVL032
    return (ranks < k).float().mean()
""",
}
CORRECT = {
    "argsort of argsort": """
def evaluate(scores, target, k=10):
    rows = torch.arange(len(scores))
    order = scores.argsort(dim=1, descending=True)
    rank = order.argsort(dim=1)[rows, target]
    return (rank < k).float().mean()
""",
    "both in one line": """
def evaluate(scores, target, k=10):
    rank = (-scores).argsort(1).argsort(1).gather(1, target[:, None])
    return (rank < k).float().mean()
""",
    "the place of the target": """
def evaluate(scores, target):
    order = scores.argsort(dim=1, descending=True)
    rank = (order == target[:, None]).nonzero()[:, 1]
    return (1 / (rank + 1.0)).mean()
""",
    "an inverse": """
def restore(outputs, lengths, target):
    perm = torch.randperm(len(outputs))
    place = torch.argsort(perm)
    position = place[target]
    return outputs[perm][position], position < 3
""",
    "scattered ranks": """
def ranks(scores, target):
    order = scores.argsort(descending=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    return rank[target] < 10
""",
    "the best item": """
def top(scores, n_train):
    order = scores.argsort(descending=True)
    return order[0] < n_train, [order[i] < n_train for i in range(10)]
""",
    "gains in order": """
def ndcg(scores, labels, k=10):
    order = scores.argsort(descending=True)[:k]
    gains = labels[order]
    return (gains / torch.log2(torch.arange(len(order)) + 2)).sum()
""",
    "the larger scores": """
def rank(scores, target):
    return (scores > scores[target]).sum() + 1
""",
    "items by rank": """
def retrieved(scores, ranks):
    order = scores.argsort(descending=True)
    item = order[ranks]
    return item
""",
    "ids of a list": """
def rank(scores, target):
    order = scores.argsort(descending=True).tolist()
    return order.index(target) + 1
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)
