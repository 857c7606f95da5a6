"""Finds in the text of a program where it splits a dataset, and where it reads the parts."""

import ast
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from trueloop.analysis.queries.request_handlers import imported_names, qualified_name
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import dotted_name

SPLITS: Final = ("torch.utils.data.random_split", "torch.utils.data.dataset.random_split")
SUBSETS: Final = ("torch.utils.data.Subset", "torch.utils.data.dataset.Subset")
HARMLESS_FUNCTIONS: Final = ("len", "print")


class Parts(NamedTuple):
    """Parts of one dataset, created in one block."""

    names: tuple[str, ...]
    """Names in the source: "train", "self.val"."""
    dataset: ast.expr
    block: Sequence[ast.stmt]
    positions: tuple[int, ...]
    """Indices of the statements in the block that create the parts."""

    @property
    def statement(self) -> ast.stmt:
        """The statement that creates the first part."""
        return self.block[self.positions[0]]


def find_splits(source: SourceFile) -> Iterator[Parts]:
    """Yield the parts that each block creates of one dataset, each under its own name."""
    names_of = imported_names(source.tree)  # the interpreter skips files that only define data
    blocks = [source.block(each) for each in source.nodes if isinstance(each, ast.Assign)]
    for block in {id(each): each for each in blocks}.values():
        subsets: dict[str, list[tuple[int, str, ast.expr]]] = {}
        for place, each in enumerate(block):
            if not isinstance(each, ast.Assign) or not isinstance(each.value, ast.Call) or len(each.targets) != 1:
                continue
            name, target, dataset = qualified_name(each.value, names_of), each.targets[0], _dataset(each.value)
            if dataset is not None and name in SPLITS and isinstance(target, ast.Tuple | ast.List):
                yield Parts(tuple(filter(None, map(dotted_name, target.elts))), dataset, block, (place,))
            elif dataset is not None and name in SUBSETS and dotted_name(target) and dotted_name(dataset):
                subsets.setdefault(dotted_name(dataset), []).append((place, dotted_name(target), dataset))
        for subset_group in subsets.values():
            places, names, of = zip(*subset_group, strict=True)
            yield Parts(names, of[0], block, places)


def read_names(node: ast.AST, names: set[str]) -> Iterator[str]:
    """Yield a name for each place in a node that reads it, except for its length or an attribute."""
    for parent in ast.walk(node):
        harmless = (
            isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id in HARMLESS_FUNCTIONS
        )
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
    arguments = [*call.args[:1], *(each.value for each in call.keywords if each.arg == "dataset")]
    return arguments[0] if len(arguments) == 1 and not isinstance(arguments[0], ast.Starred) else None
