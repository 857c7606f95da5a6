"""Finds loaders that are called held out and read the dataset that the model is trained on."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.evaluation_loops import find_loader
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.source_file import Hit, SourceFile, last_name

_HELD_OUT: Final = re.compile(
    r"(^|_)(val|valid|validation|validate|test|testing|dev|eval|held_?out|holdout)(_|\d|$|loader|set|d[ls]$)", re.I
)
_TRAINING: Final = re.compile(r"train|tr_|fit", re.I)
_SELECTING: Final = frozenset(("sampler", "batch_sampler", "3", "4", "**"))
"""Arguments of a loader that may select samples."""
_READING: Final = frozenset((
    "0", "dataset", "batch_size", "shuffle", "num_workers", "collate_fn", "pin_memory", "drop_last", "generator",
    "worker_init_fn", "persistent_workers", "prefetch_factor", "timeout", "device", "multiprocessing_context",
))  # fmt: skip
"""Arguments of a loader that select no samples; those of other libraries take samples by number: ``(graph, nodes)``."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the loaders called held out whose dataset is that of the training, or contains it."""
    for built in source.ops(OpKind.CREATE):
        name = _name(built)
        if built.subject.kind is not ValueKind.LOADER or not _HELD_OUT.search(name) or _TRAINING.search(name):
            continue
        for trained in _training_loaders(source, built):
            if trained is built.subject:
                continue
            message = _fault(source, built, trained)
            if message:
                yield Hit(
                    message=f"`{name}` reads samples that the model is trained on: {message}.",
                    node=built.node,
                    related=((trained.node, "the training loader"),),
                )
                break


def _name(built: Op) -> str:
    """Return the variable or attribute that holds a new loader; "" if there is not exactly one."""
    statement: Any = built.statement
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return ""
    target, value = statement.targets[0], statement.value
    if isinstance(value, ast.Dict):  # {"train": ..., "val": ...}
        keys = [key for key, each in zip(value.keys, value.values, strict=True) if each is built.node]
        return str(getattr(keys[0], "value", "")) if len(keys) == 1 else ""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return next((last_name(t) for t, v in zip(target.elts, value.elts, strict=True) if v is built.node), "")
    return last_name(target) if value is built.node else ""


def _training_loaders(source: SourceFile, built: Op) -> list[AbstractValue]:
    """Return the loaders of the loops in which an optimizer steps."""
    found: list[AbstractValue] = []
    for step in source.ops_of_run(built):
        for loop in step.loops if step.kind is OpKind.STEP else ():
            loader = find_loader(loop)
            found += [] if loader is None else [each for each in loader.alternatives() if each not in found]
    return found


def _fault(source: SourceFile, built: Op, trained: AbstractValue) -> str:
    """Return why a loader reads samples of the training loader; "" if that is not certain."""
    held_out = built.subject
    if any(not each.sources or _may_select(each) for each in (held_out, trained)):
        return ""
    own, other = held_out.sources[0], trained.sources[0]
    is_dataset = own.kind in (ValueKind.DATASET, ValueKind.INSTANCE, ValueKind.UNKNOWN)
    if not is_dataset or own.union or other.union or _is_one_of_several(source, own):
        return ""
    if own is other and _has_held_out_set(source, built):
        return f"both loaders get `{_dataset_text(built)}`"
    parts = [each.name == "torch.utils.data.Subset" and bool(each.sources) for each in (own, other)]
    if parts[1] and other.sources[0] is own:
        return f"it gets all of `{_dataset_text(built)}`, and the training set is a part of it"
    if all(parts) and own.sources[0] is other.sources[0] and _is_split_again(source, own.node, other.node):
        return "the dataset is split twice, each time in another way"
    return ""


def _may_select(loader: AbstractValue) -> bool:
    """Return True if a loader may read a part of its dataset only."""
    names = loader.arguments.keys()
    return bool(_SELECTING & names or (not loader.name.startswith("torch.") and names - _READING))


def _is_one_of_several(source: SourceFile, dataset: AbstractValue) -> bool:
    """Return True for a dataset that a comprehension creates for each of its items: ``[build(s) for s in splits]``."""
    around = [dataset.node, *enclosing_nodes(source, dataset.node)] if isinstance(dataset.node, ast.AST) else []
    return any(isinstance(each, ast.ListComp | ast.GeneratorExp | ast.DictComp) for each in around)


def _has_held_out_set(source: SourceFile, built: Op) -> bool:
    """Return True if the program has another dataset or part than the one that a held-out loader gets."""
    own, text = built.subject.sources[0], _dataset_text(built)
    datasets = [each.subject for each in source.ops(OpKind.CREATE) if each.subject.kind is ValueKind.DATASET]
    others = any(each is not own and each not in own.sources for each in datasets)
    return others or own.name == "torch.utils.data.Subset" or text.endswith(".dataset") or bool(_TRAINING.search(text))


def _is_split_again(source: SourceFile, one: Any, other: Any) -> bool:
    """Return True for two different calls of ``random_split`` without a generator or a seed for each."""
    calls = (one, other)
    split = all(
        isinstance(each, ast.Call) and source.qualified_name(each.func) == "torch.utils.data.random_split"
        for each in calls
    )
    seeded = any(word.arg == "generator" for each in calls if split for word in each.keywords)
    first, last = sorted((one.lineno, other.lineno))
    between = any(first <= each.node.lineno <= last for each in source.ops(OpKind.SEED))
    return split and one is not other and not seeded and not between and all(len(each.args) < 3 for each in calls)


def _dataset_text(built: Op) -> str:
    call = built.node
    named = [each.value for each in call.keywords if each.arg == "dataset"]
    return ast.unparse((*call.args[:1], *named)[0]) if call.args or named else "the same dataset"
