"""Both embeddings of a pair come from the same view, so a contrastive loss compares a view with itself.

What you see
    The loss falls within a few batches to a value that it should not reach, but a classifier on the embeddings is
    hardly better than one on an untrained network: the encoder never had to ignore what an augmentation changes.

Why it happens
    SimCLR, BYOL, SimSiam, VICReg and MoCo compare two random views of a sample. If both embeddings are computed from
    one of them, by a digit that was not changed or an augmentation that is called only once, they are equal from the
    start. The shapes are right, and the second view is simply not used.

Fix
    Compute the second embedding from the second view.

        z1, z2 = model(view1), model(view1)  # wrong: view2 is not used
        z1, z2 = model(view1), model(view2)  # right

When this is fine
    - Dropout makes the two embeddings differ, as in SimCSE and R-Drop, and there is no second view.
    - An autoencoder gets one tensor as input and as target.
    - Two different layers read one of two inputs, and the other input is not needed.

How it is detected
    Only the linter finds it. It reports two calls of a model, or of a model and its average, with the same view,
    whose results meet in one expression, if a variable, parameter or key of a dictionary whose name differs in its
    last part (``view1`` and ``view2``, ``x_i`` and ``x_j``, ``weak`` and ``strong``) is never read. It also reports a
    list or call with the same view twice, and ``view2 = view1.to(device)`` after ``view1 = view1.to(device)``. For a
    loss with a contrastive name it reports an augmentation that is called once, if the program has no dropout.

References
    Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", 2020, arXiv:2002.05709
    Grill et al., "Bootstrap your own latent", 2020, arXiv:2006.07733
    Gao et al., "SimCSE: Simple Contrastive Learning of Sentence Embeddings", 2021, arXiv:2104.08821
"""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import enclosing_nodes, origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_WORDS: Final = (
    {"weak", "strong"}, {"first", "second"}, {"q", "k"}, {"query", "key"}, {"anchor", "positive"}, {"anc", "pos"},
    {"online", "target"}, {"student", "teacher"}, {"a", "b"}, {"i", "j"}, {"one", "two"}, {"1", "2"}, {"0", "1"},
    {"left", "right"}, {"net", "target"}, {"encoder", "momentum"}, {"orig", "aug"},
)  # fmt: skip
_EXTRA: Final = frozenset(("2", "_2", "_b", "_aug", "_augmented", "_pos", "_positive", "_ema", "_target"))
_PARTS: Final = re.compile(r"[A-Za-z]+?(?=_|\d|$|[A-Z])|\d+|[A-Z][a-z]*")
_AUGMENTS: Final = re.compile(r"aug|transform|distort|crop|jitter|corrupt|perturb", re.IGNORECASE)
_DROPOUT: Final = re.compile(r"dropout|simcse|r_?drop\b", re.IGNORECASE)
_CONTRASTIVE: Final = re.compile(
    r"nt_?xent|info_?nce|contrastive|barlow|vic_?reg|byol|sim_?clr|sim_?siam|neg(?:ative)?_?cos", re.IGNORECASE
)
_AVERAGE: Final = re.compile(r"target|ema|momentum|teacher|averag", re.IGNORECASE)
"""Names of networks that are an average of another one."""
_NO_MODELS: Final = frozenset(
    ("print", "len", "isinstance", "range", "zip", "enumerate", "type", "id", "list", "tuple")
)
_MAX_ROUNDS: Final = 4


class _Use(NamedTuple):
    view: ast.expr
    call: ast.Call
    statement: ast.stmt


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each second embedding that is computed from the view of the first one, and each view that is a copy."""
    is_contrastive = not source.mentions(_DROPOUT) and source.mentions(_CONTRASTIVE)
    keys, calls = _unread_keys(source), _calls_by_function(source)
    has_items = any(_equal_items(source, source.tree))
    functions: list[Any] = [*source.nodes_of(ast.FunctionDef), source.tree]
    for function in functions:
        views, items = _views(calls.get(function, ())), list(_equal_items(source, function)) if has_items else []
        if not views and not items:
            continue
        unread = _unread_names(source, function)
        views = [each for each in views if is_contrastive or _other_view(each, function, unread, keys)]
        yield from _equal_embeddings(source, function, views, unread, keys)
        yield from _contained_twice(source, items, unread)
    yield from _copied(source)
    if is_contrastive:
        yield from _returned_twice(source)


def _calls_by_function(source: SourceFile) -> dict[ast.AST, list[ast.Call]]:
    """Return the calls with arguments, by the function around them."""
    found: dict[ast.AST, list[ast.Call]] = {}
    for call in source.all_calls:
        if call.args:
            found.setdefault(function_of(source, call), []).append(call)
    return found


def _views(calls: Iterable[ast.Call]) -> list[ast.expr]:
    """Return the variables and items that are arguments of calls of a model."""
    return [
        view
        for call in calls
        for view in call.args
        if isinstance(view, ast.Name | ast.Subscript) and _may_be_model(last_name(call.func))
    ]


@lru_cache(maxsize=4096)  # most names of a program occur many times
def _may_be_model(name: str) -> bool:
    return name not in _NO_MODELS and not _AUGMENTS.search(name)


def _equal_embeddings(
    source: SourceFile, function: Any, views: list[ast.expr], unread: set[str], keys: set[str]
) -> Iterator[Hit]:
    uses: dict[str, list[_Use]] = {}
    for view in views:
        call: Any = source.parents.get(id(view))
        uses.setdefault(_canonical(source, view), []).append(_Use(view, call, source.statement_of(view)))
    for found in uses.values():
        found.sort(key=lambda each: (each.call.lineno, each.call.col_offset))
        for first, second in pairwise(found):
            other = _other_view(first.view, function, unread, keys)
            if not _are_alike(first, second) or not (other or _is_called_once(source, first)):
                continue
            if _meet(source, function, first, second, needs_name=not other):
                yield _hit(source, first, second, other)


def _hit(source: SourceFile, first: _Use, second: _Use, other: str) -> Hit:
    view, call = source.text.segment(second.view), source.text.segment(second.call)
    related = ((first.call, "the other embedding"),) if first.call.lineno != second.call.lineno else ()
    if not other:
        message = f"`{call}` embeds `{view}` a second time: the loss compares one view of each sample with itself."
        return Hit(message=message, node=second.call, related=related)
    part: Any = second.view if isinstance(second.view, ast.Name) else second.view.slice  # type: ignore[attr-defined]
    name = part.id if isinstance(part, ast.Name) else str(part.value)
    edit = source.text.replace(part, source.text.segment(part).replace(name, other))
    return Hit(
        message=f"`{call}` embeds `{view}` a second time, and the other view `{other}` is never used: the loss "
        "compares each view with itself.",
        node=second.call,
        related=related,
        fix=Fix((edit,), safe=False, description="Embed the other view"),
    )


def _are_alike(first: _Use, second: _Use) -> bool:
    """Return True for two calls of one model, or of a model and its average, with the same further arguments."""
    if [ast.unparse(each) for each in first.call.args[1:]] != [ast.unparse(each) for each in second.call.args[1:]]:
        return False
    names = last_name(first.call.func), last_name(second.call.func)
    is_average = len({_AVERAGE.search(each) is None for each in names}) == 2
    return ast.unparse(first.call.func) == ast.unparse(second.call.func) or is_average


def _are_twins(first: str, second: str) -> bool:
    """Return True for ``view1`` and ``view2``, ``x_i`` and ``x_j``, ``weak_images`` and ``strong_images``."""
    shorter, longer = sorted((first, second), key=len)
    if shorter and longer.startswith(shorter) and longer.removeprefix(shorter) in _EXTRA:
        return True
    if len(shorter) == 2 and shorter[0] == longer[0] and {shorter[1], longer[1:]} in _WORDS:
        return True  # xi and xj
    parts = [[each.lower() for each in _PARTS.findall(name)] for name in (first, second)]
    if len(parts[0]) != len(parts[1]):
        return False
    different = [{a, b} for a, b in zip(*parts, strict=True) if a != b]
    return len(different) == 1 and different[0] in _WORDS


def _other_view(view: ast.expr, function: Any, unread: set[str], keys: set[str]) -> str:
    """Return the variable, key or index of the second view, which is never read; "" if there is none."""
    match view:
        case ast.Name(id=name):
            found = sorted(each for each in unread if _are_twins(name, each))
        case ast.Subscript(slice=ast.Constant(value=str(key))):
            found = sorted(each for each in keys if _are_twins(key, each))
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=0 | 1 as index)):
            is_pair = re.search(r"view|aug|crop|pair", name, re.IGNORECASE) is not None
            reads = [
                each for each in nodes_in(function, ast.Name) if each.id == name and isinstance(each.ctx, ast.Load)
            ]
            items = [e for e in nodes_in(function, ast.Subscript) if getattr(e.value, "id", "") == name]
            is_only = all(getattr(each.slice, "value", None) == index for each in items)
            found = [str(1 - index)] if is_pair and is_only and len(items) == len(reads) else []
        case _:
            found = []
    return found[0] if len(found) == 1 else ""


def _unread_names(source: SourceFile, function: Any) -> set[str]:
    """Return the parameters and variables of a function that are read only to assign them again."""
    bound = {each.arg for each in nodes_in(getattr(function, "args", ast.Pass()), ast.arg)}
    read = set[str]()
    for each in nodes_in(function, ast.Name):
        if isinstance(each.ctx, ast.Store):
            bound.add(each.id)
        elif each.id not in read:
            statement = source.statement_of(each)
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            is_update = isinstance(statement, ast.Assign | ast.AugAssign) and any(
                name.id == each.id and not _is_index(source, name)
                for target in targets
                if target is not None
                for name in nodes_in(target, ast.Name)
            )
            read |= set() if is_update else {each.id}
    return bound - read


def _is_index(source: SourceFile, node: ast.AST) -> bool:
    """Return True for a node in the index of an item: ``i`` in ``x[i, 0]``."""
    around = [node, *enclosing_nodes(source, node)]
    return any(isinstance(o, ast.Subscript) and o.slice is i for i, o in pairwise(around))


def _unread_keys(source: SourceFile) -> set[str]:
    """Return the keys of dictionaries that the program fills and never reads."""
    filled = {
        each.value
        for node in source.nodes_of(ast.Dict)
        for each in node.keys
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }
    read = set[str]()
    for node in source.nodes_of(ast.Subscript) if filled else ():
        key = getattr(node.slice, "value", None)
        (read if isinstance(node.ctx, ast.Load) else filled).update([key] if isinstance(key, str) else [])
    for call in source.all_calls if filled else ():
        read |= {each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    for loop in source.nodes_of(ast.List, ast.Tuple) if filled else ():
        read |= {each.value for each in loop.elts if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    return filled - read


def _canonical(source: SourceFile, view: ast.expr) -> str:
    """Return the text of a view; that of the variable it is a copy of: ``view2 = view1.clone()``."""
    text = ast.unparse(view)
    assigned = [e for e in nodes_in(function_of(source, view), ast.Assign) if text in map(ast.unparse, e.targets)]
    if not isinstance(view, ast.Name) or len(assigned) != 1:
        return text
    match assigned[0]:
        case ast.Assign(value=ast.Name(id=name) | ast.Call(func=ast.Attribute(attr="clone", value=ast.Name(id=name)))):
            return name
        case _:
            return text


def _is_called_once(source: SourceFile, use: _Use) -> bool:
    """Return True for a view that one call of an augmentation gives."""
    values = list(origins(source, use.view, 2))[1:] if isinstance(use.view, ast.Name) else []
    calls = [each for each in values if isinstance(each, ast.Call) and _AUGMENTS.search(last_name(each.func))]
    return len(calls) == 1 and all(each is calls[0] or isinstance(each, ast.Name | ast.Call) for each in values)


def _meet(source: SourceFile, function: Any, first: _Use, second: _Use, *, needs_name: bool) -> bool:
    """Return True if one expression, or a contrastive loss, gets the results of both calls."""
    if first.statement is second.statement and not isinstance(first.statement, ast.Assign):
        return not needs_name or _is_contrastive(source, first.statement)
    own, others = (_results(source, each) for each in (first, second))
    if own & others:
        return False
    statements = [e for e in nodes_in(function, ast.Assign, ast.Return, ast.Expr, ast.AugAssign) if e.value is not None]
    for _ in range(_MAX_ROUNDS):
        for each in statements:
            read = {name.id for name in nodes_in(each.value, ast.Name)}  # type: ignore[arg-type]
            if read & own and read & others:
                if not needs_name or _is_contrastive(source, each):
                    return True
            elif read & (own | others) and isinstance(each, ast.Assign):
                names = {name.id for target in each.targets for name in nodes_in(target, ast.Name)}
                (own if read & own else others).update(names)
    return False


def _results(source: SourceFile, use: _Use) -> set[str]:
    """Return the variables that get the result of a call, by its position in ``z1, z2 = f(a), f(a)``."""
    statement = use.statement
    if not isinstance(statement, ast.Assign):
        return set()
    around = {id(use.call), *(id(each) for each in enclosing_nodes(source, use.call))}
    found = set[str]()
    for target in statement.targets:
        match target, statement.value:
            case ast.Tuple(elts=targets), ast.Tuple(elts=values):
                parts = [a for a, b in zip(targets, values, strict=False) if id(b) in around]
            case _:
                parts = [target]
        found |= {each.id for part in parts for each in nodes_in(part, ast.Name)}
    return found


def _is_contrastive(source: SourceFile, statement: ast.AST) -> bool:
    """Return True if a statement calls a loss with a contrastive name, or an instance of such a class."""
    return any(
        _CONTRASTIVE.search(ast.unparse(each))
        for call in nodes_in(statement, ast.Call)
        for each in origins(source, call.func, 2)
    )


def _equal_items(source: SourceFile, function: Any) -> Iterator[tuple[Any, ast.Name]]:
    """Yield lists and calls that contain one name twice, ``torch.cat([a, a])`` and ``model(a, a)``, and the second."""
    for node in nodes_in(function, ast.List, ast.Tuple, ast.Call):
        match node.args if isinstance(node, ast.Call) else node.elts:
            case [ast.Name(id=first), ast.Name(id=name) as second] if name == first and _may_hold_views(source, node):
                yield node, second
            case _:
                pass


def _may_hold_views(source: SourceFile, node: ast.List | ast.Tuple | ast.Call) -> bool:
    """Return False for a class, targets of an assignment, and ``i, i`` in ``x[i, i]``, the diagonal of a matrix."""
    if isinstance(node, ast.Call):
        return not last_name(node.func)[:1].isupper()
    is_index = isinstance(node, ast.Tuple) and getattr(source.parents.get(id(node)), "slice", None) is node
    return isinstance(node.ctx, ast.Load) and not is_index


def _contained_twice(source: SourceFile, items: Iterable[tuple[Any, ast.Name]], unread: set[str]) -> Iterator[Hit]:
    """Yield those of `_equal_items` that contain a view whose counterpart is never read."""
    for node, second in items:
        others = [each for each in unread if _are_twins(second.id, each)]
        if len(others) == 1:
            yield Hit(
                message=f"`{source.text.segment(node)}` contains `{second.id}` twice, and `{others[0]}` is never used: "
                "the loss compares each view with itself.",
                node=node,
                fix=Fix((source.text.replace(second, others[0]),), safe=False, description="Use the other view"),
            )


def _copied(source: SourceFile) -> Iterator[Hit]:
    """Yield assignments that give both views one value.

    They are ``view1 = view2 = augment(x)``, ``view1, view2 = [augment(x)] * 2``, ``view1, view2 = view1.to(device),
    view1.to(device)``, and ``view2 = view1.to(device)`` after ``view1 = view1.to(device)``.
    """
    for node in source.nodes_of(ast.Assign):
        match node:
            case ast.Assign(targets=[ast.Name(id=first), ast.Name(id=second)], value=ast.Call() as call):
                is_copy = _AUGMENTS.search(last_name(call.func)) is not None
            case ast.Assign(
                targets=[ast.Tuple(elts=[ast.Name(id=first), ast.Name(id=second)])],
                value=ast.BinOp(op=ast.Mult(), left=ast.List(elts=[ast.Call() as call])),
            ):
                is_copy = _AUGMENTS.search(last_name(call.func)) is not None
            case ast.Assign(
                targets=[ast.Tuple(elts=[ast.Name(id=first), ast.Name(id=second)])],
                value=ast.Tuple(elts=[ast.Call() as call, ast.Call() as other]),
            ):
                is_copy = ast.unparse(call) == ast.unparse(other) and _names(call) & {first, second} != set()
            case ast.Assign(targets=[ast.Name(id=second)], value=ast.Call()):
                first, is_copy = _moved_before(source, node), True
            case _:
                continue
        if is_copy and _are_twins(first, second):
            yield Hit(
                message=f"`{source.text.segment(node)}` makes `{first}` and `{second}` the same view: the loss "
                "compares each view with itself.",
                node=node,
            )


def _moved_before(source: SourceFile, node: ast.Assign) -> str:
    """Return the variable ``a`` where ``b = a.to(device)`` follows ``a = a.to(device)``, and ``b`` had a value."""
    block, target = source.block(node), ast.unparse(node.targets[0])
    position = block.index(node) if node in block else 0
    match block[position - 1] if position else None:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call) if name in _names(call):
            function = function_of(source, node)
            earlier = [each for each in nodes_in(function, ast.Name) if each.id == target and each.lineno < node.lineno]
            had_value = any(each.arg == target for each in nodes_in(function, ast.arg)) or earlier
            is_unread = all(isinstance(each.ctx, ast.Store) for each in earlier)
            return name if ast.unparse(call) == ast.unparse(node.value) and had_value and is_unread else ""
        case _:
            return ""


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in nodes_in(node, ast.Name)}


def _returned_twice(source: SourceFile) -> Iterator[Hit]:
    """Yield the pairs that a data set returns with one augmented sample as both views."""
    for function in source.nodes_of(ast.FunctionDef):
        for node in nodes_in(function, ast.Return) if function.name in ("__getitem__", "__iter__", "__call__") else ():
            items = getattr(node.value, "elts", getattr(node.value, "values", []))
            for first, second in pairwise(items):
                is_same = isinstance(second, ast.Name) and _canonical(source, first) == _canonical(source, second)
                if is_same and _is_called_once(source, _Use(second, ast.Call(second, [], []), node)):
                    yield Hit(
                        message=f"Both views that `{function.name}` returns are `{ast.unparse(first)}`, which is "
                        "augmented once: the loss compares each view with itself.",
                        node=node,
                    )


_PAIR_WORDS: Final = (
    "view", "aug", "contrast", "byol", "siam", "clr", "infonce", "info_nce", "nceloss", "nce_loss", "xent", "vicreg",
    "barlow", "weak", "pair",
)  # fmt: skip
_PAIRS: Final = re.compile(r"\b(\w*[a-z])_?1,\s*\1_?2\b|\b(\w+_?)i,\s*\2j\b|\b(\w+_)a,\s*\3b\b|\b(\w+_?)q,\s*\4k\b")


def _has_pairs(text: str) -> bool:
    """Return True for a text with words of programs with pairs of views, or with a pair of variables."""
    text = text.lower()
    return any(word in text for word in _PAIR_WORDS) or _PAIRS.search(text) is not None


RULE = Rule(required_words=("torch", "backward(|nn.Module", _has_pairs), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(64, 8)


def nt_xent(z1, z2, temperature=0.5):
    z = nn.functional.normalize(torch.cat([z1, z2]), dim=1)
    similarity = z @ z.t() / temperature
    similarity.fill_diagonal_(float("-inf"))
    n = len(z1)
    positives = torch.cat([torch.arange(n) + n, torch.arange(n)])
    return nn.functional.cross_entropy(similarity, positives)


def augment(rows):
    return x[rows] + 0.1 * torch.randn(len(rows), 8)


net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
optimizer = torch.optim.Adam(net.parameters(), lr=0.001)
for epoch in range(4):
    for rows in torch.randperm(64).split(16):
        view1, view2 = augment(rows), augment(rows)
        z1 = net(view1)
        z2 = net(view1)
        optimizer.zero_grad()
        loss = nt_xent(z1, z2)
        loss.backward()
        optimizer.step()
print(loss.item())
"""

FAILURE = Failure(
    code="LOS068",
    title="Both embeddings come from one view",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=BAD,
    good=changed(BAD, {"z2 = net(view1)": "z2 = net(view2)"}),
    fix="Compute the second embedding from the second view.",
    rule=RULE,
)
