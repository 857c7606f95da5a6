"""Finds out how the results of ``state_dict()`` are stored, loaded and copied."""

import ast
from collections.abc import Iterator

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.optimizer_settings import has_other_rate, sets_in_groups
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import Edit, Fix


def contains_state(value: AbstractValue, state: AbstractValue) -> bool:
    """Return True if a value is a given state, or a list, dictionary or instance that contains the state."""
    queue, seen = [value], set[int]()
    while queue:
        each = queue.pop()
        if each is state:
            return True
        if id(each) not in seen:
            seen.add(id(each))
            queue += [value for value in each.alternatives() if value is not each]
            if each.kind in (ValueKind.SEQUENCE, ValueKind.INSTANCE) and each.name != "comprehension":
                queue += (*each.sources, *each.attributes.values())
    return False


def loads_without_optimizer(source: SourceFile) -> Iterator[tuple[Op, Op]]:
    """Yield the loads of a model and of its scheduler or scaler from a file whose optimizer state is not loaded.

    The source file must save optimizer states, and the object of every ``load_state_dict`` call must be known.
    """
    loads = source.ops(OpKind.LOAD_STATE_DICT)
    if not _loads_only(source, ValueKind.MODEL, ValueKind.SCHEDULER, ValueKind.SCALER):
        return
    if not any(ValueKind.OPTIMIZER in _saved_kinds(each) for each in source.ops(OpKind.SAVE)):
        return
    loaded = {id(each.result) for each in source.ops(OpKind.LOAD)}
    for model in loads:
        files = _loaded_files(model, loaded) if model.subject.kind is ValueKind.MODEL else set[int]()
        for other in loads if files else ():
            has_same_source = (
                other.entry_point == model.entry_point
                and other.branches == model.branches
                and files & _loaded_files(other, loaded)
            )
            if has_same_source and other.subject.kind is not ValueKind.MODEL and _optimizers_have_state(source, model):
                yield model, other
                break


def loads_without_scheduler(source: SourceFile) -> Iterator[tuple[Op, Op, bool]]:
    """Yield the load of an optimizer's state from a file, and a save; whether the scheduler's state is saved there.

    A scheduler of this optimizer is stepped without an epoch, and its state is never loaded. The object of every
    ``load_state_dict`` call must be known. A new stage of the training, with another learning rate, is no resumption.
    """
    if not _loads_only(source, ValueKind.MODEL, ValueKind.OPTIMIZER, ValueKind.SCALER):
        return
    saves = [(each, _saved_kinds(each)) for each in source.ops(OpKind.SAVE)]
    save = next((each for each, kinds in saves if ValueKind.SCHEDULER in kinds), None)
    is_saved = save is not None
    escaped = {each.kind for op in source.ops(OpKind.ESCAPE) for each in op.inputs}
    steps = [each for each in source.ops(OpKind.SCHEDULER_STEP) if not each.node.args]
    if save is None and steps and ValueKind.SCHEDULER not in escaped:
        save = next((each for each, kinds in saves if ValueKind.OPTIMIZER in kinds), None)
    files = {id(each.result) for each in source.ops(OpKind.LOAD)}
    for load in source.ops(OpKind.LOAD_STATE_DICT):
        if save is None or load.subject.kind is not ValueKind.OPTIMIZER or not _loaded_files(load, files):
            continue
        if (
            _is_scheduled(source, load.subject)
            and not _sets_rate_after(source, load)
            and not _has_new_rate(saves, load)
            and not _ends_training(source, load)
        ):
            yield load, save, is_saved


def _is_scheduled(source: SourceFile, optimizer: AbstractValue) -> bool:
    """Return True if a scheduler changes the rate of an optimizer, or of one that is unknown."""
    values = [each.subject for each in source.ops(OpKind.CREATE, OpKind.SCHEDULER_STEP)]
    schedulers = [each for value in values for each in value.alternatives() if each.kind is ValueKind.SCHEDULER]
    scheduled = [owner for each in schedulers for owner in each.sources[:1] or (each,)]
    return any(each.kind is not ValueKind.OPTIMIZER or each.may_alias(optimizer) for each in scheduled)


def _sets_rate_after(source: SourceFile, load: Op) -> bool:
    """Return True if the statements after a load set the learning rate in the parameter groups."""
    return any(sets_in_groups(each, name) for each in source.following(load.statement) for name in ("lr", "initial_lr"))


def _ends_training(source: SourceFile, load: Op) -> bool:
    """Return True for a load between the last step of a program and its end, as of the best weights for the test."""
    run = source.ops_of_run(load)
    steps = [each.index for each in run if each.kind is OpKind.STEP and each.subject.may_alias(load.subject)]
    return bool(steps) and max(steps) < load.index


def _has_new_rate(saves: list[tuple[Op, set[ValueKind]]], load: Op) -> bool:
    """Return True if all saved optimizers were built with other learning rates than the one that is loaded."""
    saved = [each for save, _ in saves for each in saved_optimizers(save)]
    return bool(saved) and all(has_other_rate(each, load.subject) for each in saved)


def _loads_only(source: SourceFile, *kinds: ValueKind) -> bool:
    """Return True if the object of every ``load_state_dict`` call is known, and of one of some kinds."""
    loads = source.ops(OpKind.LOAD_STATE_DICT)
    known = {id(each.node) for each in loads}
    calls = [each for each in source.all_calls if getattr(each.func, "attr", "") == "load_state_dict"]
    return all(id(each) in known for each in calls) and all(each.subject.kind in kinds for each in loads)


def _saved_kinds(save: Op) -> set[ValueKind]:
    """Return the kinds of objects whose states are saved."""
    states = [each for value in save.inputs for each in value.ancestors() if each.kind is ValueKind.STATE]
    return {each.sources[0].kind for each in states if each.sources}


def saved_optimizers(save: Op) -> list[AbstractValue]:
    """Return the optimizers whose states are saved."""
    states = [each for value in save.inputs for each in value.ancestors() if each.kind is ValueKind.STATE]
    owners = [owner for each in states for source in each.sources[:1] for owner in source.alternatives()]
    return [each for each in owners if each.kind is ValueKind.OPTIMIZER]


def loads_before_optimizers(source: SourceFile) -> Iterator[tuple[Op, Op]]:
    """Yield the loads into an optimizer attribute that is None until a later call builds the optimizer, with that.

    Such a load is skipped by ``if self.optimizer is not None``.
    """
    for load in source.ops(OpKind.LOAD_STATE_DICT):
        is_none = load.subject.kind is ValueKind.CONSTANT and load.subject.value is None and not load.subject.union
        if not is_none or not load.calls or not isinstance(load.node.func.value, ast.Attribute):
            continue
        name, run = load.node.func.value.attr, source.ops_of_run(load)
        later = [each for each in run if each.index > load.index]
        built = next((each for each in later if each.kind is OpKind.SET_ATTRIBUTE and each.name == name), None)
        optimizer = built.inputs[0] if built is not None and built.inputs else None
        if built is None or optimizer is None or optimizer.kind is not ValueKind.OPTIMIZER:
            continue
        used = [each.kind for each in later if each.subject.may_alias(optimizer)]
        if OpKind.STEP in used and OpKind.LOAD_STATE_DICT not in used:
            yield load, built


def _loaded_files(load: Op, loaded: set[int]) -> set[int]:
    return {id(each) for value in load.inputs for each in value.ancestors()} & loaded


def _optimizers_have_state(source: SourceFile, load: Op) -> bool:
    """Return True if all optimizers of a model have state, as all except SGD without momentum do.

    False if an optimizer is passed to code outside the file, which may load its state.
    """
    optimizers = [
        each.subject
        for each in source.ops(OpKind.CREATE)
        if each.subject.kind is ValueKind.OPTIMIZER
        and each.entry_point in (0, load.entry_point)
        and each.subject.covers(load.subject)
    ]
    run = [each for each in source.ops(OpKind.ESCAPE) if each.entry_point in (0, load.entry_point)]
    if any(source.escapes(each, run) for each in optimizers):
        return False
    return bool(optimizers) and all(
        not each.name.endswith("SGD") or ("momentum" in each.arguments and each.arguments["momentum"].constant(1) != 0)
        for each in optimizers
    )


def deepcopy_fix(source: SourceFile, node: ast.Call) -> Fix | None:
    """Return the fix that puts ``copy.deepcopy(...)`` around a call, and adds ``import copy`` if it is missing."""
    start, end = source.text.span(node)
    name, edits = _deepcopy_name(source), list[Edit]()
    if not name:
        name = "copy.deepcopy"
        imports = [each for each in source.tree.body if isinstance(each, ast.Import | ast.ImportFrom)]
        first = next((each for each in imports if getattr(each, "module", "") != "__future__"), None)
        is_name_used = any(each.id == "copy" for each in source.nodes_of(ast.Name))
        line = source.text.insert_before(first, "import copy") if first is not None and not is_name_used else None
        if line is None:
            return None
        edits.append(line)
    edits += [Edit(start, start, f"{name}("), Edit(end, end, ")")]
    return Fix(tuple(edits), safe=True, description="Copy the state")


def _deepcopy_name(source: SourceFile) -> str:
    for each in source.tree.body:
        if isinstance(each, ast.Import | ast.ImportFrom):
            for alias in each.names:
                full_name = alias.name if isinstance(each, ast.Import) else f"{each.module}.{alias.name}"
                if full_name in ("copy", "copy.deepcopy"):
                    used = alias.asname or alias.name
                    return used if full_name == "copy.deepcopy" else f"{used}.deepcopy"
    return ""
