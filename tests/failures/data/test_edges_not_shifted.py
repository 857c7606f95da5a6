"""DAT066: edges of joined graphs whose indices are not shifted."""

import pytest

FAULTY = {
    "lists in a loop": """
def collate(graphs):
    xs, edges = [], []
    for g in graphs:
        xs.append(g.x)
        edges.append(g.edge_index)  # <- DAT066
    return torch.cat(xs), torch.cat(edges, dim=1)
""",
    "comprehensions": """
def collate(batch):
    x = torch.cat([g["x"] for g in batch], dim=0)
    edge_index = torch.cat([g["edge_index"] for g in batch], dim=-1)  # <- DAT066
    return x, edge_index
""",
    "tuples, of edges in rows": """
class Collate:
    def __call__(self, samples):
        node_feats, edge_lists = [], []
        for feats, edges, label in samples:
            node_feats.append(feats)
            edge_lists.append(edges.long())  # <- DAT066
        return np.concatenate(node_feats, axis=0), np.concatenate(edge_lists, axis=0)
""",
}
CORRECT = {
    "shifted": """
def collate(graphs):
    xs, edges, n = [], [], 0
    for g in graphs:
        xs.append(g.x)
        edges.append(g.edge_index + n)
        n += g.x.size(0)
    return torch.cat(xs), torch.cat(edges, dim=1)
""",
    "shifted in place": """
def collate(graphs):
    xs, edges, n = [], [], 0
    for x, edge_index in graphs:
        edge_index += n
        n += len(x)
        xs.append(x)
        edges.append(edge_index)
    return torch.cat(xs), torch.cat(edges, dim=1)
""",
    "shifted afterwards": """
def collate(graphs):
    x = torch.cat([g.x for g in graphs])
    sizes = torch.tensor([len(g.x) for g in graphs])
    counts = torch.tensor([g.edge_index.size(1) for g in graphs])
    edges = torch.cat([g.edge_index for g in graphs], dim=1)
    return x, edges + torch.repeat_interleave(sizes.cumsum(0) - sizes, counts)
""",
    "edges of one graph": """
def join(x, relations):
    edge_index = torch.cat([r.edge_index for r in relations], dim=1)
    edge_attr = torch.cat([r.edge_attr for r in relations])
    return x, edge_index, edge_attr
""",
    "features of edges": """
def join(graphs):
    x = torch.cat([g.x for g in graphs])
    return x, torch.cat([g.edge_attr for g in graphs], dim=0)
""",
    "features that stand side by side": """
def join(parts):
    x = torch.cat([p.x for p in parts], dim=1)
    return x, torch.cat([p.edge_index for p in parts], dim=1)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_edges_that_are_not_shifted(lint_reports, script):
    lint_reports("import numpy as np\nimport torch\n" + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_shifted_edges(lint_is_clean, script):
    lint_is_clean("import numpy as np\nimport torch\n" + script, "DAT066")
