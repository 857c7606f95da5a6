"""Finds initialisers that ``__init__`` applies before it has created the layers."""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.late_layers import LAYERS_WITH_WEIGHTS
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, dotted_name, nodes_in

_CONTAINERS: Final = frozenset(("Sequential", "ModuleList", "ModuleDict", "ParameterList"))
_LOOPS: Final = frozenset(("modules", "children", "named_modules", "named_children", "parameters", "named_parameters"))
_SAVING: Final = frozenset(("save_hyperparameters", "register_buffer", "__init__", "super"))
_PLAIN: Final = frozenset(
    ("torch", "np", "math", "int", "len", "float", "list", "range", "tuple", "dict", "max", "min")
)
_INITIALISES: Final = re.compile(r"\binit\.|\.(normal|uniform|zero|fill|copy)_\(|reset_parameters\(|data\[?.*\]? = ")
_PART: Final = re.compile(r"backbone|coder|model|net|module|layer|body|head|embed|block|base|bert|feature|trunk", re.I)
_BASES: Final = frozenset(("Module", "LightningModule"))


def applied_early(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``self.apply(...)`` in ``__init__`` that runs before the layers exist."""
    for definition in source.nodes_of(ast.ClassDef):
        function = _method(definition, "__init__")
        bases = {last_name(each) for each in definition.bases}
        if function is None or not bases or not bases <= _BASES:
            continue
        for number, statement in enumerate(function.body):
            initialiser = _initialiser(source, definition, statement)
            if initialiser is None or not _INITIALISES.search(ast.unparse(initialiser)):
                continue
            before, later = (
                [each for each in part if not isinstance(each, ast.FunctionDef)]
                for part in (function.body[:number], function.body[number + 1 :])
            )
            classes = _initialised_classes(initialiser)
            layers = _layers(source, later, classes)
            number_before = _number_before(source, definition, before, classes)
            if len(layers) > number_before >= 0 and not _is_applied_again(source, later, layers):
                yield _hit(source, statement, layers, function.body[-1], number_before)


def _hit(source: SourceFile, statement: Any, layers: list[ast.Call], last: ast.stmt, number_before: int) -> Hit:
    is_plain = not isinstance(last, ast.Return | ast.Raise)
    edits = source.text.move_statement(statement, after=last) if is_plain else None
    effect = "it initialises nothing" if not number_before else "most of them are not initialised"
    return Hit(
        message=f"`{ast.unparse(statement)}` runs before the layers are assigned: {effect}.",
        node=statement,
        related=((layers[0], "created afterwards"),),
        fix=Fix(edits, safe=False, description="Initialise after the layers are assigned") if edits else None,
    )


def _method(definition: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next((e for e in definition.body if isinstance(e, ast.FunctionDef) and e.name == name), None)


def _initialiser(source: SourceFile, definition: ast.ClassDef, statement: ast.stmt) -> Any:
    """Return the function that a statement applies to all layers of ``self``; None for other statements."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="apply", value=ast.Name(id="self")), args=[function])):
            if isinstance(function, ast.Lambda):
                return function
            name = last_name(function)
            if isinstance(function, ast.Attribute):
                return _method(definition, name)
            functions = (each for each in source.nodes_of(ast.FunctionDef) if each.name == name)
            return next((e for e in functions if not isinstance(source.parents.get(id(e)), ast.ClassDef)), None)
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name, value=ast.Name(id="self")), args=[])):
            method = _method(definition, name)
            called = (
                {dotted_name(each.func) for each in nodes_in(method, ast.Call)} if method is not None else set[str]()
            )
            if "self.apply" in called and method is not None:
                inner = [_initialiser(source, definition, each) for each in method.body]
                return next((each for each in inner if each is not None), None)
            is_loop = any(f"self.{each}" in called for each in _LOOPS)
            assigns = method is not None and any(
                dotted_name(each).startswith("self.") and isinstance(each.ctx, ast.Store)
                for each in nodes_in(method, ast.Attribute)
            )
            return method if is_loop and not assigns else None
        case _:
            return None


def _initialised_classes(function: Any) -> set[str]:
    """Return the names of the layers that an initialiser distinguishes; empty if it asks for none."""
    found = set[str]()
    for each in nodes_in(function, ast.Attribute, ast.Name, ast.Constant):
        name = each.value if isinstance(each, ast.Constant) else last_name(each)
        if isinstance(name, str) and (
            name in LAYERS_WITH_WEIGHTS or name in ("Conv", "Linear", "BatchNorm", "_BatchNorm")
        ):
            found.add(name.lstrip("_"))
    return found


def _matches(name: str, classes: set[str]) -> bool:
    """Return True if a layer is one of those that are initialised, or contains such layers."""
    if not classes:
        return name in LAYERS_WITH_WEIGHTS
    has_linear = "Linear" in classes and name.startswith(("Transformer", "Multihead"))
    return name in LAYERS_WITH_WEIGHTS and (has_linear or any(name.startswith(each) for each in classes))


def _layers(source: SourceFile, statements: Sequence[ast.stmt], classes: set[str]) -> list[ast.Call]:
    """Return the calls that create layers of PyTorch that would be initialised."""
    return [
        call
        for statement in statements
        for call in nodes_in(statement, ast.Call)
        if _is_torch_layer(source, call) and _matches(last_name(call.func), classes)
    ]


def _is_torch_layer(source: SourceFile, call: ast.Call) -> bool:
    name = last_name(call.func)
    return name not in definitions(source).classes and (
        source.qualified_name(call.func).startswith("torch.nn.")
        or dotted_name(call.func) in (f"nn.{name}", f"torch.nn.{name}")
    )


def _number_before(
    source: SourceFile, definition: ast.ClassDef, statements: Sequence[ast.stmt], classes: set[str]
) -> int:
    """Return how many layers exist before the initialiser runs; -1 if it is unknown."""
    for statement in statements:
        if isinstance(statement, ast.Assign) and _PART.search(last_name(statement.value)):
            return -1
        for call in nodes_in(statement, ast.Call):
            name = last_name(call.func)
            if _is_torch_layer(source, call) and not name.startswith("Transformer"):
                continue
            becomes_part = _is_assigned_to_self(source, call) or _method(definition, name) is not None
            if becomes_part and name not in _SAVING and not _is_plain(call):
                return -1
    return len(_layers(source, statements, classes))


def _is_plain(call: ast.Call) -> bool:
    """Return True for a function that returns no layers, such as ``torch.zeros``."""
    path = dotted_name(call.func).split(".")
    return path[0] in _PLAIN and path[1:2] not in (["hub"], ["jit"])


def _is_assigned_to_self(source: SourceFile, call: ast.Call) -> bool:
    """Return True if the result of a call, or what contains it, may become a part of the model."""
    return isinstance(source.statement_of(call), ast.Assign | ast.AnnAssign | ast.Expr | ast.Return)


def _is_applied_again(source: SourceFile, later: Sequence[ast.stmt], layers: list[ast.Call]) -> bool:
    """Return True if later layers are initialised by other code."""
    names = {dotted_name(call.func) or last_name(call.func) for each in later for call in nodes_in(each, ast.Call)}
    if any("init" in name or name.endswith(("apply", "load_state_dict")) for name in names):
        return True
    line = layers[0].lineno
    outside = (each for each in source.all_calls if isinstance(each.func, ast.Attribute) and each.func.attr == "apply")
    return any(dotted_name(each.func) != "self.apply" and each.lineno > line and each.args for each in outside)
