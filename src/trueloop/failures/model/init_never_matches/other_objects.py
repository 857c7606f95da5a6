"""Finds tests for a class of layers on objects that are no layers: parameters, names, pairs, and whole models."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import loops_around, origins, parameters_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Edit, Fix, dotted_name, encloses, nodes_in, walk

_PARAMETERS: Final = {
    "parameters": "modules", "named_parameters": "named_modules", "state_dict": "", "buffers": "modules",
}  # fmt: skip
"""Methods whose items are no layers, and the method that is meant."""
_PAIRS: Final = {"named_modules": "modules", "named_children": "children"}
_LAYER: Final = re.compile(
    r"(Lazy)?(Conv(Transpose)?|BatchNorm|InstanceNorm|Dropout|MaxPool|AvgPool)[123]?d$|[A-Z]\w*U$"
)
_LAYERS: Final = frozenset((
    "Linear", "Bilinear", "Embedding", "EmbeddingBag", "LSTM", "RNN", "LayerNorm", "GroupNorm", "LSTMCell", "GRUCell",
    "MultiheadAttention", "Dropout", "Identity",
))  # fmt: skip
_CONTAINERS: Final = frozenset(("Sequential", "DataParallel", "DistributedDataParallel"))
_SAME: Final = frozenset(("to", "cuda", "cpu", "train", "eval", "double", "float", "half", "DataParallel"))
_VISITING: Final = frozenset((
    "modules", "children", "named_modules", "named_children", "_modules", "parameters", "named_parameters", "apply",
    "state_dict", "__dict__",
))  # fmt: skip
_MODEL: Final = re.compile(
    r"((^|_)(net|model|gen|generator|dis|disc|discriminator|encoder|decoder|critic|actor|policy|network|[GD])"
    r"(_?([A-Za-z]{1,2}|\d))?|net[GD])$"
)
"""Names of whole models."""


def tests_of_other_objects(source: SourceFile) -> Iterator[Hit]:
    """Yield each test in a loop that asks a parameter, a name or a pair whether it is a layer."""
    for loop in (*source.nodes_of(ast.For), *source.nodes_of(ast.comprehension)):
        target, what = _items(loop.target, loop.iter)
        code: Any = loop if isinstance(loop, ast.For) else source.parents.get(id(loop))
        if not target or any(e.id == target and isinstance(e.ctx, ast.Store) for e in _inner_names(loop, code)):
            continue
        test = next((e for e in nodes_in(code, ast.Call, ast.Compare) if _asks_for_layer(e, target)), None)
        if test is not None:
            yield Hit(
                message=f"`{ast.unparse(test)}` is never true: `{target}` is {what}, not a layer.",
                node=test,
                related=((loop.iter, "the loop"),),
                fix=_visit_modules(source, loop),
            )


def _inner_names(loop: Any, code: Any) -> Iterator[ast.Name]:
    own = {id(each) for each in walk(loop.target)}
    return (each for each in nodes_in(code, ast.Name) if id(each) not in own)


def _items(target: ast.expr, iterable: ast.expr) -> tuple[str, str]:
    """Return the variable of a loop whose items are certainly no layers, and what they are; ("", "") otherwise."""
    while isinstance(iterable, ast.Call) and last_name(iterable.func) in ("list", "tuple", "enumerate"):
        if last_name(iterable.func) == "enumerate" and isinstance(target, ast.Tuple):
            target = target.elts[-1]
        iterable = iterable.args[0] if iterable.args else iterable.func
    last = target.elts[-1] if isinstance(target, ast.Tuple) and len(target.elts) == 2 else target
    if not isinstance(last, ast.Name):
        return "", ""
    match iterable:
        case ast.Call(func=ast.Attribute(attr=method)) if method in ("parameters", "named_parameters", "buffers"):
            return last.id, "a parameter"
        case ast.Call(func=ast.Attribute(attr="values" | "items" | "keys", value=ast.Call(func=inner))):
            return (last.id, "a tensor") if last_name(inner) == "state_dict" else ("", "")
        case ast.Call(func=ast.Attribute(attr=method)) if method in _PAIRS and last is target:
            return last.id, "a pair of a name and a layer"
        case (
            ast.Attribute(attr="_modules")
            | ast.Call(func=ast.Attribute(attr="keys", value=ast.Attribute(attr="_modules")))
        ):
            return last.id, "the name of a layer"
        case _:
            return "", ""


def _asks_for_layer(test: ast.Call | ast.Compare, name: str) -> bool:
    """Return True for ``isinstance(name, nn.Linear)``, ``type(name) == nn.Linear`` and tests of the class's name."""
    match test:
        case ast.Call(func=ast.Name(id="isinstance"), args=[ast.Name(id=tested), classes]):
            parts = classes.elts if isinstance(classes, ast.Tuple) else [classes]
            return tested == name and bool(parts) and all(map(is_layer_class, parts))
        case ast.Compare(left=ast.Call(func=ast.Name(id="type"), args=[ast.Name(id=tested)]), comparators=[other]):
            return tested == name and is_layer_class(other)
        case ast.Call(func=ast.Attribute(attr="find" | "startswith", value=kind), args=[ast.Constant(value=str(word))]):
            return _is_class_name(kind, name) and _is_layer_name(word)
        case ast.Compare(left=ast.Constant(value=str(word)), ops=[ast.In()], comparators=[kind]):
            return _is_class_name(kind, name) and _is_layer_name(word)
        case _:
            return False


def _is_class_name(node: ast.expr, name: str) -> bool:
    return ast.unparse(node) in (f"{name}.__class__.__name__", f"type({name}).__name__")


def _is_layer_name(word: str) -> bool:
    return word[:1].isupper() and any(word in each for each in (*_LAYERS, "Conv2d", "ConvTranspose2d", "BatchNorm2d"))


def is_layer_class(node: ast.expr) -> bool:
    """Return True for a class of PyTorch's layers: ``nn.Linear``."""
    owner, _, name = dotted_name(node).rpartition(".")
    return owner in ("", "nn", "torch.nn") and (name in _LAYERS or _LAYER.match(name) is not None)


def _visit_modules(source: SourceFile, loop: ast.For | ast.comprehension) -> Fix | None:
    """Return the fix that visits the layers instead."""
    method = loop.iter.func if isinstance(loop.iter, ast.Call) else None
    if not isinstance(method, ast.Attribute):
        return None
    meant = (_PARAMETERS | _PAIRS).get(method.attr, "")
    end = source.text.span(method)[1]
    edit = Edit(end - len(method.attr.encode()), end, meant)
    return Fix((edit,), safe=False, description=f"Loop over {meant}()") if meant else None


def initialisers_of_whole_models(source: SourceFile) -> Iterator[Hit]:
    """Yield each call with a whole model of a function that initialises one layer and does not visit others."""
    known = definitions(source)
    for name, function in known.functions.items():
        parameters = [each.arg for each in parameters_of(function) if each.arg != "self"]
        if not parameters or not _initialises_one_layer(function, parameters[0]):
            continue
        for call in known.calls.get(name, ()):
            statement = source.parents.get(id(call))
            if not isinstance(statement, ast.Expr) or len(call.args) != 1 or encloses(function, call):
                continue
            if not any(loops_around(source, call)) and _is_whole_model(source, call.args[0]):
                yield _hit(source, call, function)


def _hit(source: SourceFile, call: ast.Call, function: ast.FunctionDef) -> Hit:
    model, name = ast.unparse(call.args[0]), ast.unparse(call.func)
    return Hit(
        message=f"`{ast.unparse(call)}` initialises nothing: `{name}` asks for the class of one layer, and gets the "
        f"whole model. `{model}.apply({name})` calls it with each layer.",
        node=call,
        related=((function, "the function"),),
        fix=Fix((source.text.replace(call, f"{model}.apply({name})"),), safe=False, description="Use apply"),
    )


def _initialises_one_layer(function: ast.FunctionDef, name: str) -> bool:
    """Return True for a function that only changes its argument where that is an instance of certain layers."""
    if any(each.attr in _VISITING for each in nodes_in(function, ast.Attribute)):
        return False
    names = {f"{name}.__class__.__name__", f"type({name}).__name__"}
    is_conditional = False
    for each in function.body:
        match each:
            case ast.Assign(targets=[ast.Name(id=variable)], value=value) if ast.unparse(value) in names:
                names.add(variable)
            case ast.If() if _asks_always(each, name, names):
                is_conditional = True
            case ast.Expr(value=ast.Constant()) | ast.Return(value=None) | ast.Pass():
                pass
            case _:
                return False
    return is_conditional


def _asks_always(statement: ast.If, name: str, names: set[str]) -> bool:
    """Return True if each arm of an ``if`` runs for certain layers only."""
    tests = [
        each
        for each in nodes_in(statement.test, ast.Call, ast.Compare)
        if _asks_for_layer(each, name) or any(_asks_by_name(each, kind) for kind in names)
    ]
    others = statement.orelse
    if not tests or any(isinstance(each, ast.Not) for each in walk(statement.test)):
        return False
    return not others or (len(others) == 1 and isinstance(others[0], ast.If) and _asks_always(others[0], name, names))


def _asks_by_name(test: ast.Call | ast.Compare, kind: str) -> bool:
    """Return True for ``classname.find("Conv")`` and ``"Linear" in classname``."""
    match test:
        case ast.Call(func=ast.Attribute(value=value), args=[ast.Constant(value=str(word))]):
            pass
        case ast.Compare(left=ast.Constant(value=str(word)), comparators=[value]):
            pass
        case ast.Compare(left=value, comparators=[ast.Constant(value=str(word))]):
            pass
        case _:
            return False
    return ast.unparse(value) == kind and _is_layer_name(word)


def _is_whole_model(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a container or a model of the program; if its class is unknown, for the name of a model."""
    is_named = _MODEL.search(last_name(node)) is not None
    for each in origins(source, node):
        value = each
        while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _SAME:
            value = value.args[0] if value.func.attr == "DataParallel" and value.args else value.func.value
        if not isinstance(value, ast.Call):
            continue
        name = last_name(value.func)
        if is_layer_class(value.func):
            return False
        if name in definitions(source).classes or name in _CONTAINERS:
            bases = definitions(source).classes[name].bases if name in definitions(source).classes else []
            return not any(map(is_layer_class, bases)) and not re.search(r"Conv|Linear|Norm", name)
    return is_named
