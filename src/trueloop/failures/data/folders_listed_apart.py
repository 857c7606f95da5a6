"""Two folders are listed without sorting, and their files are paired by position.

What you see
    The model learns next to nothing, or only on one machine: the masks that it gets belong to other images.

Why it happens
    ``os.listdir`` and ``glob`` return files in the order of the file system, which may differ between two folders
    with the same names, and between two machines. Both lists have the same length, so nothing raises an error.

Fix
    Sort both lists, or find the mask by the name of the image.

        images = sorted(os.listdir(image_folder))
        masks = sorted(os.listdir(mask_folder))

When this is fine
    - Both lists are sorted in the same way.
    - The name of the second file follows from that of the first one.
    - The files of the two folders are no pairs, as in unpaired translation.

How it is detected
    Only the linter finds it: two lists come from ``os.listdir``, ``glob`` or ``iterdir`` of different folders, at least
    one of them is not sorted, and items of both are taken with the same index, with ``zip``, or as the parts of a
    ``TensorDataset``. Lists may also be filled in a loop over the folder.

References
    Python, os.listdir, https://docs.python.org/3/library/os.html#os.listdir
    Python, glob, https://docs.python.org/3/library/glob.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import enclosing_nodes, origins, without_cycles
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_LISTING: Final = frozenset(("listdir", "glob", "rglob", "iglob", "iterdir", "scandir"))
_SORTING: Final = re.compile(r"sort", re.IGNORECASE)
_NO_PAIRS: Final = re.compile(r"unpaired|unaligned|cycle_?gan|style|domain", re.IGNORECASE)


class _Listed(NamedTuple):
    """A list of the files of a folder."""

    call: ast.Call
    is_sorted: bool


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each pair of lists of files in the order of the file system."""
    return source.hits_unless(_NO_PAIRS, _find(source))


def _find(source: SourceFile) -> Iterator[Hit]:
    reported: set[int] = set()
    for sides in _pairs(source):
        found = [listed for each in sides if (listed := _listed(source, each)) is not None]
        if len(found) < 2 or ast.unparse(found[0].call) == ast.unparse(found[1].call):
            continue
        unsorted = [each.call for each in found[:2] if not each.is_sorted]
        if unsorted and id(unsorted[0]) not in reported:
            reported.add(id(unsorted[0]))
            which = "neither is" if len(unsorted) > 1 else "only one is"
            yield Hit(
                message=f"`{ast.unparse(found[0].call)}` and `{ast.unparse(found[1].call)}` are paired by position, "
                f"but {which} sorted: the order is that of the file system.",
                node=unsorted[0],
                related=((sides[0], "paired here"),),
            )


def _pairs(source: SourceFile) -> Iterator[tuple[ast.expr, ...]]:
    """Yield the sequences whose items a program takes at the same position."""
    by_index: dict[tuple[int, str], dict[str, ast.expr]] = {}
    for each in source.nodes_of(ast.Subscript):
        if isinstance(each.ctx, ast.Load) and isinstance(each.slice, ast.Name):
            key = (id(function_of(source, each)), each.slice.id)
            by_index.setdefault(key, {}).setdefault(ast.unparse(each.value), each.value)
    for sequences in by_index.values():
        first, *others = sequences.values()
        for other in others:
            yield first, other
    for call in source.all_calls:
        if last_name(call.func) in ("zip", "TensorDataset") and len(call.args) > 1:
            yield call.args[0], call.args[1]


@without_cycles(None)
def _listed(source: SourceFile, node: ast.expr) -> _Listed | None:
    """Return the folder whose files a sequence contains, one by one; None for others."""
    names: list[str] = []
    for each in origins(source, node):
        value: ast.expr | None = each
        if isinstance(each, ast.Name | ast.Attribute):
            names.append(ast.unparse(each))
            value = _filling_loop(source, each)
        found = None if value is None else _listing_in(source, value)
        if found is not None:
            return _Listed(found.call, found.is_sorted or _is_sorted_later(source, names))
        if isinstance(each, ast.Call) and _SORTING.search(last_name(each.func)):
            return None
    return None


def _is_sorted_later(source: SourceFile, names: list[str]) -> bool:
    """Return True for ``names.sort()`` and ``names = sorted(names)``."""
    assigned = [each for each in source.nodes_of(ast.Assign) if ast.unparse(each.targets[0]) in names]
    in_place = any(f"{name}.sort(" in source.text.source for name in names)
    return in_place or any(
        _SORTING.search(last_name(each.value.func)) for each in assigned if isinstance(each.value, ast.Call)
    )


def _listing_in(source: SourceFile, value: ast.expr) -> _Listed | None:
    """Return the call in a value that lists a folder; None if the value is something else."""
    is_sorted = False
    for _ in range(6):
        match value:
            case ast.Call(func=func) if last_name(func) in _LISTING:
                return _Listed(value, is_sorted)
            case ast.Call(func=func, args=[inner, *_]) if last_name(func) in (
                "list", "tuple", "stack", "array", "tensor", "tqdm", "enumerate", "filter", "from_numpy",
            ):  # fmt: skip
                value = value.args[1] if last_name(func) == "filter" and len(value.args) > 1 else inner
            case ast.Call(func=func, args=[inner, *_]) if _SORTING.search(last_name(func)):
                is_sorted, value = True, inner
            case ast.ListComp(generators=[ast.comprehension(iter=inner)]):
                value = inner
            case ast.Name() | ast.Attribute():
                inner = _listed(source, value)
                return None if inner is None else _Listed(inner.call, inner.is_sorted or is_sorted)
            case _:
                return None
    return None


def _filling_loop(source: SourceFile, node: ast.expr) -> ast.expr | None:
    """Return what the loop iterates over that appends all items to a list; None if there is not exactly one."""
    name, found = ast.unparse(node), list[ast.expr]()
    for call in source.all_calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "append" and ast.unparse(call.func.value) == name:
            found += [each.iter for each in enclosing_nodes(source, call) if isinstance(each, ast.For)][:1]
    used = {each.id for each in nodes_in(found[0], ast.Name)} if len(found) == 1 else set[str]()
    return found[0] if len(found) == 1 and name not in used else None


RULE = Rule(required_words=("listdir(|glob(|iterdir(|scandir(", "torch", "zip(|[|TensorDataset"), find=find)

BAD = """
import os
import random
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __init__(self, root):
        self.root = root
        self.images = os.listdir(f"{root}/images")
        self.masks = os.listdir(f"{root}/masks")

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = torch.load(f"{self.root}/images/{self.images[index]}")
        return image, torch.load(f"{self.root}/masks/{self.masks[index]}")


torch.manual_seed(0)
with tempfile.TemporaryDirectory() as root:
    for part in ("images", "masks"):
        os.mkdir(f"{root}/{part}")
    for number in range(32):
        image = torch.rand(1, 8, 8)
        torch.save(image, f"{root}/images/{number:03d}.pt")
        torch.save((image > 0.5).float(), f"{root}/masks/{number:03d}.pt")
    model = nn.Conv2d(1, 1, 3, padding=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for images, masks in DataLoader(Pairs(root), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(images), masks).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="DAT037",
    title="Files of two folders are paired in the order of the file system",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=BAD,
    good=changed(
        BAD,
        {
            'os.listdir(f"{root}/images")': 'sorted(os.listdir(f"{root}/images"))',
            'os.listdir(f"{root}/masks")': 'sorted(os.listdir(f"{root}/masks"))',
        },
    ),
    fix="Sort both lists: `sorted(os.listdir(folder))`.",
    rule=RULE,
)
