"""Finds models of a cross-entropy whose head, or list of layers, ends with a softmax."""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.trained_models import output_layers, trained_models
from trueloop.analysis.source_file import SourceFile, last_name

_LOSSES: Final = frozenset(("CrossEntropyLoss", "cross_entropy"))


def last_softmax(source: SourceFile) -> Iterator[tuple[ast.Call, ast.Call]]:
    """Yield each call of a cross-entropy that gets the output of a softmax layer, and what creates the layer."""
    for loss, models in trained_models(source, _LOSSES):
        layers = [layer for each in models for layer in output_layers(source, each)]
        if layers[0] is not None and all(layer is not None and _is_softmax(layer) for layer in layers):
            yield loss, layers[0]


def _is_softmax(layer: ast.Call) -> bool:
    dims = [*layer.args, *(each.value for each in layer.keywords)]
    return last_name(layer.func) == "Softmax" and all(ast.unparse(each) in ("1", "-1") for each in dims)
