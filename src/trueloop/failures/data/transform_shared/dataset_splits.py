"""Where a program's text makes parts of one dataset, and what it does with them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from trueloop.analysis.queries.request_handlers import imported, qualified
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import dotted_name

SPLITS: Final = ("torch.utils.data.random_split", "torch.utils.data.dataset.random_split")
SUBSETS: Final = ("torch.utils.data.Subset", "torch.utils.data.dataset.Subset")
HARMLESS: Final = ("len", "print")


class Parts(NamedTuple):
    """Parts of one dataset, made in one block."""

    names: tuple[str, ...]
    """As they are written: "train", "self.val"."""
    dataset: ast.expr
    block: Sequence[ast.stmt]
    made: tuple[int, ...]
    """The places in the block where they are made."""

    @property
    def statement(self) -> ast.stmt:
        """The one that makes the first of them."""
        return self.block[self.made[0]]


def splits(source: SourceFile) -> Iterator[Parts]:
    """Yield the parts that each block makes of one dataset, each under a name of its own."""
    names_of = imported(source.tree)  # a module of data alone trains nothing, and is not read otherwise
    blocks = [source.block(each) for each in source.nodes if isinstance(each, ast.Assign)]
    for block in {id(each): each for each in blocks}.values():
        subsets: dict[str, list[tuple[int, str, ast.expr]]] = {}
        for place, each in enumerate(block):
            if not isinstance(each, ast.Assign) or not isinstance(each.value, ast.Call) or len(each.targets) != 1:
                continue
            name, target, dataset = qualified(each.value, names_of), each.targets[0], _dataset(each.value)
            if dataset is not None and name in SPLITS and isinstance(target, ast.Tuple | ast.List):
                yield Parts(tuple(filter(None, map(dotted_name, target.elts))), dataset, block, (place,))
            elif dataset is not None and name in SUBSETS and dotted_name(target) and dotted_name(dataset):
                subsets.setdefault(dotted_name(dataset), []).append((place, dotted_name(target), dataset))
        for several in subsets.values():
            places, names, of = zip(*several, strict=True)
            yield Parts(names, of[0], block, places)


def wanted(node: ast.AST, names: set[str]) -> Iterator[str]:
    """Yield the names, once for each place in a node that reads something but a length or an attribute of theirs."""
    for parent in ast.walk(node):
        harmless = isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id in HARMLESS
        if isinstance(parent, ast.Attribute) or harmless:
            continue
        for each in ast.iter_child_nodes(parent):
            if (
                isinstance(each, ast.Name | ast.Attribute)
                and isinstance(each.ctx, ast.Load)
                and dotted_name(each) in names
            ):
                yield dotted_name(each)


def _dataset(call: ast.Call) -> ast.expr | None:
    given = [*call.args[:1], *(each.value for each in call.keywords if each.arg == "dataset")]
    return given[0] if len(given) == 1 and not isinstance(given[0], ast.Starred) else None
