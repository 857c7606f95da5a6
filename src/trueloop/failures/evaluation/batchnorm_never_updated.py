"""An averaged model is evaluated with the initial statistics of its BatchNorm layers.

What you see
    The moving average (EMA) or the averaged model (SWA) scores far worse than the trained model, or as badly as
    guessing, although its weights are good.

Why it happens
    Averaging ``parameters()`` leaves out buffers. The copy is called only in eval mode, so its BatchNorm layers keep
    the mean 0 and the variance 1 with which they were created, and normalise with these.

Fix
    Copy the buffers too, whenever you update the average:

        for average, buffer in zip(ema.buffers(), model.buffers()):
            average.copy_(buffer)

    ``torch.optim.swa_utils.AveragedModel`` does this itself.

When this is fine
    - The average is called in train mode during training, as in Mean Teacher, which updates its statistics.
    - The weights of the copy never change, as in a random network whose outputs are predicted.
    - The averaged weights are loaded into the trained model, which has statistics of its own.
    - The model is trained in eval mode; see EVL002.

How it is detected
    In a run, the sanitizer reports a model that is called in eval mode if its weights have changed between two calls,
    it gets no gradients, and every BatchNorm layer has mean 0, variance 1 and no batch counted. An average that is
    called only once, at the end, is reported if it was seen to follow the trained weights during the training. The
    linter reports a loop over the parameters of a copy in eval mode that averages them, in either order or by name, and
    also in a function or class that gets the copy, if the program has BatchNorm layers and nowhere copies buffers or
    statistics. A copy is a ``deepcopy``, or a new model that loads the ``state_dict()`` of the trained one once.

References
    CuriousAI/mean-teacher#9, "batchnorm of EMA model may be using the default 0-mean and 1-var",
    https://github.com/CuriousAI/mean-teacher/issues/9
    boschresearch/OASIS#21, on the statistics of an averaged generator, https://github.com/boschresearch/OASIS/issues/21
    pytorch/ignite#2590, an EMA whose buffers were not updated, https://github.com/pytorch/ignite/issues/2590
    torch.optim, weight averaging, https://docs.pytorch.org/docs/stable/optim.html#weight-averaging-swa-and-ema
"""

import ast
import re
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from trueloop.analysis.queries.assignments import enclosing_definition
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import enclosing_nodes, origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Evidence
from trueloop.core.formatting import format_count
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import AverageKept, BackwardEnded, ModelCalled, Ref, Refs
from trueloop.tracing.parameter_snapshot import snapshot_parameters
from trueloop.tracing.weak_id_dict import WeakIdDict

MAX_COMPARED: Final = 8  # parameters whose values are compared


@dataclass(slots=True)
class _EvaluatedModel:
    """A model that was called in eval mode without a graph."""

    parameters: Refs
    layers: int
    """Number of its BatchNorm layers; 0 = some of them have statistics, or it has none."""
    update: int
    values: dict[str, tuple[Any, ...]] = field(default_factory=dict[str, tuple[Any, ...]])
    """A few values of its parameters at the first call."""


class Detector(BaseDetector):
    """Compares the weights of models whose BatchNorm layers never saw a batch.

    Cost: 1 us for each call in eval mode; 5 us for each BatchNorm layer at a model's first call.
    """

    def __init__(self) -> None:
        self._models = WeakIdDict[Ref, _EvaluatedModel]()
        self._averages: weakref.WeakSet[Ref] = weakref.WeakSet()
        """Models whose weights are known to be averages of trained ones."""

    def on_average_kept(self, event: AverageKept) -> None:
        """Record the averaged model."""
        if event.module is not None:
            self._averages.add(event.module)

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Exclude models that get gradients."""
        for model in self._models.values():
            if model.layers and not model.parameters.isdisjoint(event.reached_parameters):
                model.layers = 0

    def on_model_called(self, event: ModelCalled) -> Evidence | None:
        """Return evidence at a call of a model whose weights, but not its statistics, have changed."""
        if not event.all_eval or event.has_graph or event.recomputed or not event.update:
            return None
        model = self._models.get(event.model)
        if model is None:
            model = _EvaluatedModel(event.parameters, _initial_layers(event.live_module), event.update)
            self._models.put(event.model, model)
            if model.layers:
                model.values = _values(event)
            is_changed = event.model in self._averages
        else:
            is_changed = event.update != model.update and _values(event) != model.values
        if not model.layers or not is_changed:
            return None
        layers, model.layers = _initial_layers(event.live_module), 0
        if not layers:
            return None
        how = (
            "are an average of trained weights" if event.model in self._averages else "changed between two evaluations"
        )
        return Evidence(
            message=f"The weights of {event.model.name} {how}, but its "
            f"{format_count(layers, 'BatchNorm layer')} never saw a batch: the statistics are still the initial ones, "
            "mean 0 and variance 1.",
            location=event.location,
        )


def _initial_layers(module: Any) -> int:
    """Return the number of BatchNorm layers with statistics if all of them are as at their creation; otherwise 0."""
    layers = [each for each in module.modules() if getattr(each, "num_batches_tracked", None) is not None]
    is_initial = all(
        each.num_batches_tracked.is_cpu  # elsewhere, reading the statistics would synchronise
        and int(each.num_batches_tracked) == 0
        and not each.running_mean.any()
        and bool((each.running_var == 1).all())
        for each in layers
    )
    return len(layers) if is_initial else 0


def _values(event: ModelCalled) -> dict[str, tuple[Any, ...]]:
    names = sorted(ref.name for ref in event.parameters)[:MAX_COMPARED]
    return snapshot_parameters(event.live_module, set(names))


_AVERAGING: Final = frozenset(("lerp_", "mul_", "copy_", "add_"))
_STATISTICS: Final = re.compile(
    r"\bbuffers\(\)|named_buffers|running_mean|update_bn|AveragedModel|ExponentialMovingAverage"
)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the loops that average the parameters, but not the statistics, of a copy in eval mode."""
    text = source.text.source
    if "BatchNorm" not in text or _STATISTICS.search(text):
        return
    copies = _copies_in_eval_mode(source)
    for node, ema, model in _averaged_pairs(source):
        names = [key for each in origins(source, ema) for key in sorted(_keys(source, each))] if copies else []
        built = next((copies[each] for each in names if each in copies), None)
        if built is not None:
            name, other = source.text.segment(ema), source.text.segment(model)
            yield Hit(
                message=f"The loop averages the parameters of `{name}`, but not its buffers: in eval mode its "
                f"BatchNorm layers keep the statistics that `{other}` had when it was copied.",
                node=node,
                related=((built, "copied here"),),
            )


def _averaged_pairs(source: SourceFile) -> Iterator[tuple[ast.AST, ast.expr, ast.expr]]:
    """Yield each loop or call that averages the parameters of a model with those of another: node, average, model."""
    for loop in source.nodes_of(ast.For):
        match loop:
            case ast.For(
                target=ast.Tuple(elts=[first, second]), iter=ast.Call(func=ast.Name(id="zip"), args=[one, other])
            ):
                sides = [(_variable(first), _owner(one)), (_variable(second), _owner(other))]
                for (average, ema), (weight, model) in (sides, sides[::-1]):
                    if ema is not None and model is not None and _averages(loop, average, weight):
                        yield loop, ema, model
            case _:
                pass
        yield from _pairs_by_name(source, loop)
    for call in source.all_calls:
        if last_name(call.func) != "_foreach_lerp_" or len(call.args) < 2:
            continue
        ema, model = _owner(call.args[0]), _owner(call.args[1])
        if ema is not None and model is not None:
            yield call, ema, model


def _pairs_by_name(source: SourceFile, loop: ast.For) -> Iterator[tuple[ast.AST, ast.expr, ast.expr]]:
    """Yield a loop that looks the parameters of one model up by name: ``own[name].lerp_(parameter, 0.1)``."""
    key = last_name(loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else loop.target)
    owners: dict[str, ast.expr] = {}
    table = loop.iter.func.value if _is_method(loop.iter, "items") else loop.iter  # type: ignore[attr-defined]
    iterated = _owner(table) or _owner_of_table(source, table)
    if iterated is not None and isinstance(loop.target, ast.Tuple):
        owners[_variable(loop.target)] = iterated
    for each in nodes_in(loop, ast.Subscript):
        owner = _owner_of_table(source, each.value) if getattr(each.slice, "id", "") == key else None
        owners |= {ast.unparse(each): owner} if owner is not None else {}
    is_mixed = any(isinstance(each.op, ast.Mult) for each in nodes_in(loop, ast.BinOp))
    for average, by_copy in _changes(loop) if len(owners) > 1 else ():
        others = [each for text, each in owners.items() if text != average and average in owners]
        if others and (is_mixed or not by_copy):
            yield loop, owners[average], others[0]
            return


def _is_method(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name


def _owner_of_table(source: SourceFile, node: ast.expr) -> ast.expr | None:
    """Return the model of ``dict(model.named_parameters())``."""
    for each in origins(source, node):
        match each:
            case ast.Call(func=func, args=[inner]) if last_name(func) in ("dict", "OrderedDict"):
                return _owner(inner)
            case ast.DictComp(generators=[one]):
                return _owner(one.iter)
            case _:
                pass
    return None


def _changes(loop: ast.For) -> Iterator[tuple[str, bool]]:
    """Yield what a loop changes in place, and whether by a copy or an assignment."""
    for call in nodes_in(loop, ast.Call):
        if last_name(call.func) in _AVERAGING and isinstance(call.func, ast.Attribute):
            node: ast.expr = call.func.value
            while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                node = node.func.value  # own[name].mul_(decay).add_(parameter)
            yield ast.unparse(node).removesuffix(".data"), call.func.attr == "copy_"
    for assignment in nodes_in(loop, ast.Assign):
        for target in assignment.targets:
            if isinstance(target, ast.Attribute) and target.attr == "data":
                yield ast.unparse(target.value), True


def _variable(target: ast.expr) -> str:
    """Return the variable of a parameter: the last one of ``(name, parameter)``."""
    return last_name(target.elts[-1] if isinstance(target, ast.Tuple) and target.elts else target)


def _owner(node: ast.expr) -> ast.expr | None:
    """Return the model of ``model.parameters()``, also in a list or with names."""
    match node:
        case ast.Call(func=ast.Name(id="list" | "tuple"), args=[inner]):
            return _owner(inner)
        case ast.Call(func=ast.Attribute(value=owner, attr="parameters" | "named_parameters")):
            return owner
        case _:
            return None


def _copies_in_eval_mode(source: SourceFile) -> dict[str, ast.AST]:
    """Return the names of copies of models that are set to eval mode, and never to train mode."""
    switched, trained, loaded = set[str](), set[str](), set[str]()
    for call in source.all_calls:
        if isinstance(call.func, ast.Attribute):
            keys = _keys(source, call.func.value) if call.func.attr in ("eval", "train", "load_state_dict") else set()
            switched |= keys if call.func.attr == "eval" else set()
            trained |= keys if call.func.attr == "train" and not call.args else set()
            loaded |= keys if call.func.attr == "load_state_dict" and _copies_once(source, call) else set()
    found: dict[str, ast.AST] = {}
    for each in source.nodes_of(ast.Assign):
        methods = {last_name(call.func) for call in nodes_in(each.value, ast.Call)}
        for target in each.targets:
            keys = _keys(source, target)
            is_copy = "deepcopy" in methods or (bool(keys & loaded) and isinstance(each.value, ast.Call))
            if is_copy and not keys & trained and ("eval" in methods or keys & switched):
                found |= dict.fromkeys(keys, each)
    return found


def _keys(source: SourceFile, node: ast.AST) -> set[str]:
    """Return the name of a model, for an attribute of ``self`` with that of its class and of the bases of this."""
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=attr):
            around = enclosing_definition(source, node, ast.ClassDef)
            bases = map(last_name, getattr(around, "bases", []))
            own = [each for each in bases if each in definitions(source).classes]
            return {f"{each}.{attr}" for each in (getattr(around, "name", ""), *own)}
        case _:
            return {last_name(node)}


def _copies_once(source: SourceFile, call: ast.Call) -> bool:
    """Return True for ``teacher.load_state_dict(student.state_dict())`` outside of loops."""
    is_of_model = any(last_name(getattr(each, "func", None)) == "state_dict" for each in call.args)
    return is_of_model and not any(isinstance(e, ast.For | ast.While) for e in enclosing_nodes(source, call))


def _averages(loop: ast.For, average: str, weight: str) -> bool:
    """Return True if a loop changes the first of two parameters with the second, and not by a plain copy."""
    names = [each.id for each in nodes_in(loop, ast.Name)]
    changes = {last_name(call.func) for call in nodes_in(loop, ast.Call)} & _AVERAGING
    numbers = bool(changes - {"copy_"}) or any(isinstance(e.op, ast.Mult) for e in nodes_in(loop, ast.BinOp))
    assigned = any(last_name(getattr(t, "value", t)) == average for e in nodes_in(loop, ast.Assign) for t in e.targets)
    return names.count(average) > 1 and names.count(weight) > 1 and numbers and bool(changes or assigned)


RULE = Rule(
    required_words=("deepcopy|.load_state_dict(", "parameters()", "zip(|_foreach_lerp_|named_parameters()", ".eval()"),
    find=find,
)

BAD = """
import copy
import torch
from torch import nn

torch.manual_seed(0)
x = 4 + 3 * torch.randn(256, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
ema = copy.deepcopy(model).eval().requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(24):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[:192]), y[:192])
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for average, weight in zip(ema.parameters(), model.parameters()):
            average.lerp_(weight, 0.1)
        if step % 8 == 7:
            print(nn.functional.mse_loss(ema(x[192:]), y[192:]).item())
"""

FAILURE = Failure(
    code="EVL010",
    title="Averaged model has initial BatchNorm statistics",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "        if step": "        for average, buffer in zip(ema.buffers(), model.buffers()):\n"
            "            average.copy_(buffer)\n        if step"
        },
    ),
    fix="Copy the buffers together with the weights.",
    rule=RULE,
    detector=Detector,
)
