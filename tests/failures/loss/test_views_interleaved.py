"""LOS025: two views of each sample that the loss does not pair."""

import pytest

HEAD = """
import torch
from torch import nn
import torch.nn.functional as F

net = nn.Linear(8, 4)
def similarity(z):
    z = F.normalize(z, dim=1)
    return (z @ z.t()).fill_diagonal_(float("-inf"))
"""
LOSSES = {
    "arange": """
def loss_of(z):
    n = len(z) // 2
    return F.cross_entropy(similarity(z), torch.cat([torch.arange(n) + n, torch.arange(n)]))
""",
    "range": """
def loss_of(z):
    n = len(z) // 2
    return F.cross_entropy(similarity(z), torch.cat([torch.arange(n, 2 * n), torch.arange(n)]))
""",
    "remainder": """
def loss_of(z):
    n = len(z) // 2
    return F.cross_entropy(similarity(z), (torch.arange(2 * n, device=z.device) + n) % (2 * n))
""",
    "diagonal": """
def loss_of(z):
    batch_size = len(z) // 2
    s = similarity(z)
    positive = torch.cat([torch.diag(s, batch_size), torch.diag(s, -batch_size)])
    return (s.logsumexp(1) - positive).mean()
""",
    "roll": """
def loss_of(z):
    n = len(z) // 2
    return F.cross_entropy(similarity(z), torch.arange(2 * n).roll(n))
""",
}
LOSSES |= {
    "half of the rows": """
def loss_of(z):
    n = z.shape[0]
    return F.cross_entropy(similarity(z), torch.cat([torch.arange(n // 2) + n // 2, torch.arange(n // 2)]))
""",
    "number first": """
def loss_of(z):
    n = len(z) // 2
    return F.cross_entropy(similarity(z), torch.cat([n + torch.arange(n), torch.arange(n)]))
""",
    "two halves": """
def loss_of(z):
    first, second = z.chunk(2)
    return F.cross_entropy(F.normalize(first, dim=1) @ F.normalize(second, dim=1).T, torch.arange(len(first)))
""",
    "split": """
def loss_of(z):
    n = len(z) // 2
    first, second = torch.split(z, [n, n], dim=0)
    return F.cross_entropy(first @ second.T, torch.arange(n))
""",
}
INTERLEAVED = {
    "in turn": """
views = []
for x in rows:
    views += [augment(x), augment(x)]  # <- LOS025
loss = loss_of(net(torch.stack(views)))
""",
    "appended": """
def collate(rows):
    views = []
    for x, _ in rows:
        views.append(augment(x))  # <- LOS025
        views.append(augment(x))
    return torch.stack(views)
loss = loss_of(net(collate(rows)))
""",
    "a comprehension": """
views = torch.stack([augment(x) for x in rows for _ in range(2)])  # <- LOS025
loss = loss_of(net(views))
""",
    "pairs of a dataset": """
class Pairs(torch.utils.data.Dataset):
    def __getitem__(self, i):
        x = self.x[i]
        return torch.stack([self.augment(x), self.augment(x)]), self.y[i]  # <- LOS025
for views, _ in torch.utils.data.DataLoader(Pairs()):
    loss = loss_of(net(views.flatten(0, 1)))
""",
    "at once": "views = torch.stack([a, b], dim=1).flatten(0, 1)  # <- LOS025\nloss = loss_of(net(views))\n",
    "in two lines": """
views = torch.stack((a, b), 1)  # <- LOS025
loss = loss_of(net(views.view(-1, 8)))
""",
}
NEIGHBOURS = """
def loss_of(z):
    n = len(z) // 2
    return F.cross_entropy(similarity(z), torch.arange(2 * n) ^ 1) + 0 * (torch.arange(n) + n).sum()
"""
CORRECT = {
    "concatenated": LOSSES["arange"] + "loss = loss_of(net(torch.cat([a, b])))\n",
    "stacked in front": LOSSES["arange"] + "loss = loss_of(net(torch.stack([a, b], dim=0).flatten(0, 1)))\n",
    "a loss for neighbours": NEIGHBOURS + "loss = loss_of(net(torch.stack([a, b], dim=1).flatten(0, 1)))\n",
    "separated again": LOSSES["arange"]
    + "z = net(torch.stack([a, b], dim=1).flatten(0, 1))\nloss = loss_of(torch.cat([z[0::2], z[1::2]]))\n",
    "a list for each view": LOSSES["arange"]
    + """
first, second = [], []
for x in rows:
    first.append(augment(x))
    second.append(augment(x))
loss = loss_of(net(torch.cat([torch.stack(first), torch.stack(second)])))
""",
    "all samples, then all again": LOSSES["arange"]
    + "loss = loss_of(net(torch.stack([augment(x) for _ in range(2) for x in rows])))\n",
    "pairs of a dataset that are transposed": LOSSES["arange"]
    + """
class Pairs(torch.utils.data.Dataset):
    def __getitem__(self, i):
        return torch.stack([self.augment(self.x[i]), self.augment(self.x[i])])
for views in torch.utils.data.DataLoader(Pairs()):
    loss = loss_of(net(views.transpose(0, 1).flatten(0, 1)))
""",
    "gates": """
a_gate, b_gate = h.chunk(2, dim=1)
loss = net(torch.stack([a, b], dim=1).flatten(0, 1)).mean()
""",
    "other dimensions": LOSSES["arange"] + "loss = loss_of(net(torch.stack([a, b], dim=1).flatten(1)))\n",
    "three parts": LOSSES["arange"] + "loss = loss_of(net(torch.stack([a, b, c], dim=1).flatten(0, 1)))\n",
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("script", INTERLEAVED.values(), ids=INTERLEAVED)
def test_lint_reports_interleaved_views(lint_reports, loss, script):
    lint_reports(HEAD + loss + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_views_that_the_loss_pairs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "LOS025")


JOINED_HEAD = """
import torch
import torch.nn.functional as F
"""


def test_lint_reports_neighbours_of_joined_views(lint_reports):
    lint_reports(
        JOINED_HEAD
        + """
def loss_of(a, b):
    z = F.normalize(torch.cat([a, b], dim=0), dim=1)
    return F.cross_entropy(z @ z.t(), torch.arange(len(z)) ^ 1)  # <- LOS025 # <- LOS017
""",
        fixes=False,
    )


@pytest.mark.parametrize(
    "views", ["torch.stack([a, b], dim=1).flatten(0, 1)", "torch.cat([a, b], dim=1).view(-1, 8)"], ids=("stack", "cat")
)
def test_lint_accepts_neighbours_of_interleaved_views(lint_is_clean, views):
    script = f"""
def loss_of(a, b):
    z = F.normalize({views}, dim=1)
    similar = z @ z.t() - 1e9 * torch.eye(len(z))
    return F.cross_entropy(similar, torch.arange(len(z)) ^ 1)
"""
    lint_is_clean(JOINED_HEAD + script, "LOS025")


ELSEWHERE = """
def nt_xent(z):
    similar = (z @ z.T).masked_fill(torch.eye(len(z)).bool(), -1e9)
    return F.cross_entropy(similar, torch.arange(len(z)) ^ 1)MARK

def train(net, augment, optimizer, x):
    z = net(JOIN)
    optimizer.zero_grad()
    nt_xent(z).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "join", ["torch.cat([augment(x), augment(x)])", "torch.cat((augment(x, 0.2), augment(x, 0.2)), 0)"]
)
def test_lint_reports_neighbours_of_views_that_another_function_joins(lint_reports, join):
    lint_reports(JOINED_HEAD + ELSEWHERE.replace("JOIN", join).replace("MARK", "  # <- LOS025"))


@pytest.mark.parametrize(
    "join",
    [
        "torch.stack([augment(x), augment(x)], 1).flatten(0, 1)",
        "torch.cat([augment(x), augment(x)])[torch.arange(64).view(2, 32).t().flatten()]",
        "torch.cat([x, x.flip(0)])",
    ],
)
def test_lint_accepts_neighbours_of_other_views(lint_is_clean, join):
    lint_is_clean(JOINED_HEAD + ELSEWHERE.replace("JOIN", join).replace("MARK", ""), "LOS025")
