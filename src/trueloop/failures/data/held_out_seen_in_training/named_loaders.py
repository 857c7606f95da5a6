"""Finds loaders that read the wrong part of a split, in the source."""

import ast
import itertools
from collections.abc import Iterator
from typing import Final, NamedTuple

from trueloop.analysis.queries.batch_loops import LOADER_WORDS, function_of
from trueloop.analysis.queries.held_out_names import HELD_OUT, TRAINING
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name
from trueloop.failures.data.held_out_seen_in_training import (
    files_of_test_part,
    folds_share_model,
    sampled_rows,
    scored_on_training,
    unread_part,
    windows_split,
    wrong_loader,
)
from trueloop.failures.failure import Rule, Severity


class _Loader(NamedTuple):
    """A loader that is assigned to a variable."""

    name: str
    call: ast.Call
    dataset: ast.expr
    has_sampler: bool


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield held-out loaders of training data, training loaders of data that was split, and data split twice."""
    loaders = list(_loaders(source))
    yield from _held_out_loaders(source, loaders)
    splits = list(_splits(source))
    yield from _loaders_of_all(source, loaders, splits)
    for first, second in itertools.pairwise(splits):
        is_same = function_of(source, first.statement) is function_of(source, second.statement)
        calls = [first.call, second.call]
        seeded = any(each.arg == "generator" for call in calls for each in call.keywords)
        if is_same and not seeded and ast.unparse(calls[0].args[0]) == ast.unparse(calls[1].args[0]):
            kept = [[name for name in each.parts if name not in ("_", "__", "")] for each in (first, second)]
            if all(kept) and all(len(own) < len(each.parts) for own, each in zip(kept, (first, second), strict=True)):
                yield Hit(
                    message=f"`{ast.unparse(calls[1].args[0])}` is split a second time, at random: `{kept[0][0]}` and "
                    f"`{kept[1][0]}` have samples in common.",
                    node=second.call,
                    related=((first.call, "the first split"),),
                    severity=Severity.WARNING,
                )


class _Split(NamedTuple):
    """A call of ``random_split`` whose parts are assigned to variables."""

    statement: ast.Assign
    call: ast.Call
    parts: list[str]


def _splits(source: SourceFile) -> Iterator[_Split]:
    for statement in source.nodes_of(ast.Assign):
        match statement:
            case ast.Assign(targets=[ast.Tuple(elts=parts)], value=ast.Call() as call) if (
                last_name(call.func) == "random_split" and call.args
            ):
                yield _Split(statement, call, [dotted_name(each) for each in parts])
            case _:
                pass


def _loaders(source: SourceFile) -> Iterator[_Loader]:
    for statement in source.nodes_of(ast.Assign):
        if not isinstance(statement.value, ast.Call):
            continue
        call = statement.value
        if not last_name(call.func).endswith("DataLoader"):
            continue
        options = {each.arg: each.value for each in call.keywords}
        dataset = call.args[0] if call.args else options.get("dataset")
        sampler = options.get("sampler") or options.get("batch_sampler")
        is_none = isinstance(sampler, ast.Constant) and sampler.value is None
        if dataset is not None and None not in options:
            name = last_name(statement.targets[0])
            yield _Loader(name, call, dataset, sampler is not None and not is_none)


def _held_out_loaders(source: SourceFile, loaders: list[_Loader]) -> Iterator[Hit]:
    """Yield the held-out loaders of a dataset that is called training data, unless another one is trained on."""
    for loader in loaders:
        function = function_of(source, loader.call)
        trained = {ast.unparse(e.dataset) for e in loaders if _trains(e) and function_of(source, e.call) is function}
        if trained and ast.unparse(loader.dataset) not in trained:
            continue
        words, data = name_words(loader.name), name_words(last_name(loader.dataset))
        is_held_out = bool(words & HELD_OUT) and not words & TRAINING
        if is_held_out and data & TRAINING and not data & HELD_OUT and not loader.has_sampler:
            yield Hit(
                message=f"`{loader.name}` reads `{ast.unparse(loader.dataset)}`: by their names, the model is "
                "evaluated on the data that it is trained on.",
                node=loader.call,
                severity=Severity.WARNING,
            )


def _loaders_of_all(source: SourceFile, loaders: list[_Loader], splits: list[_Split]) -> Iterator[Hit]:
    """Yield the training loaders of a dataset of which a part was split off, where this part is used as held out."""
    for split in splits:
        for loader in loaders:
            is_same = function_of(source, loader.call) is function_of(source, split.statement)
            is_later = loader.call.lineno > split.statement.lineno
            if is_same and is_later and _trains(loader) and not loader.has_sampler:
                yield from _judge(loaders, loader, split)


def _trains(loader: _Loader) -> bool:
    """Return True for a loader that is called a training loader, or that shuffles and is not called held out."""
    shuffles = any(each.arg == "shuffle" and getattr(each.value, "value", None) for each in loader.call.keywords)
    words = name_words(loader.name)
    return bool(words & TRAINING) or (shuffles and not words & HELD_OUT)


def _judge(loaders: list[_Loader], loader: _Loader, split: _Split) -> Iterator[Hit]:
    """Yield a training loader if it reads the full dataset, while another loader reads a part of it."""
    read = [dotted_name(each.dataset) for each in loaders]
    owner = loader.dataset.value if isinstance(loader.dataset, ast.Attribute) else None
    is_base = owner is not None and last_name(loader.dataset) == "dataset" and dotted_name(owner) in split.parts
    is_all = dotted_name(loader.dataset) == dotted_name(split.call.args[0]) != "" and split.parts[0] not in read
    used = {*read, *(each.removesuffix(".dataset") for each in read if each.endswith(".dataset"))}
    others = [each for each in split.parts if each in used and (owner is None or each != dotted_name(owner))]
    if (is_base or is_all) and others:
        yield Hit(
            message=f"`{loader.name}` reads all of `{ast.unparse(loader.dataset)}`, also the samples that "
            f"`{ast.unparse(split.call.func)}` put aside for the evaluation.",
            node=loader.call,
            related=((split.statement, "split here"),),
            severity=Severity.WARNING,
        )


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield all uses of training samples for an evaluation."""
    found = list(find(source))
    yield from found or wrong_loader.find(source)
    yield from scored_on_training.find(source)
    yield from unread_part.find(source)
    yield from folds_share_model.find(source)
    yield from windows_split.find(source)
    yield from files_of_test_part.find(source)
    yield from sampled_rows.find(source)


_LOADERS: Final = f"DataLoader|random_split|{LOADER_WORDS}|_dl|dl_|Dl|DL"
_FOLDS: Final = "old&.step(|chunk(&.step(|array_split&.step(|kf&.step(|cv&.step(|Split&.step(|LeaveOne&.step("
_PARTS: Final = "test_|_test|val_|_val|_te |_te,"
_ORDERS: Final = "permutation&range(&torch|randperm&range("
_FILES: Final = "glob(&test|listdir(&test|.sample(&val|.sample(&test|.sample(&dev"
RULE = Rule(required_words=(f"{_LOADERS}|{_FOLDS}|{_PARTS}|{_ORDERS}|{_FILES}",), find=find_all)
