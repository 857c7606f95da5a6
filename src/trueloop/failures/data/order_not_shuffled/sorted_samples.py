"""Samples that surely come class after class, as far as the text tells."""

from __future__ import annotations

import ast
from typing import Any, Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import Edit, Fix

FOLDERS: Final = frozenset((
    "torchvision.datasets.ImageFolder", "torchvision.datasets.DatasetFolder", "torchvision.datasets.ImageNet",
    "torchvision.datasets.EuroSAT", "torchvision.datasets.Country211", "torchvision.datasets.RenderedSST2",
    "torchvision.datasets.folder.ImageFolder", "torchvision.datasets.folder.DatasetFolder",
))  # fmt: skip
"""Read the subfolder of one class after that of the other."""
CLASSIFIES: Final = ("cross_entropy", "CrossEntropyLoss", "nll_loss", "NLLLoss", "BCELoss", "BCEWithLogitsLoss",
                     "binary_cross_entropy", "binary_cross_entropy_with_logits")  # fmt: skip
RECURRENT: Final = ("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell")
NOISE: Final = frozenset(("torch.randn", "torch.rand", "torch.randn_like", "torch.rand_like"))


def in_blocks(source: SourceFile, start: Op, loader: AbstractValue) -> bool:
    """Return True where what a loop goes through are samples sorted by the targets of its classification loss.

    Args:
        source: the file.
        start: of the loop over the loader.
        loader: reads its dataset in order.
    """
    dataset, batch = loader.sources[0], loader.arguments.get("batch_size") or loader.arguments.get("1")
    inside = [each for each in source.operations if any(loop.node is start.node for loop in each.loops)]
    losses = [each for each in inside if each.kind is OpKind.LOSS and each.name.rpartition(".")[2] in CLASSIFIES]
    targets = [each.inputs[1] for each in losses if len(each.inputs) > 1 and loader in each.inputs[1].ancestors()]
    backward = any(each.kind is OpKind.BACKWARD and not _held_out(each, start) for each in inside)
    recurrent = any(each.name.rpartition(".")[2] in RECURRENT for each in source.ops(OpKind.CREATE))
    if not targets or not backward or recurrent or batch is None or dataset.union:
        return False
    if dataset.name in FOLDERS:
        return not any(each.name == "builtins.len" for each in batch.ancestors())
    table = dataset.name == "torch.utils.data.TensorDataset"
    return table and _table(dataset, targets[0], start.node.target, batch, source)


def shuffled(source: SourceFile, call: Any) -> Fix | None:
    """Return the fix: a loader that is made by a call is told to shuffle."""
    named = (each.value for each in call.keywords if each.arg == "shuffle")
    told = next(named, call.args[2] if call.args[2:] else None)
    given = [*call.args, *(each.value for each in call.keywords)]
    end = max(source.text.span(each)[1] for each in given)
    edit = Edit(end, end, ", shuffle=True") if told is None else source.text.replace(told, "True")
    starred = any(each.arg is None for each in call.keywords) or any(
        isinstance(each, ast.Starred) for each in call.args
    )
    return None if starred else Fix((edit,), safe=False, description="Shuffle the training samples")


def _held_out(backward: Op, start: Op) -> bool:
    """Return True where a backward happens on a condition that may be that of another phase."""
    return len(backward.branches) > len(start.branches)


def _table(
    dataset: AbstractValue, target: AbstractValue, names: ast.expr, batch: AbstractValue, source: SourceFile
) -> bool:
    """Return True where a target's column is made class by class, and nothing tells that the others have an order."""
    nodes = {id(each.node) for each in target.ancestors()}
    rows = [each.elts for each in ast.walk(names) if isinstance(each, ast.Tuple | ast.List)]
    whole = [each for each in rows if len(each) == len(dataset.sources)]
    places = [number for row in whole for number, each in enumerate(row) if id(each) in nodes]
    size = batch.constant()
    if len(places) != 1 or not isinstance(size, int):
        return False
    column = dataset.sources[places[0]]
    others = [each for each in dataset.sources if each is not column]
    changed = [each.subject for each in source.ops(OpKind.STORE_ITEM)]
    known = {id(each) for each in column.ancestors()}
    drawn = others and all(_noise(each, known, column.name) for each in others)
    return bool(drawn) and _shortest(column) >= 2 * size and not any(each in changed for each in dataset.sources)


def _noise(thing: AbstractValue, known: set[int], label: str) -> bool:
    """Return True where samples are independent draws, shifted by their class or not."""
    found = [each for each in thing.ancestors() if each.kind is ValueKind.TENSOR and id(each) not in known]
    plain = all(each.name in NOISE or each.name in (label, "torch.cat") or "binary " in each.name for each in found)
    return plain and any(each.name in NOISE for each in found)


def _shortest(column: AbstractValue) -> int:
    """Return the length of the shortest run of one class in a column; 0 where the text does not tell."""
    node: Any = column.node
    last = column.name.rpartition(".")[2]
    if not isinstance(node, ast.Call):
        return 0
    if last == "repeat_interleave" and column.sources and column.sources[0].name == "torch.arange" and len(column.sources) == 2:
        return _whole(column.sources[1])
    if column.name in ("torch.cat", "torch.concatenate", "torch.hstack") and column.sources:
        parts = column.sources[0].sources
        plain = all(each.name in ("torch.zeros", "torch.ones", "torch.full") for each in parts) and len(parts) > 1
        return min(_whole(each.sources[0]) if each.sources else 0 for each in parts) if plain else 0
    return 0


def _whole(thing: AbstractValue) -> int:
    value = thing.sources[0].constant() if thing.name == "" and len(thing.sources) == 1 else thing.constant()
    return value if isinstance(value, int) else 0
