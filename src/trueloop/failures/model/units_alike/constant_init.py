"""Finds the initialisations that give every weight of several layers the same constant."""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.abstract_value import SUBMODULE, AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.unregistered_modules import submodules
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import walk
from trueloop.failures.failure import Rule

_CONSTANT: Final = ("torch.nn.init.constant_", "torch.nn.init.zeros_", "torch.nn.init.ones_")
_LAYERS: Final = ("Linear", "Conv", "Bilinear", "LSTM", "GRU")
"""Beginnings of the names of layers whose weights must differ."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the calls that fill the weights of all layers of a trained model with one constant."""
    calls = [each for each in source.ops(OpKind.TORCH_CALL) if each.name.startswith("torch.nn.init.")]
    reported = set[int]()
    backwards = source.ops(OpKind.BACKWARD)
    for call in calls if backwards else ():
        if any(each.is_inside(loop) for each in backwards for loop in call.loops):
            continue  # set by hand during the training
        argument = call.node.args[0] if isinstance(call.node, ast.Call) and call.node.args else None
        is_new = argument is not None and id(call.node) not in reported
        if call.name not in _CONSTANT or argument is None or not is_new or not _fills_every_layer(call, argument):
            continue
        text = ast.unparse(argument)
        later = (each for each in calls if each.function is call.function and each.index > call.index)
        again = (each for each in later if not each.excludes(call))
        is_final = not any(each.node.args and ast.unparse(each.node.args[0]) == text for each in again)
        if is_final and _layer_count(_model(call.subject)) > 1:
            reported.add(id(call.node))
            yield Hit(
                message=f"`{source.text.segment(call.node)}` gives all weights of each layer the same value: all units "
                "of a layer stay alike, and with zeros nothing is learned.",
                node=call.node,
            )


def _fills_every_layer(call: Op, argument: Any) -> bool:
    """Return True for an initialisation of all parameters, or of the weight of every linear or convolutional layer."""
    if isinstance(argument, ast.Name):
        return (
            call.subject.kind is ValueKind.PARAMETERS and bool(call.loops) and call.is_unconditional_in(call.loops[-1])
        )
    if not isinstance(argument, ast.Attribute) or argument.attr != "weight" or call.subject.kind is not ValueKind.MODEL:
        return False
    if call.loops and call.is_unconditional_in(call.loops[-1]):  # for layer in self.layers
        return all(map(_has_units, call.subject.sources[0].sources[0].sources)) if _is_item(call.subject) else False
    for branch in call.branches:
        match branch.node:
            case ast.If(test=ast.Call(func=ast.Name(id="isinstance"), args=[tested, classes])) if branch.arm == 0:
                names = [getattr(each, "attr", getattr(each, "id", "")) for each in walk(classes)]
                is_layer = any(name.startswith(_LAYERS) for name in names) and "Norm" not in "".join(names)
                if is_layer and ast.unparse(tested) == ast.unparse(argument.value):
                    return branch is call.branches[-1]
            case _:
                pass
    return False


def _model(value: AbstractValue) -> AbstractValue:
    """Return the model that contains a parameter or layer."""
    while (SUBMODULE in value.facts or value.kind is ValueKind.PARAMETERS) and value.sources:
        value = value.sources[0]
    return value


def _is_item(weight: AbstractValue) -> bool:
    """Return True for an attribute of an item of a list of layers."""
    layer = weight.sources[0] if SUBMODULE in weight.facts and weight.sources else None
    owner = layer.sources[0] if layer is not None and SUBMODULE in layer.facts and layer.sources else None
    return owner is not None and owner.name in ("torch.nn.ModuleList", "torch.nn.Sequential") and bool(owner.sources)


def _layer_count(model: AbstractValue) -> int:
    """Return the number of layers with weights; a layer that a loop creates counts twice."""
    outside = len(model.loops or ())
    return sum(1 + (len(each.loops or ()) > outside) for each in submodules(model) if _has_units(each))


def _has_units(layer: AbstractValue) -> bool:
    return layer.name.startswith("torch.nn.") and layer.name.removeprefix("torch.nn.").startswith(_LAYERS)


RULE = Rule(required_words=("init.", "backward(", "constant_|zeros_|ones_"), find=find)
