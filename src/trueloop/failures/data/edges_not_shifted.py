"""Graphs are joined to one batch, but the indices in their edges are not shifted, so all edges join the first nodes.

What you see
    A graph network is no better than one without edges, except with a batch size of 1. The result depends on the order
    of the graphs in a batch.

Why it happens
    Each graph numbers its nodes from 0. In the joined features, the nodes of the second graph begin behind those of the
    first, but its edges still begin at 0. All indices are within the range, so nothing raises an error.

Fix
    Add the number of nodes of all earlier graphs, or let ``torch_geometric.data.Batch`` join the graphs.

        edges.append(graph.edge_index + offset)
        offset += len(graph.x)

When this is fine
    - The indices are shifted, before or after they are joined.
    - Several sets of edges of one graph, whose nodes are not joined.
    - The indices are of nodes of one large graph.

How it is detected
    Only the linter finds it: a function joins the edges of graphs, called so, along the dimension of the edges, and the
    features of their nodes along dimension 0, by ``torch.cat`` of lists to which one loop, or comprehensions of one
    list, add both unchanged. It is silent if the function has a sum or a word of a shift.

References
    torch_geometric, "Advanced Mini-Batching",
    https://pytorch-geometric.readthedocs.io/en/latest/advanced/batching.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import integer, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_EDGES: Final = re.compile(r"edge_?(index|list|idx|indices)|edges|adj_list", re.IGNORECASE)
_NODES: Final = re.compile(r"(^|_)(x|xs|feats?|features?|nodes?|h|atoms?|pos)($|_)|node_?(x|feat|attr)", re.IGNORECASE)
_SHIFT: Final = re.compile(r"offset|shift|cumsum|cum_|ptr|base|start|accumulate|inc\b|n_so_far|slices", re.IGNORECASE)
_JOINING: Final = frozenset(("cat", "concat", "concatenate", "hstack", "vstack"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each join of edges whose indices are those of single graphs."""
    for call in source.all_calls:
        if last_name(call.func) not in _JOINING or not call.args or not _EDGES.search(ast.unparse(call.args[0])):
            continue
        function = function_of(source, call)
        edges, graphs = _joined(function, call, _EDGES)
        sums = [each for each in nodes_in(function, ast.BinOp, ast.AugAssign) if isinstance(each.op, ast.Add)]
        if (
            edges is None
            or any(_EDGES.search(ast.unparse(each)) for each in sums)
            or _SHIFT.search(ast.unparse(function))
        ):
            continue
        if any(_joined(function, each, _NODES)[1] == graphs for each in nodes_in(function, ast.Call)):
            yield Hit(
                message=f"`{ast.unparse(call)}` joins the edges of several graphs, but `{ast.unparse(edges)}` "
                "numbers the nodes of each graph from 0: all edges join the nodes of the first graphs.",
                node=edges,
                related=((call, "joined here"),),
            )


def _joined(function: ast.AST, call: ast.Call, names: re.Pattern[str]) -> tuple[ast.expr | None, str]:
    """Return what ``torch.cat`` joins for each graph, if it is called so and unchanged, and the loop over the graphs.

    Features of nodes are joined along dimension 0.
    """
    dimensions = [*call.args[1:2], *(each.value for each in call.keywords if each.arg in ("dim", "axis"))]
    is_wrong = names is _NODES and any(integer(each) != 0 for each in dimensions)
    if last_name(call.func) not in _JOINING or not call.args or is_wrong:
        return None, ""
    pairs: list[tuple[ast.expr, Any]] = []
    if isinstance(call.args[0], ast.ListComp | ast.GeneratorExp):
        pairs = [(call.args[0].elt, call.args[0].generators[0])]
    for loop in nodes_in(function, ast.For):
        appended = [each for each in nodes_in(loop, ast.Call) if last_name(each.func) == "append" and each.args]
        added = [e.args[0] for e in appended if ast.unparse(e.func) == f"{ast.unparse(call.args[0])}.append"]
        pairs += [(each, loop) for each in added]
    value, loop = pairs[0] if len(pairs) == 1 else (None, None)
    is_cast = isinstance(value, ast.Call) and last_name(value.func) in ("to", "long", "clone")
    read = getattr(value.func, "value", None) if is_cast else value  # type: ignore[union-attr]
    read = read.slice if isinstance(read, ast.Subscript) else read
    name = getattr(read, "value", "") if isinstance(read, ast.Constant) else last_name(read)
    is_named = isinstance(read, ast.Name | ast.Attribute | ast.Constant) and names.search(str(name))
    return (
        (value, f"{ast.unparse(loop.target)} in {ast.unparse(loop.iter)}")
        if loop is not None and is_named
        else (None, "")
    )


RULE = Rule(required_words=("edge|adj_list", "cat(|concat(|concatenate(|hstack(|vstack(", "for "), find=find)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader


def graph(number):
    generator = torch.Generator().manual_seed(number)
    edges = torch.randint(6, (2, 9), generator=generator)
    return {"x": torch.randn(6, 4, generator=generator), "edge_index": edges, "y": number % 2}


def collate(graphs):
    xs, edges = [], []
    for each in graphs:
        xs.append(each["x"])
        edges.append(each["edge_index"])
    return torch.cat(xs), torch.cat(edges, dim=1), torch.tensor([each["y"] for each in graphs])


torch.manual_seed(0)
first, last = nn.Linear(4, 16), nn.Linear(16, 2)
optimizer = torch.optim.Adam([*first.parameters(), *last.parameters()], lr=0.001)
for x, edges, y in DataLoader([graph(number) for number in range(128)], 16, shuffle=True, collate_fn=collate):
    hidden = first(x)
    hidden = hidden.index_add(0, edges[1], hidden[edges[0]]).relu().view(len(y), 6, 16).mean(1)
    optimizer.zero_grad()
    nn.functional.cross_entropy(last(hidden), y).backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="DAT066",
    title="Edges of joined graphs are not shifted",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "xs, edges = [], []": "xs, edges, offset = [], [], 0",
            'each["edge_index"])': 'each["edge_index"] + offset)\n        offset += len(each["x"])',
        },
    ),
    fix="Add the number of nodes of all earlier graphs to the edges of each graph.",
    rule=RULE,
)
