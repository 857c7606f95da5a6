"""Finds encoders of a VAE with a ReLU on the mean of the latent values, which then cannot be negative."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.assignments import attribute_value
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.deviations import is_noise
from trueloop.analysis.queries.possible_values import origins, unpacked_call
from trueloop.analysis.queries.reparameterisations import reparameterisations
from trueloop.analysis.source_file import Hit, SourceFile, last_name

_DIVERGENCE: Final = re.compile(r"\bkld?\b|kl_?(loss|div)|KL|_kld?\b", re.IGNORECASE)
_ACTION: Final = re.compile(r"(^|_)(act|action|policy)")
_SPLITS: Final = frozenset(("chunk", "split", "tensor_split"))
_RELU: Final = frozenset(("relu", "relu_", "relu6", "ReLU", "ReLU6"))


def latent_means(source: SourceFile) -> Iterator[Hit]:
    """Yield each ReLU whose result is the mean of a reparameterization."""
    reported: set[int] = set()
    for _, mean, _, noise in reparameterisations(source):
        is_action = _ACTION.search(getattr(function_of(source, mean), "name", ""))
        if is_action or not is_noise(source, noise) or not source.mentions(_DIVERGENCE):
            continue
        for value in _results(source, mean):
            relu = _relu(source, value)
            if relu is not None and id(relu) not in reported:
                reported.add(id(relu))
                yield Hit(
                    message=f"`{ast.unparse(mean)}`, the mean of the latent values, is the result of a ReLU: it is "
                    "never negative, so they cannot have the distribution of the prior.",
                    node=relu,
                    related=((mean, "used as a mean here"),),
                )


def _results(source: SourceFile, mean: ast.expr) -> Iterator[ast.expr]:
    """Yield the values of a mean, and of a tensor of which it is the first part."""
    for value in origins(source, mean):
        yield value
        call = unpacked_call(source, value) if isinstance(value, ast.Name) else None
        if call is not None and isinstance(call.func, ast.Attribute) and call.func.attr in _SPLITS:
            whole = call.args[0] if last_name(call.func.value) == "torch" and call.args else call.func.value
            yield from origins(source, whole)


def _relu(source: SourceFile, value: ast.expr) -> ast.expr | None:
    """Return the ReLU that computes a value: a function, or the last layer of ``self.encoder``; None if none does."""
    match value:
        case ast.Call(func=ast.Call(func=func)) | ast.Call(func=func) if last_name(func) in _RELU:
            return value
        case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)):
            layers = attribute_value(source, value, name)
            is_sequence = isinstance(layers, ast.Call) and last_name(layers.func) == "Sequential" and layers.args
            last = layers.args[-1] if is_sequence and isinstance(layers, ast.Call) else None
            return last if isinstance(last, ast.Call) and last_name(last.func) in _RELU else None
        case _:
            return None
