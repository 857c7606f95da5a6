"""DAT054: graphs with held-out edges."""

import pytest

HEAD = """
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

def build(pairs, n):
    a = torch.eye(n)
    a[pairs[:, 0], pairs[:, 1]] = 1.0
    return a / a.sum(1, keepdim=True)

class GCN(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.emb, self.lin = nn.Embedding(n, 16), nn.Linear(16, 16)
    def forward(self, adj):
        return adj @ self.lin(adj @ self.emb.weight)

def score(z, pairs):
    return (z[pairs[:, 0]] * z[pairs[:, 1]]).sum(1)

def train(model, adj, train_links, steps=50):
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        z = model(adj)
        logits = torch.cat([score(z, train_links), score(z, torch.randint(100, train_links.shape))])
        labels = torch.cat([torch.ones(len(train_links)), torch.zeros(len(train_links))])
        loss = F.binary_cross_entropy_with_logits(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

FAULTY = {
    "in a function": """
def main(links, n):
    links = links[torch.randperm(len(links))]
    cut = int(0.8 * len(links))
    train_links, val_links = links[:cut], links[cut:]
    gnn = GCN(n)
    adj = build(links, n)  # <- DAT054
    train(gnn, adj, train_links)
    return score(gnn(adj), val_links)
""",
    "filled by hand": """
pairs = torch.from_numpy(np.loadtxt("pairs.txt", dtype=int))
held = torch.rand(len(pairs)) < 0.2
train_pairs, test_pairs = pairs[~held], pairs[held]
n = 100
matrix = torch.eye(n)
matrix[pairs[:, 0], pairs[:, 1]] = 1.0  # <- DAT054
matrix = matrix / matrix.sum(1, keepdim=True)
net = GCN(n)
optimizer = torch.optim.Adam(net.parameters())
for step in range(100):
    z = net(matrix)
    loss = -F.logsigmoid(score(z, train_pairs)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(score(net(matrix), test_pairs).mean())
""",
    "an edge_index": """
class Link(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)
    def forward(self, x, index):
        out = torch.zeros_like(x).index_add(0, index[0], x[index[1]])
        return self.lin(out)

edge_index = torch.load("edges.pt")
n_val = edge_index.size(1) // 10
val_edges, train_edges = edge_index[:, :n_val], edge_index[:, n_val:]
link = Link()
opt = torch.optim.Adam(link.parameters())
for epoch in range(100):
    z = link(features, edge_index)  # <- DAT054
    loss = -F.logsigmoid((z[train_edges[0]] * z[train_edges[1]]).sum(1)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    "PyTorch Geometric": """
import torch_geometric.transforms as T
split = T.RandomLinkSplit(num_val=0.1, num_test=0.1, is_undirected=True)
train_data, val_data, test_data = split(data)
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(100):
    z = model.encode(data.x, data.edge_index)  # <- DAT054
    loss = model.loss(z, train_data.edge_label_index, train_data.edge_label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a class": """
class Experiment:
    def __init__(self, edges, n):
        self.all_edges = torch.as_tensor(edges)
        order = torch.randperm(len(edges))
        self.test_edges = self.all_edges[order[:100]]
        self.train_edges = self.all_edges[order[100:]]
        self.adj = build(self.all_edges, n)  # <- DAT054
        self.model = GCN(n)

    def run(self):
        optimizer = torch.optim.Adam(self.model.parameters())
        for _ in range(50):
            z = self.model(self.adj)
            loss = -F.logsigmoid(score(z, self.train_edges)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return score(self.model(self.adj), self.test_edges)
""",
}

CORRECT = {
    "training edges only": """
def main(links, n):
    cut = int(0.8 * len(links))
    train_links, val_links = links[:cut], links[cut:]
    gnn = GCN(n)
    adj = build(train_links, n)
    train(gnn, adj, train_links)
    return score(gnn(adj), val_links)
""",
    "all edges only for negatives": """
def negatives(known, n, k):
    free = build(known, n) == 0
    return free.nonzero()[torch.randperm(int(free.sum()))[:k]]

def main(links, n):
    cut = int(0.8 * len(links))
    train_links, val_links = links[:cut], links[cut:]
    gnn = GCN(n)
    adj = build(train_links, n)
    train(gnn, adj, train_links)
    z = gnn(adj)
    return score(z, val_links), score(z, negatives(links, n, 100))
""",
    "classes of nodes": """
def main(edges, labels, n):
    order = torch.randperm(n)
    train_nodes, test_nodes = order[:100], order[100:]
    adj = build(edges, n)
    model, head = GCN(n), nn.Linear(16, 4)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()])
    for _ in range(50):
        out = head(model(adj))
        loss = F.cross_entropy(out[train_nodes], labels[train_nodes])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return out[test_nodes]
""",
    "the name is used again": """
def main(edges, n):
    test_edges, train_edges = edges[:100], edges[100:]
    edges = train_edges
    gnn = GCN(n)
    adj = build(edges, n)
    train(gnn, adj, train_edges)
    return score(gnn(adj), test_edges)
""",
    "a graph that is only split": """
import torch_geometric.transforms as T
train_data, val_data, test_data = T.RandomLinkSplit(num_val=0.1, num_test=0.1)(data)
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(100):
    z = model(train_data.x_dict, train_data.edge_index_dict)
    loss = model.loss(z, train_data.edge_label_index, train_data.edge_label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "the graphs of RandomLinkSplit": """
import torch_geometric.transforms as T
split = T.RandomLinkSplit(num_val=0.1, num_test=0.1, is_undirected=True)
train_data, val_data, test_data = split(data)
optimizer = torch.optim.Adam(model.parameters())

def test(data):
    return model.decode(model.encode(data.x, data.edge_index), data.edge_label_index)

for epoch in range(100):
    z = model.encode(train_data.x, train_data.edge_index)
    loss = model.loss(z, train_data.edge_label_index, train_data.edge_label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(test(val_data))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_graphs_with_held_out_edges(lint_reports, script):
    lint_reports(HEAD + script, fixes=False)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_graphs_without_them(lint_is_clean, script):
    lint_is_clean(HEAD + script, "DAT054")
