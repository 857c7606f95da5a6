"""Finds meters, objects with methods such as ``update()`` and ``reset()``, that add up the batches of all epochs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import batch_loops
from trueloop.analysis.queries.class_instances import Instance, definitions, enclosing_loops, instances, uses
from trueloop.analysis.queries.metric_names import WORDS, name_words
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.source_file import REMOVING_METHODS, Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, nodes_in, walk

_METRIC_WORDS: Final = frozenset((*WORDS["max"], *WORDS["min"], "argmax", "confusion", "hits", "metric", "metrics"))
_COSTS: Final = frozenset(("time", "timer", "speed", "throughput", "seconds", "memory", "norm", "tokens", "ema"))
"""Words in the names of meters whose value over all epochs is of interest."""
_COUNTS: Final = frozenset(("count", "n", "num", "seen", "step", "steps", "counter", "iters", "samples"))
_LIBRARIES: Final = ("torchmetrics.", "torcheval.metrics.")
_BATCHES: Final = re.compile(r"batch|split\(|chunk\(|loader|steps_per|range\([^()]*,[^()]*,", re.IGNORECASE)


class Meter(NamedTuple):
    """The methods and attributes of a class that adds up values of batches."""

    updating: frozenset[str]
    resetting: frozenset[str]
    reading: frozenset[str]
    """Methods and attributes that return what was added up."""
    neutral: frozenset[str]
    """Other methods and attributes."""
    sums: frozenset[str] = frozenset()
    """Attributes whose quotient is read outside of the class."""


_LIBRARY_METER: Final = Meter(
    frozenset(("update", "__call__", "forward")),
    frozenset(("reset",)),
    frozenset(("compute",)),
    frozenset(("to", "cpu", "cuda", "eval", "train")),
)


def find_unreset_meters(source: SourceFile) -> Iterator[Hit]:
    """Yield the first read of each meter that is updated for every batch, read in every epoch and never reset."""
    for instance in instances(source):
        meter, is_of_library = _meter_class(source, instance.call)
        found = uses(source, instance.target) if meter is not None else None
        if meter is None or not found:
            continue
        used = [(each, *_use(source, meter, each)) for each in found]
        if any(kind in ("reset", "unknown") for _, kind, _ in used):
            continue
        updates = [node for _, kind, node in used if kind == "update" and (is_of_library or _is_result(instance, node))]
        reads = [node for _, kind, node in used if kind == "read"]
        yield from _find_read(source, instance, meter, updates, reads)


def _find_read(
    source: SourceFile, instance: Instance, meter: Meter, updates: list[Any], reads: list[Any]
) -> Iterator[Hit]:
    created = {id(loop) for path in enclosing_loops(source, instance.target) for loop in path}
    for update in updates:
        for batches, *outer in filter(None, enclosing_loops(source, update)):  # () = outside of all loops
            if not _is_batch_loop(source, batches) or (not meter.resetting and _trains(batches)):
                continue
            epochs = [each for each in outer if id(each) not in created and _is_epoch_loop(each)]
            for read in reads if epochs else ():
                if any(_reads_each_epoch(source, read, each, batches) for each in epochs):
                    name = ast.unparse(instance.target)
                    yield Hit(
                        message=f"`{name}` is never reset: from the second epoch on its value also contains the "
                        "batches of all previous epochs.",
                        node=read,
                        related=((update, "updated here"),),
                        fix=_insert_reset(source, meter, update, batches),
                    )
                    return


def find_unreset_evaluators(source: SourceFile) -> Iterator[Hit]:
    """Yield what a method reads after its own loop over batches, if each epoch calls it and nothing resets the object.

    Methods that train are left out: what they add up may count over the whole training.
    """
    known = definitions(source)
    for method in (each for each in known.functions.values() if not _trains(each)):
        definition = source.parents.get(id(method))
        meter = _own_meter(definition) if isinstance(definition, ast.ClassDef) else None
        if meter is None or not isinstance(definition, ast.ClassDef) or method.name not in meter.updating:
            continue
        words = name_words(f"{definition.name} {method.name} {' '.join(meter.reading | meter.sums)}")
        calls = _calls_in_epochs(source, definition, method)
        if not calls or not words & _METRIC_WORDS or words & _COSTS or _is_reset_outside(source, definition, meter):
            continue
        for batches in (each for each in nodes_in(method, ast.For) if _is_batch_loop(source, each)):
            update = next((each for each in walk(batches) if _is_own(each, meter.updating, meter.sums)), None)
            behind = [each for each in walk(method) if getattr(each, "lineno", 0) > (batches.end_lineno or 0)]
            read = next((each for each in behind if _is_own(each, meter.reading, meter.sums)), None)
            if update is not None and read is not None:
                yield Hit(
                    message=f"`{definition.name}` is never reset: from the second call of `{method.name}()` on, its "
                    "value also contains the batches of all previous calls.",
                    node=read,
                    related=((update, "updated here"), (calls[0], "called here in each epoch")),
                )
                break


def _calls_in_epochs(source: SourceFile, definition: ast.ClassDef, method: ast.FunctionDef) -> list[ast.Call]:
    """Return the calls of a method in loops over epochs that do not create its object."""
    known = definitions(source).calls
    created = _loops_around(source, known.get(definition.name, ()))
    return [
        call
        for call in known.get(method.name, ())
        if any(_is_epoch_loop(each) for each in _loops_around(source, (call,)) - created)
    ]


def _loops_around(source: SourceFile, calls: Iterable[ast.Call]) -> set[ast.For | ast.While]:
    return {loop for call in calls for path in enclosing_loops(source, call) for loop in path}


def _is_reset_outside(source: SourceFile, definition: ast.ClassDef, meter: Meter) -> bool:
    """Return True if the program, outside of a class, calls a method that resets it or assigns to one of its sums."""
    inside, known = {id(each) for each in nodes_in(definition, ast.Attribute)}, definitions(source).attributes
    return any(
        id(each) not in inside and (name in meter.resetting or isinstance(each.ctx, ast.Store))
        for name in meter.resetting | meter.sums
        for each in known.get(name, ())
    )


def _is_own(node: ast.AST, methods: frozenset[str], sums: frozenset[str]) -> bool:
    """Return True for a call of some methods of ``self``, ``self.correct += ...`` and ``self.correct / n``."""
    match node:
        case ast.Call(func=function):
            return _own_attribute(function) in methods
        case ast.AugAssign(op=ast.Add(), target=target):
            return _own_attribute(target) in sums - _COUNTS
        case ast.BinOp(left=left, op=ast.Div()):
            return any(_own_attribute(each) in sums - _COUNTS for each in nodes_in(left, ast.Attribute))
        case _:
            return False


def _meter_class(source: SourceFile, call: ast.Call) -> tuple[Meter | None, bool]:
    """Return the methods of the class that a call creates, and whether a library defines it."""
    if source.qualified_name(call.func).startswith(_LIBRARIES):
        return _LIBRARY_METER, True
    definition = definitions(source).classes.get(last_name(call.func))
    return (None if definition is None else _own_meter(definition)), False


@lru_cache(maxsize=256)  # many objects of few classes
def _own_meter(definition: ast.ClassDef) -> Meter | None:
    """Return what the methods of a class do with its running sums and lists; None if it has none."""
    methods = {each.name: each for each in definition.body if isinstance(each, ast.FunctionDef)}
    added = {name: _added(each) for name, each in methods.items()}
    sums = {attribute for name, own in added.items() if name != "__init__" for attribute in own}
    if not sums or "maxlen" in ast.unparse(definition):
        return None
    resetting = _with_callers(methods, {name for name, each in methods.items() if _resets(each, sums)})
    updating = _with_callers(methods, {name for name, own in added.items() if own}) - {"__init__"}
    lists = {attribute for own in added.values() for attribute, is_list in own.items() if is_list}
    returning = {name for name, each in methods.items() if nodes_in(each, ast.Return)}
    reading = _with_callers(methods, {name for name in returning if _reads(methods[name], sums - _COUNTS, lists)})
    averages = {
        target.attr
        for name in updating
        for each in nodes_in(methods[name], ast.Assign)
        if isinstance(each.value, ast.BinOp) and isinstance(each.value.op, ast.Div)
        if _reads(each.value, sums, lists)
        for target in each.targets
        if isinstance(target, ast.Attribute)
    }
    return Meter(
        frozenset(updating - resetting),
        frozenset(resetting - {"__init__"}),
        frozenset((reading - updating - resetting) | averages),
        frozenset(methods.keys() | {n.attr for n in nodes_in(definition, ast.Attribute)}),
        frozenset(sums - lists),
    )


def _own_attribute(node: Any) -> str:
    """Return "x" for ``self.x`` and ``self.x[key]``; "" for other expressions."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self" else ""


def _added(method: ast.AST) -> dict[str, bool]:
    """Return the attributes to which a method adds values, with True for lists."""
    found: dict[str, bool] = {}
    for each in nodes_in(method, ast.AugAssign, ast.Assign, ast.Call):
        match each:
            case ast.AugAssign(op=ast.Add(), target=target):
                found[_own_attribute(target)] = False
            case ast.Assign(targets=[target], value=ast.BinOp(op=ast.Add(), left=left, right=right)):
                if ast.unparse(target) in (ast.unparse(left), ast.unparse(right)):
                    found[_own_attribute(target)] = False
            case ast.Call(func=ast.Attribute(attr="append" | "extend", value=owner)):
                found[_own_attribute(owner)] = True
            case _:
                pass
    found.pop("", None)
    return found


def _resets(method: ast.FunctionDef, sums: set[str]) -> bool:
    """Return True for a method that may set a sum to another value than a larger one."""
    nodes = list(walk(method))
    is_named_so = bool(re.search(r"reset|clear", method.name))
    is_opaque = any(
        isinstance(each, ast.Delete) or last_name(each) in ("setattr", "super", "__dict__")  # type: ignore[arg-type]
        for each in nodes
    )
    return is_named_so or is_opaque or any(changed in sums for each in nodes for changed in _changed(each))


def _changed(node: ast.AST) -> list[str]:
    """Return the attributes that a statement or call changes other than by adding to them."""
    match node:
        case ast.Assign(targets=targets, value=value) if not _is_sum(targets, value):
            return [_own_attribute(inner) for target in targets for inner in walk(target)]
        case ast.AnnAssign(target=target):
            return [_own_attribute(target)]
        case ast.AugAssign(op=op, target=target) if not isinstance(op, ast.Add):
            return [_own_attribute(target)]
        case ast.Call(func=ast.Attribute(attr=attr, value=owner)) if attr in {*REMOVING_METHODS, "zero_", "fill_"}:
            return [_own_attribute(owner)]
        case _:
            return []


def _is_sum(targets: list[ast.expr], value: ast.expr) -> bool:
    text = [ast.unparse(each) for each in targets]
    match value:
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return text in ([ast.unparse(left)], [ast.unparse(right)])
        case _:
            return False


def _with_callers(methods: dict[str, ast.FunctionDef], names: set[str]) -> set[str]:
    """Return methods together with those that call them."""
    found = set(names)
    used = {name: {_own_attribute(n) for n in nodes_in(each, ast.Attribute)} for name, each in methods.items()}
    while True:
        callers = {name for name, own in used.items() if name not in found and not own.isdisjoint(found)}
        if not callers:
            return found
        found |= callers


def _reads(node: ast.AST, sums: set[str], lists: set[str]) -> bool:
    """Return True if an expression or method reads a sum, or a whole list."""
    parts = {id(each.value) for each in nodes_in(node, ast.Subscript) if _own_attribute(each.value) in lists}
    return any(
        isinstance(each.ctx, ast.Load) and _own_attribute(each) in sums and id(each) not in parts
        for each in nodes_in(node, ast.Attribute)
    )


def _use(source: SourceFile, meter: Meter, node: ast.expr) -> tuple[str, Any]:
    """Return what an expression does with a meter ("update", "read", "reset", "none", "unknown"), and its call."""
    parent: Any = source.parents.get(id(node))
    grandparent: Any = source.parents.get(id(parent))
    match parent:
        case ast.Attribute(attr=name):
            is_called = isinstance(grandparent, ast.Call) and grandparent.func is parent
            kind = _kind(meter, name) if isinstance(parent.ctx, ast.Load) else "reset"
            if name in meter.sums and isinstance(grandparent, ast.BinOp) and isinstance(grandparent.op, ast.Div):
                return "read", parent
            return kind, grandparent if is_called else parent
        case ast.Call(func=func) if func is node:
            return _kind(meter, "__call__" if "__call__" in meter.neutral | meter.updating else "forward"), parent
        case ast.FormattedValue() | ast.Call(func=ast.Name(id="print" | "str" | "repr" | "float")):
            kinds = {_kind(meter, name) for name in ("__str__", "__repr__", "__format__", "__float__")}
            return ("read" if "read" in kinds else "none"), parent
        case ast.Compare() | ast.Expr() | ast.Call(func=ast.Name(id="len" | "isinstance")):
            return "none", parent
        case _:
            return "unknown", parent


def _kind(meter: Meter, name: str) -> str:
    if name in meter.resetting:
        return "reset"
    if name in meter.updating:
        return "update"
    return "read" if name in meter.reading else "none" if name in meter.neutral else "unknown"


def _is_result(instance: Instance, update: Any) -> bool:
    """Return True if a meter is given a loss, predictions or a score, and not a duration."""
    texts = [ast.unparse(instance.target), last_name(instance.call.func)]
    arguments = [ast.unparse(each) for each in (*update.args, *update.keywords)] if isinstance(update, ast.Call) else []
    words = {word for text in (*texts, *arguments) for word in name_words(text)}
    is_comparison = bool(nodes_in(update, ast.Compare))
    return (bool(words & _METRIC_WORDS) or is_comparison) and not words & _COSTS


def _is_batch_loop(source: SourceFile, loop: ast.For | ast.While) -> bool:
    if any(each.node is loop for each in batch_loops(source)):
        return True
    return isinstance(loop, ast.For) and bool(_BATCHES.search(ast.unparse(loop.iter)))


def _trains(loop: ast.AST) -> bool:
    return any(each.attr in ("backward", "step") for each in nodes_in(loop, ast.Attribute))


def _is_epoch_loop(loop: ast.For | ast.While) -> bool:
    head = [loop.test] if isinstance(loop, ast.While) else [loop.target, loop.iter]
    return any("epoch" in ast.unparse(each).lower() for each in head) or _trains(loop)


def _reads_each_epoch(source: SourceFile, read: ast.AST, epochs: ast.AST, batches: ast.AST) -> bool:
    """Return True if an expression runs in every iteration of a loop, after an inner loop."""
    paths = [{id(each) for each in path} for path in enclosing_loops(source, read)]
    if not any(id(epochs) in path and id(batches) not in path for path in paths):
        return False
    tests = [each.test for each in enclosing_nodes(source, read) if isinstance(each, ast.If)]
    return not any(nodes_in(each, ast.Eq) for each in tests)  # perhaps only in the last epoch


def _insert_reset(source: SourceFile, meter: Meter, update: Any, batches: ast.For | ast.While) -> Fix | None:
    """Return the fix: reset the meter before the loop over batches."""
    function: Any = getattr(update, "func", None)
    if "reset" not in meter.resetting or function is None:
        return None
    owner = (
        function.value if isinstance(function, ast.Attribute) and last_name(function) in meter.updating else function
    )
    edit = source.text.insert_before(batches, f"{ast.unparse(owner)}.reset()")
    return Fix((edit,), safe=False, description="Reset the meter in every epoch") if edit else None
