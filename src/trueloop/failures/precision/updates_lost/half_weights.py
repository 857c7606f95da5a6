"""Finds optimizers in the source code whose parameters are bfloat16 or float16."""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.possible_values import default_of, origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.formatting import format_float
from trueloop.core.source_text import dotted_name, nodes_in
from trueloop.failures.failure import Rule

MAX_ADAM_RATE: Final = 3e-4  # in networks of 64 and 256 units 75 to 81 % of the updates are lost, with 1e-3 51 to 66 %
MAX_SGD_RATE: Final = 1e-3  # times the gradient
MIN_EPS: Final = 2.0**-25  # half of the smallest float16; smaller numbers round to zero
_LOST: Final = 384.0  # half of the step to the next bfloat16 number is 1/512 to 1/256 of a weight
_ADAPTIVE: Final = frozenset(("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop"))
_SHORT: Final = {"bfloat16": "bfloat16", "half": "float16", "float": "float32", "double": "float64"}
_DTYPES: Final = {"bfloat16": "bfloat16", "float16": "float16", "half": "float16", "float32": "float32"}
_PASSING: Final = frozenset(("to", "cuda", "cpu", "train", "eval", "requires_grad_", "compile", "DataParallel"))
_LAYERS: Final = frozenset((
    "Linear", "Conv1d", "Conv2d", "Conv3d", "Embedding", "LayerNorm", "GRU", "LSTM", "MultiheadAttention",
    "BatchNorm1d", "BatchNorm2d", "TransformerEncoderLayer", "RNN", "GroupNorm",
))  # fmt: skip


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each optimizer of PyTorch that updates parameters in half precision with steps that are too small."""
    for call in source.all_calls:
        name = source.qualified_name(call.func)
        model = _model_of(call) if name.startswith("torch.optim.") else None
        if model is None or not _is_stepped(source) or _has_other_dtypes(source, model):
            continue
        dtype, cast = _dtype_of(source, model)
        reason = _reason(source, call, name.rpartition(".")[2], dtype)
        if cast is not None and reason:
            yield Hit(
                message=f"The parameters of `{ast.unparse(model)}` are {dtype}, without a float32 copy: {reason}",
                node=cast,
                related=((call, "the optimizer updates them"),),
            )


def _model_of(optimizer: ast.Call) -> ast.expr | None:
    """Return the model all whose parameters an optimizer gets: ``model.parameters()``."""
    given = [each.value for each in optimizer.keywords if each.arg == "params"] or optimizer.args[:1]
    match given:
        case [ast.Call(func=ast.Attribute(value=model, attr="parameters"), args=[])]:
            return model if dotted_name(model) else None
        case _:
            return None


def _is_stepped(source: SourceFile) -> bool:
    calls = definitions(source).calls
    return bool(calls.get("backward")) and bool(calls.get("step"))


def _has_other_dtypes(source: SourceFile, model: ast.expr) -> bool:
    """Return True if the program gives parameters a dtype of their own, or layers to the model after its cast."""
    path = f"{dotted_name(model)}."
    for each in source.nodes_of(ast.Assign):
        targets = [dotted_name(target) for target in each.targets]
        if any(target.startswith(path) or target.endswith(".data") for target in targets):
            return True
    for statement in source.nodes_of(ast.Expr):
        if isinstance(statement.value, ast.Call) and _cast_of(source, statement.value) in ("float32", "float64"):
            return True
    return any(name in definitions(source).calls for name in ("get_peft_model", "prepare_model_for_kbit_training"))


def _dtype_of(source: SourceFile, model: ast.expr) -> tuple[str, Any]:
    """Return the dtype of the parameters of a model, and what gives it; ("", None) if it is unknown."""
    found: dict[str, Any] = {}
    for each in origins(source, model):
        dtype, node = _made_as(source, each)
        if node is None and dotted_name(each):
            dtype, node = _cast_before(source, each, is_last=each is model)
        if node is not None:
            found.setdefault(dtype, node)
            break
    return next(iter(found.items())) if len(found) == 1 else ("", None)


def _made_as(source: SourceFile, node: ast.expr) -> tuple[str, Any]:
    """Return the dtype that an expression such as ``Net().to(device).bfloat16()`` gives a model, and its node."""
    while isinstance(node, ast.Call):
        dtype = _cast_of(source, node)
        if dtype:
            return dtype, node
        if last_name(node.func) not in _PASSING or not isinstance(node.func, ast.Attribute):
            return _made_by_layers(source, node)
        is_function = last_name(node.func.value) in ("torch", "nn") and node.args
        node = node.args[0] if is_function else node.func.value
    return "", None


def _made_by_layers(source: SourceFile, call: ast.Call) -> tuple[str, Any]:
    """Return the dtype that all layers of a new model get, by ``dtype=`` or as the default of the program."""
    definition = definitions(source).classes.get(last_name(call.func))
    layers = [each for each in nodes_in(definition or call, ast.Call) if last_name(each.func) in _LAYERS]
    given = [next((key.value for key in each.keywords if key.arg == "dtype"), None) for each in layers]
    dtypes = {_dtype(source, each) for each in given}
    if not layers or len(dtypes) != 1:
        return "", None
    if dtypes != {""}:
        return dtypes.pop(), layers[0]
    defaults = list(source.calls_of("torch.set_default_dtype"))
    kinds = {_dtype(source, each.args[0] if each.args else None) for each in defaults}
    return (kinds.pop(), defaults[0]) if len(kinds) == 1 and "" not in kinds else ("", None)


def _cast_before(source: SourceFile, model: ast.expr, *, is_last: bool) -> tuple[str, Any]:
    """Return the dtype of the last statement such as ``model.bfloat16()`` before a use, and the statement's call.

    Args:
        source: the program.
        model: the use.
        is_last: whether a statement behind it counts, too, up to the next loop; an optimizer keeps the parameters.
    """
    function, path = function_of(source, model), dotted_name(model)
    loops = [each.lineno for each in nodes_in(function, ast.For, ast.While) if each.lineno > model.lineno]
    for call in nodes_in(function, ast.Call):  # train(model, optimizer)
        if last_name(call.func) in definitions(source).functions and path in map(dotted_name, call.args):
            loops += [call.lineno] if call.lineno > model.lineno else []
    end = min(loops, default=model.lineno + 20) if is_last else model.lineno
    for statement in sorted(nodes_in(function, ast.Expr), key=lambda each: -each.lineno):
        call = statement.value
        is_before = statement.lineno < end and function_of(source, statement) is function
        if is_before and isinstance(call, ast.Call) and path in _chain(call):
            dtype = _cast_of(source, call)
            if dtype:
                return dtype, call
    return "", None


def _chain(call: ast.expr) -> list[str]:
    """Return the objects on which a chain such as ``model.to(device).bfloat16()`` calls methods."""
    found: list[str] = []
    while isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        call = call.func.value
        found.append(dotted_name(call))
    return found


def _cast_of(source: SourceFile, call: ast.Call) -> str:
    """Return the dtype to which a call casts a model: ``.half()``, ``.to(torch.bfloat16)``; "" if it casts none."""
    name = last_name(call.func)
    if not isinstance(call.func, ast.Attribute):
        return ""
    if name in _SHORT and not call.args and not call.keywords:
        return _SHORT[name]
    given = [*call.args, *(each.value for each in call.keywords)] if name in ("to", "type") else []
    return next((dtype for each in given if (dtype := _dtype(source, each))), "")


def _dtype(source: SourceFile, node: ast.expr | None) -> str:
    """Return the dtype that an expression certainly is: "bfloat16" for ``torch.bfloat16``; "" if it is unknown."""
    if node is None:
        return ""
    values = [each for each in origins(source, node) if not isinstance(each, ast.Name)]
    kinds = {_DTYPES.get(source.qualified_name(each).removeprefix("torch."), "") for each in values}
    is_plain = all(isinstance(each, ast.Attribute) for each in values)
    return kinds.pop() if is_plain and len(kinds) == 1 else ""


def _reason(source: SourceFile, call: ast.Call, name: str, dtype: str) -> str:
    """Return why the updates of an optimizer are lost; "" if they may not be."""
    rate = _number(source, _argument(call, 1, "lr"), default=1e-3)
    if dtype == "float16":
        eps = _number(source, _argument(call, 3, "eps"), default=1e-8)
        is_fused = any(each.arg in ("fused", None) for each in call.keywords)
        if name in _ADAPTIVE - {"Adamax", "RAdam"} and eps is not None and eps < MIN_EPS and not is_fused:
            return (
                f"{name}'s eps={format_float(eps)} and its averages of squared gradients below 0.0055 are 0 in "
                "float16, and it divides by them; see PRC007."
            )
        return ""
    if dtype != "bfloat16" or rate is None:
        return ""
    if name in _ADAPTIVE and rate <= MAX_ADAM_RATE:
        return (
            f"an update of {name} is at most about its learning rate of {format_float(rate)}, less than half of the "
            f"step to the next bfloat16 number for all weights above about {format_float(_LOST * rate)}."
        )
    momentum = _number(source, _argument(call, 2, "momentum"), default=0.0)
    if name == "SGD" and momentum is not None and momentum < 1 and rate / (1 - momentum) <= 1.001 * MAX_SGD_RATE:
        return (
            f"with a learning rate of {format_float(rate)}, a gradient below 1 changes no weight above about "
            f"{format_float(_LOST * rate / (1 - momentum))}, as the update is less than half of the step to the next "
            "bfloat16 number."
        )
    return ""


def _argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    if any(each.arg is None for each in call.keywords):
        return ast.Constant("unknown")
    return argument_node(call, name, position)


def _number(source: SourceFile, node: ast.expr | None, default: float) -> float | None:
    """Return the number that an argument is, also as an item of a dictionary; None if it is unknown."""
    if node is None:
        return default
    values = [each for each in origins(source, node) if not isinstance(each, ast.Name)]
    values = values or [each for each in [default_of(source, node)] if each is not None]
    found = {_constant(source, each) for each in values}
    return found.pop() if len(found) == 1 else None


def _constant(source: SourceFile, node: ast.expr) -> float | None:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Subscript(value=owner, slice=ast.Constant(value=key)):
            items = [value for each in origins(source, owner) for name, value in _items(each) if name == key]
            return _constant(source, items[0]) if len(items) == 1 else None
        case _:
            return None


def _items(node: ast.expr) -> Iterator[tuple[Any, ast.expr]]:
    if isinstance(node, ast.Dict):
        yield from ((getattr(key, "value", None), value) for key, value in zip(node.keys, node.values, strict=True))
    elif isinstance(node, ast.Call) and last_name(node.func) == "dict":
        yield from ((each.arg, each.value) for each in node.keywords)


RULE = Rule(required_words=("bfloat16|float16|.half(", "optim", ".step("), find=find)
