"""The graph of a link prediction contains the held-out edges: the adjacency is built from all edges.

What you see
    The score for test links is very good, and much better than for links that are added to the graph later.

Why it happens
    A graph network sends messages along the edges of its adjacency. If the edges that it shall predict are among them,
    the embeddings of two linked nodes have exchanged messages, and the decoder only has to notice this. No error is
    raised, since nodes and sizes are the same. The same happens
    if the list has each edge as (u, v) and as (v, u), and both are split separately: the training part has most
    held-out edges in reverse.

Fix
    Build the adjacency from the training edges only:

        adj = normalized_adjacency(train_edges, n_nodes)

    Split a list that has each edge once, with u < v, and add the reverse edges to the training part after that.
    ``RandomLinkSplit`` returns such graphs: use ``train_data.edge_index``, not that of the graph before the split.

When this is fine
    - Classification of nodes, where the edges are known for all nodes.
    - All edges are used only to draw negative samples, or to filter known links in a ranking.
    - The final model for new links, which is not tested.

How it is detected
    Only the linter finds it, from the source code: edges, links or pairs are cut into a training part and a held-out
    part, and a model is called with an adjacency that is built from the array before the cut, or with this array. The
    same goes for ``RandomLinkSplit`` and the ``edge_index`` of the graph that it got. It also reports such a cut of a
    list that has each edge in both directions: the list is joined with its reverse, or read from a symmetric matrix,
    and no part of it, such as ``triu`` or ``u < v``, selects one direction before the cut. ``RandomLinkSplit`` without
    ``is_undirected=True`` is reported for graphs that are known to be undirected, such as Planetoid's.

References
    Zhang and Chen, "Link Prediction Based on Graph Neural Networks", 2018, arXiv:1802.09691
    Kipf and Welling, "Variational Graph Auto-Encoders", 2016, arXiv:1611.07308
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import assigned_pairs, function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import computed_from, enclosing_nodes, origins, possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in, walk
from trueloop.failures.data.held_out_edges_passed.mirrored_edges import mirrored
from trueloop.failures.failure import Failure, Rule, Severity, changed

_EDGES: Final = re.compile(r"edge|link|pair|interact|triple|(^|_)pos(_|$)|ratings?", re.IGNORECASE)
_HELD_OUT: Final = re.compile(r"(^|_)(test|val|valid|validation|held|heldout|eval|te|va)(_|$|\d)", re.IGNORECASE)
_TRAINING: Final = re.compile(r"(^|_)(train|training|tr|fit|message|msg|observed)(_|$|\d)", re.IGNORECASE)
_MODEL: Final = re.compile(
    r"(^|_)(model|net|network|encoder|gnn|gcn|gae|vgae|gat|sage|encode|forward)\d?$", re.IGNORECASE
)
_OTHER_USE: Final = re.compile(r"neg|sampl|split|seen|known|filter|shuffle|len|print|permut|score|rank|decode", re.I)
_CONVERSIONS: Final = frozenset((
    "from_numpy", "tensor", "as_tensor", "LongTensor", "array", "asarray", "long", "to", "t", "contiguous", "clone",
    "astype", "numpy", "cuda", "to_undirected", "transpose", "cat", "flip", "stack", "int", "T",
))  # fmt: skip
_EDGE_ATTRIBUTES: Final = ("edge_index", "adj_t", "edge_index_dict", "adj_t_dict")
_UNDIRECTED: Final = frozenset(("Planetoid", "Amazon", "Coauthor", "ToUndirected", "to_undirected"))
"""Transforms and data sets of PyTorch Geometric with each edge in both directions."""
_MAX_DEPTH: Final = 5


class _Split(NamedTuple):
    """Edges that are cut into a training part and a held-out part."""

    base: ast.expr
    held_out: ast.expr
    is_graph: bool = False
    """Whether the base is a graph of PyTorch Geometric, whose ``edge_index`` has all edges."""
    cut: ast.expr | None = None
    """The base where the held-out part is cut from it."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each adjacency of all edges that a model gets, and each split of edges that are listed twice."""
    yield from _of_all_edges(source)
    yield from _both_directions(source)
    yield from _undirected_link_splits(source)


def _of_all_edges(source: SourceFile) -> Iterator[Hit]:
    """Yield each adjacency of all edges that a model gets, and each model call with the graph before the split."""
    reported: set[int] = set()
    for split in (*_splits(source), *_link_splits(source)):
        for filled, container in _filled(source, split):
            if id(filled) not in reported and _is_passed(source, container):
                reported.add(id(filled))
                yield _hit(filled, split)
        for call in source.all_calls:
            used = _full_argument(source, call, split)
            if used is None or id(call) in reported or _OTHER_USE.search(last_name(call.func)):
                continue
            if _is_model_call(source, call) or (not split.is_graph and _reaches_model(source, call)):
                reported.add(id(call))
                yield _hit(call, split)


def _both_directions(source: SourceFile) -> Iterator[Hit]:
    """Yield each split of a list that has the edges of an undirected graph in both directions."""
    for split in (*_splits(source), *_returned_splits(source)):
        added = mirrored(source, split.cut) if split.cut is not None and not _removes_reverse(source, split) else None
        if added is not None and split.cut is not None:
            yield Hit(
                message=f"`{ast.unparse(split.cut)}` has each edge as (u, v) and as (v, u), and both are split "
                f"separately: most edges in `{ast.unparse(split.held_out)}` are in the training graph in reverse.",
                node=split.cut,
                related=((added, "both directions are listed here"), (split.held_out, "held out here")),
            )


def _undirected_link_splits(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``RandomLinkSplit`` that splits an undirected graph as if it were directed."""
    for call in source.calls_of("torch_geometric.transforms.RandomLinkSplit"):
        names = [each.arg for each in call.keywords]
        parent = source.parents.get(id(call))
        together = parent.elts[: parent.elts.index(call)] if isinstance(parent, ast.List) else []
        used = [
            each
            for each in source.all_calls
            if each.args and any(value is call for value in (each.func, *possible_values(source, each.func)))
        ]
        graphs = [node for each in used for node in computed_from(source, each.args[0], 3)]
        made = [each for each in (*together, *graphs) if isinstance(each, ast.Call)]
        undirected = next((each for each in made if last_name(each.func) in _UNDIRECTED), None)
        if undirected is not None and len(call.args) < 3 and not {"is_undirected", "edge_types", None} & {*names}:
            yield Hit(
                message="The graph has each edge in both directions, but `RandomLinkSplit` takes it for a directed one "
                "without `is_undirected=True`: most held-out edges are in the training graph in reverse.",
                node=call,
                related=((undirected, "an undirected graph"),),
            )


def _returned_splits(source: SourceFile) -> Iterator[_Split]:
    """Yield the edges that a function cuts into the parts that it returns, if a caller names them like a split."""
    for statement in source.nodes_of(ast.Return):
        parts = [_cut(each) for each in statement.value.elts] if isinstance(statement.value, ast.Tuple) else []
        cuts = [each for each in parts if isinstance(each, ast.Subscript) and _is_part(each.slice)]
        texts = {ast.unparse(each.value) for each in cuts}
        name = getattr(function_of(source, statement), "name", "")
        if len(cuts) < 2 or len(cuts) != len(parts) or len(texts) != 1:
            continue
        for call in definitions(source).calls.get(name, []):
            parent = source.parents.get(id(call))
            target = parent.targets[0] if isinstance(parent, ast.Assign) else None
            names = [last_name(each) for each in target.elts] if isinstance(target, ast.Tuple) else []
            held_out = [each for each in getattr(target, "elts", ()) if _HELD_OUT.search(last_name(each))]
            is_edges = any(_EDGES.search(each) for each in [*names, name, last_name(cuts[0].value)])
            if held_out and is_edges and any(map(_TRAINING.search, names)):
                yield _Split(cuts[0].value, held_out[0], cut=cuts[0].value)
                break


def _removes_reverse(source: SourceFile, split: _Split) -> bool:
    """Return True if the program looks the held-out edges up, or sets their entries of a matrix."""
    name = last_name(split.held_out)
    for each in source.nodes_of(ast.Compare, ast.Assign, ast.Call):
        match each:
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[looked_up]):
                used = [n for n in computed_from(source, looked_up, 2) if isinstance(n, ast.Name) and n.id == name]
            case ast.Assign(targets=[ast.Subscript(slice=index)], value=ast.Constant(value=False | 0)):
                used = [n for n in computed_from(source, index, 2) if isinstance(n, ast.Name) and n.id == name]
            case ast.Call(func=func) if last_name(func) in ("isin", "in1d", "remove_edges_from", "difference"):
                used = [n for n in nodes_in(each, ast.Name) if n.id == name]
            case _:
                continue
        if used:
            return True
    return False


def _hit(node: ast.AST, split: _Split) -> Hit:
    return Hit(
        message=f"`{ast.unparse(node)[:80]}` takes all edges, also those held out as `{ast.unparse(split.held_out)}`: "
        "the model passes messages along the links that it shall predict.",
        node=node,
        related=((split.held_out, "held out here"),),
    )


def _filled(source: SourceFile, split: _Split) -> Iterator[tuple[ast.Assign, ast.expr]]:
    """Yield each ``adj[edges[:, 0], edges[:, 1]] = 1`` with all edges, and the matrix that it fills."""
    for statement in source.nodes_of(ast.Assign):
        target = statement.targets[0]
        if not isinstance(target, ast.Subscript) or not isinstance(target.value, ast.Name):
            continue
        read = [each for each in walk(target.slice) if isinstance(each, ast.Name | ast.Attribute)]
        if any(_is_full(source, each, split, _MAX_DEPTH) for each in read):
            yield statement, target.value


def _is_passed(source: SourceFile, matrix: ast.expr) -> bool:
    """Return True if a model gets a matrix, also after it was normalised."""
    function, name = function_of(source, matrix), last_name(matrix)
    for call in source.all_calls:
        if _is_model_call(source, call):
            nodes = (e for a in call.args for e in computed_from(source, a, 3) if isinstance(e, ast.Name))
            if any(each.id == name and function_of(source, each) is function for each in nodes):
                return True
    return False


def _splits(source: SourceFile) -> Iterator[_Split]:
    """Yield the arrays of edges from which a training part and a held-out part are cut by position or mask."""
    found: dict[tuple[int, str], list[tuple[ast.expr, ast.expr]]] = {}
    for statement in source.nodes_of(ast.Assign):
        function = id(function_of(source, statement))
        for target, value in assigned_pairs(statement):
            part = _cut(value)
            if isinstance(part, ast.Subscript) and _is_part(part.slice) and dotted_name(part.value):
                found.setdefault((function, dotted_name(part.value)), []).append((target, part.value))
            is_cut = isinstance(part, ast.Call) and last_name(part.func) == "train_test_split" and part.args
            if is_cut and isinstance(target, ast.Tuple) and isinstance(part, ast.Call) and dotted_name(part.args[0]):
                key = function, dotted_name(part.args[0])
                found.setdefault(key, []).extend((each, part.args[0]) for each in target.elts[:2])
    for parts in found.values():
        names = [last_name(target) for target, _ in parts]
        held_out = [(target, base) for target, base in parts if _HELD_OUT.search(last_name(target))]
        is_edges = any(_EDGES.search(each) for each in [*names, last_name(parts[0][1])])
        if is_edges and held_out and any(map(_TRAINING.search, names)):
            yield _Split(parts[0][1], held_out[0][0], cut=held_out[0][1])


def _link_splits(source: SourceFile) -> Iterator[_Split]:
    """Yield the ``edge_index`` of each graph that PyTorch Geometric's ``RandomLinkSplit`` splits."""
    for statement in source.nodes_of(ast.Assign):
        value, target = statement.value, statement.targets[0]
        if isinstance(value, ast.Call) and len(value.args) == 1 and isinstance(target, ast.Tuple):
            makers = [value.func, *possible_values(source, value.func)]
            made = any(isinstance(each, ast.Call) and last_name(each.func) == "RandomLinkSplit" for each in makers)
            if made and isinstance(value.args[0], ast.Name) and last_name(target.elts[0]) != value.args[0].id:
                yield _Split(value.args[0], target.elts[-1], is_graph=True)


def _is_part(index: ast.expr) -> bool:
    """Return True for ``[:n]``, ``[n:]``, ``[:, n:]``, a mask, and a part of a permutation."""
    if isinstance(index, ast.Tuple) and len(index.elts) == 2:
        first, second = index.elts
        whole = [each for each in (first, second) if isinstance(each, ast.Slice) and each.lower is each.upper is None]
        index = second if whole and whole[0] is first else first
        if not whole:
            return False
    if isinstance(index, ast.Slice):
        return (index.lower is None) != (index.upper is None) or index.lower is not None
    return isinstance(index, ast.Name | ast.UnaryOp | ast.Subscript) and not isinstance(
        getattr(index, "operand", None), ast.Constant
    )


def _cut(node: ast.expr) -> ast.expr:
    """Return the part of an array that an expression is; of ``torch.stack([u[rows], v[rows]])``, the first one."""
    part = _unconverted(node)
    match part:
        case (
            ast.List(elts=[ast.Subscript() as first, ast.Subscript() as second])
            | ast.Tuple(elts=[ast.Subscript() as first, ast.Subscript() as second])
        ):
            return first if ast.unparse(first.slice) == ast.unparse(second.slice) else part
        case _:
            return part


def _unconverted(node: ast.expr) -> ast.expr:
    while True:
        match node:
            case ast.Call(func=ast.Attribute(value=inner, attr=name), args=args) if name in _CONVERSIONS:
                is_library = isinstance(inner, ast.Name) and inner.id in ("torch", "np", "numpy")
                if is_library and not args:
                    return node
                node = args[0] if is_library else inner
            case ast.Attribute(value=inner, attr="T"):
                node = inner
            case _:
                return node


def _full_argument(source: SourceFile, call: ast.Call, split: _Split) -> ast.expr | None:
    """Return the part of a call's arguments that is all edges; None if there is none."""
    for argument in (*call.args, *(each.value for each in call.keywords)):
        for node in nodes_in(argument, ast.Name, ast.Attribute):
            has_edges = not split.is_graph or getattr(source.parents.get(id(node)), "attr", "") in _EDGE_ATTRIBUTES
            if has_edges and _is_whole(source, node, call) and _is_full(source, node, split, _MAX_DEPTH):
                return node
    return None


def _is_whole(source: SourceFile, node: ast.expr, call: ast.Call) -> bool:
    """Return True unless only a part or the size of a variable goes into a call, or an inner call gets it."""
    parent: Any = source.parents.get(id(node))
    while parent is not None and parent is not call:
        match parent:
            case ast.Attribute(attr=attr) if attr not in _CONVERSIONS:
                return attr in _EDGE_ATTRIBUTES
            case ast.Subscript(slice=index) if _is_part(index):
                return False
            case ast.Call() if last_name(parent.func) not in _CONVERSIONS:
                return False
            case ast.Compare() | ast.Lambda():
                return False
            case _:
                parent = source.parents.get(id(parent))
    return True


def _is_full(source: SourceFile, node: ast.expr, split: _Split, depth: int) -> bool:
    """Return True for the array that was split, also converted or under another name."""
    name, base = dotted_name(node), dotted_name(split.base)
    if not name or not depth:
        return False
    if isinstance(split.base, ast.Name) and name == base:
        return _same_variable(source, node, split.base)
    if isinstance(split.base, ast.Attribute) and isinstance(node, ast.Attribute) and node.attr == split.base.attr:
        owners = {
            ast.unparse(e.value)
            for e in nodes_in(function_of(source, split.base), ast.Attribute)
            if e.attr == node.attr
        }
        return owners == {"self"} or name == base
    values = [_unconverted(each) for each in possible_values(source, node)]
    return bool(values) and all(
        isinstance(each, ast.Name | ast.Attribute) and _is_full(source, each, split, depth - 1) for each in values
    )


def _same_variable(source: SourceFile, node: ast.expr, base: ast.Name) -> bool:
    """Return True if two nodes read one variable with the same values."""
    function, owner = function_of(source, node), function_of(source, base)
    first, second = (set(map(id, possible_values(source, each))) for each in (node, base))
    if function is not owner:
        parameters = [each.arg for each in function.args.args] if isinstance(function, ast.FunctionDef) else []
        return owner is source.tree and base.id not in parameters and bool(first) and first == second
    return first == second


def _is_model_call(source: SourceFile, call: ast.Call) -> bool:
    """Return True for a call of a module, by its name or what it calls."""
    if _MODEL.search(last_name(call.func)):
        return last_name(call.func) not in definitions(source).functions
    made = [each for each in possible_values(source, call.func) if isinstance(each, ast.Call)]
    known = definitions(source).classes
    classes = [known[last_name(each.func)] for each in made if last_name(each.func) in known]
    return any(isinstance(e, ast.FunctionDef) and e.name == "forward" for each in classes for e in each.body)


def _reaches_model(source: SourceFile, call: ast.Call) -> bool:
    """Return True if the result of a call is an argument of a model call, directly or through a variable."""
    around = [each for each in enclosing_nodes(source, call) if isinstance(each, ast.Call)]
    if any(_is_model_call(source, each) for each in around):
        return True
    statement = source.statement_of(call)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    names = [last_name(target) for target in targets if last_name(target)]
    for other in source.all_calls if names else ():
        for argument in (*other.args, *(e.value for e in other.keywords)) if _is_model_call(source, other) else ():
            found = list(origins(source, argument, _MAX_DEPTH))
            if any(call is each or call in walk(each) for each in found[1:]):
                return True
            if len(found) == 1 and last_name(argument) in names:
                return True
    return False


RULE = Rule(
    required_words=(
        "edge|link|pair|interact",
        "test|val|held",
        "[:|train_test_split|RandomLinkSplit",
        "adj|edge_index|graph|Graph|GCN|gcn|gnn|GNN",
        "torch",
    ),
    find=find,
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
groups = torch.randint(4, (80,))
linked = torch.rand(80, 80) < torch.where(groups[:, None] == groups, 0.3, 0.01)
edges = torch.triu(linked, 1).nonzero()[torch.randperm(int(torch.triu(linked, 1).sum()))]
test_edges, train_edges = edges[:60], edges[60:]


def adjacency(pairs):
    matrix = torch.eye(80)
    matrix[pairs[:, 0], pairs[:, 1]] = matrix[pairs[:, 1], pairs[:, 0]] = 1.0
    return matrix / matrix.sum(1, keepdim=True)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.nodes, self.out = nn.Embedding(80, 16), nn.Linear(16, 16)

    def forward(self, adj):
        return adj @ self.out(torch.relu(adj @ self.nodes.weight))


def score(z, pairs):
    return (z[pairs[:, 0]] * z[pairs[:, 1]]).sum(1)


adj = adjacency(edges)
model = Encoder()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(40):
    z = model(adj)
    scores = torch.cat([score(z, train_edges), score(z, torch.randint(80, train_edges.shape))])
    labels = torch.cat([torch.ones(len(train_edges)), torch.zeros(len(train_edges))])
    loss = nn.functional.binary_cross_entropy_with_logits(scores, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    print("test links", score(model(adj), test_edges).mean().item())
"""

FAILURE = Failure(
    code="DAT054",
    title="Held-out edges are part of the graph",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"adj = adjacency(edges)": "adj = adjacency(train_edges)"}),
    fix="Build the adjacency from the training edges only.",
    rule=RULE,
)
