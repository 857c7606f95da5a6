"""Decides from the source code whether the samples of a loader are sorted by class."""

import ast
from typing import Any, Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import Edit, Fix, nodes_in
from trueloop.failures.data.order_not_shuffled.collected_by_class import is_collected_by_class

CLASS_FOLDER_DATASETS: Final = frozenset((
    "torchvision.datasets.ImageFolder", "torchvision.datasets.DatasetFolder", "torchvision.datasets.ImageNet",
    "torchvision.datasets.EuroSAT", "torchvision.datasets.Country211", "torchvision.datasets.RenderedSST2",
    "torchvision.datasets.folder.ImageFolder", "torchvision.datasets.folder.DatasetFolder",
))  # fmt: skip
"""Datasets that read the subfolders of the classes one after another."""
CLASSIFICATION_LOSSES: Final = (
    "cross_entropy", "CrossEntropyLoss", "nll_loss", "NLLLoss", "BCELoss", "BCEWithLogitsLoss",
    "binary_cross_entropy", "binary_cross_entropy_with_logits",
)  # fmt: skip
RECURRENT_LAYERS: Final = ("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell")
RANDOM_FUNCTIONS: Final = frozenset(("torch.randn", "torch.rand", "torch.randn_like", "torch.rand_like"))
_GENERATOR: Final = ("torch.Generator", "torch.Tensor.manual_seed")


def reads_sorted_classes(source: SourceFile, start: Op, loader: AbstractValue) -> bool:
    """Return True if a loop iterates over samples sorted by the targets of its classification loss.

    Args:
        source: the file.
        start: the operation that starts the loop over the loader.
        loader: a loader that does not shuffle.
    """
    dataset, batch = loader.sources[0], loader.arguments.get("batch_size") or loader.arguments.get("1")
    inside = [each for each in source.operations if any(loop.node is start.node for loop in each.loops)]
    losses = [
        each for each in inside if each.kind is OpKind.LOSS and each.name.rpartition(".")[2] in CLASSIFICATION_LOSSES
    ]
    targets = [each.inputs[1] for each in losses if len(each.inputs) > 1 and loader in each.inputs[1].ancestors()]
    has_backward = any(each.kind is OpKind.BACKWARD and not len(each.branches) > len(start.branches) for each in inside)
    has_recurrent_layer = any(each.name.rpartition(".")[2] in RECURRENT_LAYERS for each in source.ops(OpKind.CREATE))
    if not targets or not has_backward or has_recurrent_layer or batch is None or dataset.union:
        return False
    if dataset.name in CLASS_FOLDER_DATASETS or is_collected_by_class(source, dataset):
        return not any(each.name == "builtins.len" for each in batch.ancestors())
    is_table = dataset.name == "torch.utils.data.TensorDataset"
    return is_table and _is_sorted_table(dataset, targets[0], start.node.target, batch, source)


def shuffle_fix(source: SourceFile, call: Any) -> Fix | None:
    """Return the fix that passes ``shuffle=True`` to the call that builds a loader."""
    shuffle = argument_node(call, "shuffle", 2)
    arguments = [*call.args, *(each.value for each in call.keywords)]
    end = max(source.text.span(each)[1] for each in arguments)
    edit = Edit(end, end, ", shuffle=True") if shuffle is None else source.text.replace(shuffle, "True")
    is_unpacked = any(each.arg is None for each in call.keywords) or any(
        isinstance(each, ast.Starred) for each in call.args
    )
    return None if is_unpacked else Fix((edit,), safe=False, description="Shuffle the training samples")


def _is_sorted_table(
    dataset: AbstractValue, target: AbstractValue, names: ast.expr, batch: AbstractValue, source: SourceFile
) -> bool:
    """Return True if the target column is sorted by class and the other columns are random numbers."""
    nodes = {id(each.node) for each in target.ancestors()}
    rows = [each.elts for each in nodes_in(names, ast.Tuple, ast.List)]
    full_rows = [each for each in rows if len(each) == len(dataset.sources)]
    positions = [number for row in full_rows for number, each in enumerate(row) if id(each) in nodes]
    size = batch.constant()
    if len(positions) != 1 or not isinstance(size, int):
        return False
    column = dataset.sources[positions[0]]
    others = [each for each in dataset.sources if each is not column]
    changed = [each.subject for each in source.ops(OpKind.STORE_ITEM)]
    own_values = {id(each) for each in column.ancestors()}
    all_random = bool(others) and all(_is_random(each, own_values, column.name) for each in others)
    return all_random and _shortest_run(column) >= 2 * size and not any(each in changed for each in dataset.sources)


def _is_random(value: AbstractValue, own_values: set[int], label: str) -> bool:
    """Return True if samples are independent random numbers, possibly shifted by their class."""
    tensors = [each for each in value.ancestors() if each.kind is ValueKind.TENSOR and id(each) not in own_values]
    only_known = all(
        each.name in (*RANDOM_FUNCTIONS, *_GENERATOR, label, "torch.cat") or "binary " in each.name for each in tensors
    )
    return only_known and any(each.name in RANDOM_FUNCTIONS for each in tensors)


def _shortest_run(column: AbstractValue) -> int:
    """Return the length of the shortest run of one class in a column; 0 if it is unknown."""
    node: Any = column.node
    name = column.name.rpartition(".")[2]
    if not isinstance(node, ast.Call):
        return 0
    if (
        name == "repeat_interleave"
        and column.sources
        and column.sources[0].name == "torch.arange"
        and len(column.sources) == 2
    ):
        return _constant_int(column.sources[1])
    if column.name in ("torch.cat", "torch.concatenate", "torch.hstack") and column.sources:
        parts = column.sources[0].sources
        is_constant = all(each.name in ("torch.zeros", "torch.ones", "torch.full") for each in parts) and len(parts) > 1
        return min(_constant_int(each.sources[0]) if each.sources else 0 for each in parts) if is_constant else 0
    return 0


def _constant_int(size: AbstractValue) -> int:
    value = size.sources[0].constant() if size.name == "" and len(size.sources) == 1 else size.constant()
    return value if isinstance(value, int) else 0
