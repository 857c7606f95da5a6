"""Numbered files are sorted as text, but their labels are in the order of the numbers.

What you see
    The model learns nothing that holds for new data, though the files and the labels are right. With at most ten files,
    everything works.

Why it happens
    ``sorted`` compares names character by character: ``sample_10.npy`` comes before ``sample_2.npy``. The labels of a
    table are in the order 0, 1, 2 ... The lengths agree, so nothing raises an error.

Fix
    Sort by the number, or write the numbers with zeros in front.

        files = sorted(folder.glob("sample_*.npy"), key=lambda path: int(path.stem.split("_")[1]))
        np.save(folder / f"sample_{i:05d}.npy", picture)

When this is fine
    - The numbers have zeros in front.
    - The label is found by the name of the file, or is part of it.
    - The labels are files that are sorted as text in the same way.
    - At most ten files are numbered.

How it is detected
    Only the linter finds it: the program writes files with a number that has no format, as in ``f"sample_{i}.npy"``,
    lists such files with ``sorted(glob(...))`` without a key, and takes items of the list and of another sequence at
    the same position, by an index or with ``zip``. The other sequence is not computed from the list and not sorted.

References
    Python, "Sorting Techniques", https://docs.python.org/3/howto/sorting.html
    glob, https://docs.python.org/3/library/glob.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import single_assignments
from trueloop.analysis.queries.possible_values import loops_around, origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import integer, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_LISTS: Final = frozenset(("glob", "iglob", "rglob"))
_FEW: Final = 10


class _Numbered(NamedTuple):
    """A file name that the program writes, such as ``f"sample_{i}.npy"``."""

    node: ast.expr
    start: str
    end: str


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each list of numbered files that is sorted as text and paired with another order."""
    written = list(_numbered(source))
    for target, value in single_assignments(source.tree) if written else ():
        name = next((each for each in written if _lists(value, each)), None)
        pair = _paired(source, target) if name is not None else None
        if name is not None and pair is not None:
            yield Hit(
                message=f"`{ast.unparse(value)}` sorts the numbers of `{name.start}10{name.end}` and "
                f"`{name.start}2{name.end}` as text, so that 10 comes before 2, but `{ast.unparse(pair)}` is in "
                "another order: sort by the number.",
                node=value,
                related=((name.node, "numbered here"), (pair, "taken at the same position")),
            )


def _numbered(source: SourceFile) -> Iterator[_Numbered]:
    """Yield the names of files with an unformatted number of a loop."""
    for node in source.nodes:
        match node:
            case ast.JoinedStr(
                values=[
                    *before,
                    ast.FormattedValue(value=ast.Name(id=number), format_spec=None),
                    ast.Constant(value=str(end)),
                ]
            ) if re.fullmatch(r"\.\w+", end) and _counts_far(source, node, number):
                last = before[-1].value if before and isinstance(before[-1], ast.Constant) else ""
                yield _Numbered(node, str(last).rpartition("/")[2], end)
            case _:
                pass


def _counts_far(source: SourceFile, node: ast.AST, name: str) -> bool:
    """Return True if a variable is the counter of a loop around a node that may reach two digits."""
    for each in loops_around(source, node):
        first = each.target.elts[0] if isinstance(each.target, ast.Tuple) else each.target
        call = each.iter if isinstance(each.iter, ast.Call) and last_name(first) == name else None
        if call is not None and last_name(call.func) in ("range", "enumerate"):
            limits = [number for e in call.args if (number := integer(e)) is not None]
            return not limits or len(limits) < len(call.args) or max(limits) > _FEW
    return False


def _lists(value: ast.expr, name: _Numbered) -> bool:
    """Return True for ``sorted(glob("sample_*.npy"))`` without a key."""
    if not isinstance(value, ast.Call) or last_name(value.func) != "sorted" or len(value.args) != 1 or value.keywords:
        return False
    calls = [each for each in walk(value.args[0]) if isinstance(each, ast.Call) and last_name(each.func) in _LISTS]
    patterns = [e.value for c in calls for e in walk(c) if isinstance(e, ast.Constant) and isinstance(e.value, str)]
    file_patterns = [each.rpartition("/")[2] for each in patterns if "*" in each]
    return file_patterns in ([f"{name.start}*{name.end}"], [f"*{name.end}"])


def _paired(source: SourceFile, files: ast.expr) -> ast.expr | None:
    """Return the sequence of which items are taken at the same positions; None if there is none."""
    name = ast.unparse(files)
    for node in source.nodes:
        match node:
            case ast.Subscript(value=value, slice=ast.Name(id=index)) if ast.unparse(value) == name:
                function: Any = source.parents[id(node)]
                while not isinstance(function, ast.FunctionDef | ast.Module | ast.For | ast.ListComp):
                    function = source.parents[id(function)]
                others = [
                    each.value
                    for each in walk(function)
                    if isinstance(each, ast.Subscript) and ast.unparse(each.slice) == index
                ]
            case ast.Call(func=ast.Name(id="zip"), args=others) if name in map(ast.unparse, others):
                pass
            case _:
                continue
        for each in others:
            if (
                isinstance(each, ast.Name | ast.Attribute)
                and ast.unparse(each) != name
                and _has_own_order(source, each, name)
            ):
                return each
    return None


def _has_own_order(source: SourceFile, node: ast.expr, files: str) -> bool:
    """Return True if a sequence is known, is not sorted and is not computed from the list of files."""
    values = list(origins(source, node))[1:]
    text = " ".join(ast.unparse(each) for each in values)
    word = files.rpartition(".")[2]
    return bool(values) and not re.search(rf"\b{re.escape(word)}\b|sorted|glob|listdir", text)


RULE = Rule(required_words=("sorted(", "glob(", re.compile(r"""f["'].*\{\w+\}\.\w+["']""")), find=find)

BAD = """
import glob
import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self, folder):
        self.files = sorted(glob.glob(os.path.join(folder, "sample_*.pt")))
        self.values = torch.load(os.path.join(folder, "values.pt"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        return torch.load(self.files[i]), self.values[i]


torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    values = torch.rand(60, 1)
    for i in range(60):
        torch.save(values[i] + 0.1 * torch.randn(8), os.path.join(folder, f"sample_{i}.pt"))
    torch.save(values, os.path.join(folder, "values.pt"))
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for epoch in range(3):
        for x, y in DataLoader(Pictures(folder), batch_size=12, shuffle=True):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
"""

FAILURE = Failure(
    code="DAT025",
    title="Numbered files are sorted as text",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"sample_{i}.pt": "sample_{i:03d}.pt"}),
    fix="Sort by the number, or write the numbers with zeros in front.",
    rule=RULE,
)
