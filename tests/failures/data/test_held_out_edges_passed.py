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


BOTH_DIRECTIONS = {
    "two arrays of nodes, cut by edge numbers in a function": """
def graph(n):
    upper = np.triu(np.random.rand(n, n) < 0.1, 1)
    u, v = np.nonzero(upper | upper.T)
    return torch.from_numpy(u), torch.from_numpy(v)
def split_edges(u, v, share):
    ids = np.random.permutation(len(u))
    n = int(len(ids) * share)
    test_ids, train_ids = ids[:n], ids[n:]
    return torch.stack([u[train_ids], v[train_ids]]), torch.stack([u[test_ids], v[test_ids]])  # <- DAT054
u, v = graph(100)
train_e, test_e = split_edges(u, v, 0.2)
net = GCN(100)
train(net, build(train_e.T, 100), train_e.T)
""",
    "two arrays of nodes, as pairs": """
u, v = torch.randint(100, (400,)), torch.randint(100, (400,))
u, v = torch.cat([u, v]), torch.cat([v, u])
edges = torch.stack([u, v], 1)
edges = torch.cat([edges, edges.flip(1)])
train_edges, test_edges = (edges[:600], edges[600:])  # <- DAT054
net = GCN(100)
train(net, build(train_edges, 100), train_edges)
""",
    "columns of nodes, in one function": """
a = np.random.rand(100, 100) < 0.1
src, dst = np.nonzero(np.maximum(a, a.T))
order = np.random.permutation(len(src))
tr, te = order[200:], order[:200]
train_edges = np.stack([src[tr], dst[tr]], axis=1)
test_edges = np.stack([src[te], dst[te]], axis=1)  # <- DAT054
net = GCN(100)
train(net, build(torch.tensor(train_edges), 100), torch.tensor(train_edges))
""",
    "a symmetric matrix, cut in a function": """
def graph(n):
    upper = np.triu(np.random.rand(n, n) < 0.1, 1)
    return upper | upper.T
def edge_list(adj):
    src, dst = np.nonzero(adj)
    return np.stack([src, dst], axis=1)
def split_edges(edges, share):
    order = np.random.permutation(len(edges))
    n = int(len(edges) * share)
    return edges[order[n:]], edges[order[:n]]  # <- DAT054
train_edges, test_edges = split_edges(edge_list(graph(100)), 0.2)
net = GCN(100)
train(net, build(train_edges, 100), torch.tensor(train_edges))
""",
    "joined with the reverse": """
edges = torch.from_numpy(np.loadtxt("edges.txt", dtype=int))
edges = torch.cat([edges, edges.flip(1)])
order = torch.randperm(len(edges))
edges = edges[order]
n_val = len(edges) // 10
val_edges, train_edges = edges[:n_val], edges[n_val:]  # <- DAT054
net = GCN(100)
train(net, build(train_edges, 100), train_edges)
""",
    "columns, and a mask": """
edge_index = torch.randint(100, (2, 400))
edge_index = torch.cat([edge_index, edge_index[[1, 0]]], dim=1)
held = torch.rand(edge_index.size(1)) < 0.1
train_edge_index = edge_index[:, ~held]
test_edge_index = edge_index[:, held]  # <- DAT054
net = GCN(100)
train(net, build(train_edge_index.t(), 100), train_edge_index.t())
""",
    "appended twice": """
from sklearn.model_selection import train_test_split
class Links:
    def load(self, path):
        links = []
        for line in open(path):
            u, v = map(int, line.split())
            links.append((u, v))
            links.append((v, u))
        train_links, test_links = train_test_split(links, test_size=0.2)  # <- DAT054
        return build(torch.tensor(train_links), 100), test_links
""",
    "a list of tuples": """
import random
friends = [(1, 2), (2, 3), (4, 7), (5, 6)]
links = friends + [(b, a) for a, b in friends]
random.shuffle(links)
train_links, test_links = links[:6], links[6:]  # <- DAT054
graph = build(torch.tensor(train_links), 100)
""",
    "nonzero of a sum": """
a = (torch.rand(100, 100) < 0.05).float()
adj = ((a + a.T) > 0).float()
pairs = adj.nonzero()
perm = torch.randperm(len(pairs))
test_pairs = pairs[perm[:100]]  # <- DAT054
train_pairs = pairs[perm[100:]]
train(GCN(100), build(train_pairs, 100), train_pairs)
""",
}
BOTH_DIRECTIONS["an undirected graph of PyTorch Geometric"] = """
import torch_geometric.transforms as T
from torch_geometric.datasets import Planetoid
graph = Planetoid("data", name="Cora")[0]
transform = T.RandomLinkSplit(num_val=0.05, num_test=0.1)  # <- DAT054
train_data, val_data, test_data = transform(graph)
"""
BOTH_DIRECTIONS["transforms of PyTorch Geometric"] = """
from torch_geometric import transforms as T
transform = T.Compose([T.ToUndirected(), T.RandomLinkSplit(0.05, 0.1, add_negative_train_samples=False)])  # <- DAT054
train_data, val_data, test_data = transform(torch.load("graph.pt", weights_only=False))
"""
ONE_DIRECTION = {
    "two arrays of nodes, one direction kept": """
def graph(n):
    upper = np.triu(np.random.rand(n, n) < 0.1, 1)
    u, v = np.nonzero(upper | upper.T)
    return torch.from_numpy(u), torch.from_numpy(v)
def split_edges(u, v, share):
    keep = u < v
    u, v = u[keep], v[keep]
    ids = np.random.permutation(len(u))
    n = int(len(ids) * share)
    test_ids, train_ids = ids[:n], ids[n:]
    return torch.stack([u[train_ids], v[train_ids]]), torch.stack([u[test_ids], v[test_ids]])
u, v = graph(100)
train_e, test_e = split_edges(u, v, 0.2)
net = GCN(100)
train(net, build(train_e.T, 100), train_e.T)
""",
    "two arrays of nodes of an upper triangle": """
def split_edges(u, v, share):
    ids = np.random.permutation(len(u))
    n = int(len(ids) * share)
    return torch.stack([u[ids[n:]], v[ids[n:]]]), torch.stack([u[ids[:n]], v[ids[:n]]])
u, v = map(torch.from_numpy, np.nonzero(np.triu(np.random.rand(100, 100) < 0.1, 1)))
train_e, test_e = split_edges(u, v, 0.2)
net = GCN(100)
train(net, build(train_e.T, 100), train_e.T)
""",
    "is_undirected": """
import torch_geometric.transforms as T
from torch_geometric.datasets import Planetoid
graph = Planetoid("data", name="Cora")[0]
transform = T.RandomLinkSplit(num_val=0.05, num_test=0.1, is_undirected=True)
train_data, val_data, test_data = transform(graph)
""",
    "an unknown graph": """
import torch_geometric.transforms as T
graph = torch.load("graph.pt", weights_only=False)
train_data, val_data, test_data = T.RandomLinkSplit(0.05, 0.1)(graph)
""",
    "edge types": """
import torch_geometric.transforms as T
kinds = [("user", "rates", "movie")]
graph = T.ToUndirected()(torch.load("graph.pt", weights_only=False))
split = T.RandomLinkSplit(0.05, 0.1, edge_types=kinds, rev_edge_types=[("movie", "rev_rates", "user")])
train_data, val_data, test_data = split(graph)
""",
    "the upper triangle": """
a = (torch.rand(100, 100) < 0.05).float()
adj = ((a + a.T) > 0).float()
pairs = torch.triu(adj, 1).nonzero()
pairs = pairs[torch.randperm(len(pairs))]
test_pairs, train_pairs = pairs[:100], pairs[100:]
train(GCN(100), build(torch.cat([train_pairs, train_pairs.flip(1)]), 100), train_pairs)
""",
    "u < v": """
edges = torch.from_numpy(np.loadtxt("edges.txt", dtype=int))
edges = torch.cat([edges, edges.flip(1)])
edges = edges[edges[:, 0] < edges[:, 1]]
edges = edges[torch.randperm(len(edges))]
val_edges, train_edges = edges[:50], edges[50:]
train(GCN(100), build(train_edges, 100), train_edges)
""",
    "a mask of u < v": """
edge_index = torch.randint(100, (2, 400))
edge_index = torch.cat([edge_index, edge_index.flip(0)], dim=1)
once = edge_index[0] < edge_index[1]
edge_index = edge_index[:, once]
train_edge_index, test_edge_index = edge_index[:, 40:], edge_index[:, :40]
train(GCN(100), build(train_edge_index.t(), 100), train_edge_index.t())
""",
    "the reverse after the cut": """
edges = torch.from_numpy(np.loadtxt("edges.txt", dtype=int))
edges = edges[torch.randperm(len(edges))]
val_edges, train_edges = edges[:50], edges[50:]
train_edges = torch.cat([train_edges, train_edges.flip(1)])
train(GCN(100), build(train_edges, 100), train_edges)
""",
    "a directed graph": """
links = torch.randint(100, (400, 2))
links = links[torch.randperm(len(links))]
test_links, train_links = links[:50], links[50:]
train(GCN(100), build(train_links, 100), train_links)
""",
    "pairs with i < j": """
import random
a = np.random.rand(50, 50) < 0.1
adj = a | a.T
links = [(i, j) for i in range(50) for j in range(i + 1, 50) if adj[i, j]]
random.shuffle(links)
test_links, train_links = links[:20], links[20:]
graph = build(torch.tensor(train_links), 50)
""",
    "the reverse is removed": """
links = [(1, 2), (2, 3), (4, 7), (5, 6)]
links = links + [(b, a) for a, b in links]
test_links, train_links = links[:2], links[2:]
train_links = [(u, v) for u, v in train_links if (v, u) not in test_links]
graph = build(torch.tensor(train_links), 100)
""",
    "the entries are set to 0": """
a = np.random.rand(50, 50) < 0.1
adj = a | a.T
edges = np.argwhere(adj)
np.random.shuffle(edges)
train_edges, test_edges = edges[20:], edges[:20]
known = np.zeros((50, 50), dtype=bool)
known[train_edges[:, 0], train_edges[:, 1]] = True
known = known | known.T
known[test_edges[:, 0], test_edges[:, 1]] = False
known[test_edges[:, 1], test_edges[:, 0]] = False
""",
}


@pytest.mark.parametrize("script", BOTH_DIRECTIONS.values(), ids=BOTH_DIRECTIONS)
def test_lint_reports_splits_of_edges_in_both_directions(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", ONE_DIRECTION.values(), ids=ONE_DIRECTION)
def test_lint_accepts_splits_of_edges_in_one_direction(lint_is_clean, script):
    lint_is_clean(HEAD + script, "DAT054")
