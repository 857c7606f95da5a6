"""``__getitem__`` takes the label, or the input, at another index than the rest of the sample.

What you see
    The loss stays at that of guessing, or falls only as far as the labels can be memorised. The arrays are right.

Why it happens
    A dataset may draw a second index, to augment or to choose a partner. If the label is taken there and the input is
    not, every sample gets the label of another one. The shapes are the same, so nothing raises an error. A dataset of
    chosen rows has a second index, too: ``self.inputs[self.rows[index]]`` is the sample, ``self.labels[index]`` is the
    label of row ``index`` of all samples.

Fix
    Take all parts of a sample at the same index.

        return self.images[index], self.labels[index]

When this is fine
    - The second index chooses a partner whose input is returned as well: pairs, triplets, mixing of samples.
    - The label is computed from both indices, such as whether two samples have the same class.
    - The labels were already filtered in ``__init__``, the inputs not.
    - The mismatch is wanted: negative examples, labels that are shuffled to test a model.

How it is detected
    Only the linter finds it: a ``__getitem__`` reads one array at a random index, or a random item of it, and the rest
    at the index of the sample, where one side is called labels and the other one is not. Or it reads one array at an
    item of a list of positions, which ``__init__`` makes by a condition or a sort, and the other one,
    which was not filtered, at the index of the sample.

References
    torch.utils.data.Dataset, https://docs.pytorch.org/docs/stable/data.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import assigned_in, is_label, single_assignments
from trueloop.analysis.queries.possible_values import possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_DRAWS: Final = frozenset(("randint", "randrange", "choice", "integers", "random_integers"))
_POSITIONS: Final = frozenset(("where", "nonzero", "flatnonzero", "argwhere", "argsort"))
_POSITION_NAME: Final = re.compile(
    r"_?(ind(ices|ex|exes|s)|idxs?|subset|keep|kept|usable|valid|selected|rows|positions)"
)
_CHOOSING: Final = re.compile(r"\[(?![\"':])|\b(take|index_select|gather|filter|compress|masked_select)\(")
_WANTED: Final = re.compile(r"neg|mismatch|wrong|noisy|noise|corrupt|fake|other|shuffl|random_label|contrast|mix", re.I)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each label or input that is taken at a random index in the place of that of the sample."""
    for method in source.nodes_of(ast.FunctionDef):
        if method.name != "__getitem__" or len(method.args.args) != 2 or _WANTED.search(ast.unparse(method)):
            continue
        yield from _at_positions(source, method)
        if not any(isinstance(each, ast.Compare | ast.If | ast.IfExp | ast.While) for each in walk(method)):
            yield from _in_method(method)


def _in_method(method: ast.FunctionDef) -> Iterator[Hit]:
    owner, index = (each.arg for each in method.args.args)
    own, drawn = _indices(method, owner, index)
    at_index: list[ast.expr] = []
    at_random: list[tuple[ast.expr, ast.AST]] = []
    for array, where in _items(method, owner):
        draw = where if isinstance(where, ast.Call) else next((drawn[n] for n in _names(where) if n in drawn), None)
        if draw is not None:
            at_random.append((array, draw))
        elif _names(where) & own:
            at_index.append(array)
    if len(at_random) != 1 or not at_index or any(_is_label(e) is _is_label(at_random[0][0]) for e in at_index):
        return
    array, draw = at_random[0]
    yield Hit(
        message=f"`{ast.unparse(array)}` is read at a random position and `{ast.unparse(at_index[0])}` at that of the "
        "sample: samples get the labels of others.",
        node=draw,
        related=((at_index[0], "read at the index of the sample"),),
    )


def _at_positions(source: SourceFile, method: ast.FunctionDef) -> Iterator[Hit]:
    """Yield the arrays that are read at an item of a list of positions, where the label or input is not."""
    owner, index = (each.arg for each in method.args.args)
    definition = source.parents.get(id(method))
    local = {target.id: value for target, value in single_assignments(method) if isinstance(target, ast.Name)}
    if not isinstance(definition, ast.ClassDef) or index in local:
        return
    at_index: list[ast.expr] = []
    at_position: list[ast.expr] = []
    position = ""
    for array, where in _items(method, owner):
        match local.get(where.id, where) if isinstance(where, ast.Name) else where:
            case ast.Name(id=name) if name == index:
                at_index.append(array)
            case ast.Subscript(value=ast.Attribute(attr=name), slice=ast.Name(id=inner)) if inner == index:
                if _is_list_of_positions(definition, f"{owner}.{name}"):
                    at_position.append(array)
                    position = ast.unparse(where)
            case _:
                return
    at_index = [each for each in at_index if not _is_list_of_positions(definition, ast.unparse(each))]
    kinds = {_is_label(each) for each in at_index}, {_is_label(each) for each in at_position}
    if kinds not in (({True}, {False}), ({False}, {True})):
        return
    arrays = (at_position[0], at_index[0])
    if all(_is_unfiltered(source, definition, each) for each in arrays):
        yield Hit(
            message=f"`{ast.unparse(arrays[0])}` is read at `{position}` and `{ast.unparse(arrays[1])}` at `{index}`: "
            "samples get the labels of others.",
            node=arrays[1],
            related=((arrays[0], "read at the position of the chosen row"),),
        )


def _is_list_of_positions(definition: ast.ClassDef, attribute: str) -> bool:
    """Return True for an attribute that holds positions in other arrays, chosen by a condition or sorted."""
    values = assigned_in(definition, attribute)
    if len(values) != 1:
        return False
    for each in nodes_in(values[0], ast.Call, ast.ListComp):
        match each:
            case ast.Call(func=func) if last_name(func) in _POSITIONS:
                return True
            case ast.ListComp(
                elt=ast.Name(id=name), generators=[ast.comprehension(target=target, ifs=[_, *_]) as loop]
            ):
                first = target.elts[0] if isinstance(target, ast.Tuple) else target
                is_counted = isinstance(loop.iter, ast.Call) and last_name(loop.iter.func) in ("range", "enumerate")
                looked_up = [last_name(e.slice) for test in loop.ifs for e in nodes_in(test, ast.Subscript)]
                return last_name(first) == name and (is_counted or name in looked_up)
            case _:
                pass
    length = next((each for each in definition.body if getattr(each, "name", "") == "__len__"), None)
    is_length = length is not None and f"return len({attribute})" in ast.unparse(length)
    is_named = isinstance(values[0], ast.Name) and bool(_POSITION_NAME.fullmatch(values[0].id))
    return is_named and is_length


def _is_unfiltered(source: SourceFile, definition: ast.ClassDef, array: ast.expr) -> bool:
    """Return True if an object stores an array as it got it, without choosing rows of it."""
    while isinstance(array, ast.Subscript) or (isinstance(array, ast.Attribute) and "." in ast.unparse(array.value)):
        array = array.value
    values = assigned_in(definition, ast.unparse(array))
    return len(values) == 1 and not any(
        _CHOOSING.search(ast.unparse(each)) or nodes_in(each, ast.ListComp)
        for value in values
        for name in nodes_in(value, ast.Name)
        for each in (value, *possible_values(source, name))
    )


def _is_label(array: ast.expr) -> bool:
    """Return True for ``self.labels``, ``self.table["label"]`` or ``self.table.label.iloc``."""
    if isinstance(array, ast.Attribute) and array.attr in ("iloc", "values"):
        array = array.value
    key = array.slice.value if isinstance(array, ast.Subscript) and isinstance(array.slice, ast.Constant) else None
    return is_label(ast.Name(id=key) if isinstance(key, str) else array)


def _indices(method: ast.FunctionDef, owner: str, index: str) -> tuple[set[str], dict[str, ast.AST]]:
    """Return the variables that follow from the index of the sample, and the draws of those that are random."""
    own, drawn = {index}, dict[str, ast.AST]()
    for target, value in single_assignments(method):
        reads = any(ast.unparse(each.value).startswith(f"{owner}.") for each in nodes_in(value, ast.Subscript))
        if not isinstance(target, ast.Name) or reads:
            continue
        draw = next((each for each in nodes_in(value, ast.Call) if last_name(each.func) in _DRAWS), None)
        if draw is not None:
            drawn[target.id] = draw
            own.discard(target.id)
        elif _names(value) & own:
            own.add(target.id)
    return own, drawn


def _items(method: ast.FunctionDef, owner: str) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the arrays of the dataset of which items are read, each with the index or the random choice."""
    for each in nodes_in(method, ast.Subscript, ast.Call):
        match each:
            case ast.Subscript(value=(ast.Attribute() | ast.Subscript()) as array, slice=where):
                is_key = isinstance(where, ast.Constant) and isinstance(where.value, str)
                is_nested = isinstance(array, ast.Subscript) and not isinstance(array.slice, ast.Constant)
                if is_key or is_nested or not isinstance(each.ctx, ast.Load):
                    continue
                if ast.unparse(array).startswith(f"{owner}.") and not nodes_in(where, ast.Slice):
                    yield array, where
            case ast.Call(func=func, args=[ast.Attribute() as array]) if last_name(func) == "choice":
                if ast.unparse(array).startswith(f"{owner}."):
                    yield array, each
            case _:
                pass


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in nodes_in(node, ast.Name)}


RULE = Rule(required_words=("__getitem__", "__len__"), find=find)

BAD = """
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __init__(self, inputs, labels):
        self.inputs, self.labels = inputs, labels

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        position = random.randrange(len(self.inputs))
        return self.inputs[index], self.labels[position]


torch.manual_seed(0)
x = torch.randn(256, 8)
loader = DataLoader(Samples(x, x[:, :3].argmax(1)), batch_size=32, shuffle=True)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for inputs, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="DAT038",
    title="Input and label of a sample come from different indices",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=BAD,
    good=changed(BAD, {"self.inputs[index], self": "self.inputs[position], self"}),
    fix="Take all parts of a sample at the same index.",
    rule=RULE,
)
