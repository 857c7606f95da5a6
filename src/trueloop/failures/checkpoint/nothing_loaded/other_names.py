"""Finds state dicts that are loaded into a model whose names of layers have nothing in common with theirs."""

import ast
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import default_of, possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in

WRAPPERS: Final = {
    "DataParallel": "module", "DistributedDataParallel": "module", "AveragedModel": "module", "compile": "_orig_mod",
}  # fmt: skip
"""Name of a function or class that wraps a model -> the name of the model in the wrapper."""
_SAME_MODULE: Final = frozenset(("to", "cuda", "cpu", "train", "eval", "float", "half", "double", "requires_grad_"))
_SAME_STATE: Final = frozenset(("copy", "deepcopy", "clone", "OrderedDict", "dict"))
_READERS: Final = frozenset(("print", "len", "save", "load_state_dict", "list", "sorted", "isinstance", "deepcopy"))
_CHANGES: Final = frozenset(("pop", "update", "setdefault", "popitem", "clear"))
_ADDING: Final = frozenset(("add_module", "register_module", "setattr", "__setattr__", "register_parameter"))
_NO_PARAMETERS: Final = frozenset((
    "Dropout", "ReLU", "GELU", "Tanh", "Sigmoid", "Softmax", "Flatten", "MaxPool2d", "AvgPool2d", "Identity", "SiLU",
    "CrossEntropyLoss", "MSELoss", "AdaptiveAvgPool2d", "AdaptiveAvgPool1d", "MaxPool1d", "LeakyReLU",
))  # fmt: skip
_MAX_DEPTH: Final = 6


class _Names(NamedTuple):
    """The first parts of the names in the state dict of a module."""

    first: frozenset[str]
    built_by: dict[str, str]
    """First part -> the function or class of the program that creates this part."""


def find_other_names(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``load_state_dict`` that skips names, and gets none that the model has."""
    for call in definitions(source).calls.get("load_state_dict", ()):
        if not isinstance(call.func, ast.Attribute) or not call.args:
            continue
        skips = _is_not_strict(call)
        found = list(_saved_modules(source, call.args[0], 0, filtered=[]))
        if not found or any(each is None or not (skips or each[1]) for each in found):
            continue
        own = _names(source, call.func.value, 0)
        saved = [(each[0], _names(source, each[0], 0)) for each in found if each is not None]
        if own is None or not own.first or any(not _lose(names, own) for _, names in saved):
            continue
        module, names = saved[0]
        assert names is not None
        here, there = (", ".join(f"`{each}.…`" for each in sorted(e.first)[:3]) for e in (names, own))
        yield Hit(
            message=f"`{ast.unparse(call)[:80]}` loads nothing into the layers that were trained: the names in the "
            f"state_dict begin with {here}, those in the model with {there}, and names that differ are skipped.",
            node=call,
            related=((module, "the state_dict is that of this model"),),
        )


def _is_not_strict(call: ast.Call) -> bool:
    given = [each.value for each in call.keywords if each.arg == "strict"] or call.args[1:2]
    return bool(given) and isinstance(given[0], ast.Constant) and given[0].value is False


def _lose(names: _Names | None, own: _Names) -> bool:
    """Return True if no name matches, or none of the parts that the program builds in the same way for both."""
    if names is None or not names.first:
        return False
    common = names.first & own.first
    if not common:
        return True
    built = {names.built_by.get(each) for each in names.first - common} & {
        own.built_by.get(each) for each in own.first - common
    } - {None}
    return bool(built) and not any(names.built_by.get(each) for each in common)


def _saved_modules(
    source: SourceFile, node: ast.expr, depth: int, *, filtered: list[ast.expr]
) -> Iterator[tuple[ast.expr, bool] | None]:
    """Yield the modules whose state dict an expression is, and whether it was filtered; None for one not known."""
    match node:
        case ast.Call(func=ast.Attribute(value=module, attr="state_dict")):
            yield module, bool(filtered)
        case ast.Call(func=func) if last_name(func) == "load" and _is_torch(source, func):
            yield from _from_files(source, None, depth, filtered)
        case ast.Subscript(value=inner, slice=ast.Constant(value=str() as key)):
            files = [inner, *possible_values(source, inner)]
            is_file = any(isinstance(e, ast.Call) and last_name(e.func) == "load" for e in files)
            yield from _from_files(source, key, depth, filtered) if is_file else [None]
        case ast.DictComp(key=ast.Name(id=key), generators=[ast.comprehension(target=target, iter=iterable)]):
            first = getattr(target, "elts", [target])[0]
            is_same = getattr(first, "id", "") == key and last_name(getattr(iterable, "func", iterable)) == "items"
            inner = getattr(getattr(iterable, "func", None), "value", None)
            if not is_same or inner is None:
                yield None
            else:
                yield from _saved_modules(source, inner, depth + 1, filtered=[*filtered, node])
        case ast.Name() | ast.Attribute() | ast.Call():
            values = possible_values(source, node) if depth < _MAX_DEPTH and not _is_changed(source, node) else []
            if isinstance(node, ast.Call) and last_name(node.func) in _SAME_STATE and not values:
                values = (
                    [node.args[0]] if node.args else [node.func.value] if isinstance(node.func, ast.Attribute) else []
                )
            for each in values or [None]:
                yield from [None] if each is None else _saved_modules(source, each, depth + 1, filtered=filtered)
        case _:
            yield None


def _is_torch(source: SourceFile, func: ast.expr) -> bool:
    return (source.qualified_name(func) or ast.unparse(func)) == "torch.load"


def _from_files(
    source: SourceFile, key: str | None, depth: int, filtered: list[ast.expr]
) -> Iterator[tuple[ast.expr, bool] | None]:
    """Yield the modules whose state dict the program writes to a file, under a key or alone."""
    saved: list[ast.expr] = []
    for call in source.calls_of("torch.save"):
        for content in [call.args[0], *possible_values(source, call.args[0])] if call.args else []:
            if key is None and not isinstance(content, ast.Dict | ast.Name):
                saved.append(content)
            elif isinstance(content, ast.Dict):
                pairs = zip(content.keys, content.values, strict=True)
                saved += [v for k, v in pairs if isinstance(k, ast.Constant) and k.value == key]
    for each in saved if depth < _MAX_DEPTH else []:
        yield from _saved_modules(source, each, depth + 1, filtered=filtered)


def _is_changed(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a variable whose keys the function may change, or that it gives to another function."""
    name = dotted_name(node)
    if not name:
        return False
    for each in nodes_in(function_of(source, node), ast.Call, ast.Subscript, ast.Delete):
        if isinstance(each, ast.Call):
            func = each.func
            owner = dotted_name(func.value) if isinstance(func, ast.Attribute) else ""
            given = [*each.args, *(e.value for e in each.keywords)]
            passed = any(dotted_name(argument) == name for argument in given)
            own_function = last_name(func) in definitions(source).functions and not _renames(source, each)
            if (owner == name and last_name(func) in _CHANGES) or (
                passed and last_name(func) not in _READERS and not own_function
            ):
                return True
        elif isinstance(each, ast.Subscript) and dotted_name(each.value) == name and not isinstance(each.ctx, ast.Load):
            return True
    return False


def _renames(source: SourceFile, call: ast.Call) -> bool:
    """Return True if a function of the program may change the names in a state dict that it gets."""
    text = ast.unparse(definitions(source).functions[last_name(call.func)])
    return any(each in text for each in (".pop(", "replace(", "startswith", "removeprefix", ".items()", "consume_"))


def _names(source: SourceFile, node: ast.expr, depth: int) -> _Names | None:
    """Return the first parts of the names in the state dict of a module; None if they are not known."""
    if depth > _MAX_DEPTH:
        return None
    if isinstance(node, ast.Call):
        is_known, names = _names_of_call(source, node, depth)
        if is_known:
            return names
    found = [_names(source, each, depth + 1) for each in _module_values(source, node)]
    if not found or any(each is None for each in found):
        return None
    return found[0] if len({each.first for each in found if each is not None}) == 1 else None


def _names_of_call(source: SourceFile, call: ast.Call, depth: int) -> tuple[bool, _Names | None]:
    """Return whether a call creates or wraps a module, and the names in this module's state dict."""
    name = (source.qualified_name(call.func) or last_name(call.func)).rpartition(".")[2]
    if isinstance(call.func, ast.Attribute) and call.func.attr in _SAME_MODULE:
        return True, _names(source, call.func.value, depth + 1)
    if name in WRAPPERS:
        return True, _Names(frozenset((WRAPPERS[name],)), {})
    if name == "Sequential":
        layers = [e for e in call.args if not isinstance(e, ast.Starred)]
        known = len(layers) == len(call.args) and len(layers) > 1
        return True, _Names(frozenset(map(str, range(len(layers)))), {}) if known else None
    definition = definitions(source).classes.get(name)
    return definition is not None, _names_of_class(source, definition, 0) if definition is not None else None


def _module_values(source: SourceFile, node: ast.expr) -> list[ast.expr]:
    """Return the expressions whose module an expression is, also for an attribute of an instance."""
    passed = _passed_through(source, node) if isinstance(node, ast.Call) else None
    values = possible_values(source, node) if passed is None else [passed]
    if values or not isinstance(node, ast.Attribute):
        return values
    owners = [each for each in possible_values(source, node.value) if isinstance(each, ast.Call)]
    name = last_name(owners[0].func) if len(owners) == 1 else ""
    definition = definitions(source).classes.get(name)
    if definition is None and owners and name in WRAPPERS and node.attr == WRAPPERS[name]:
        return owners[0].args[:1]
    return [value for attribute, value in _own_attributes(definition) if attribute == node.attr]


def _passed_through(source: SourceFile, call: ast.Call) -> ast.expr | None:
    """Return the argument that a call of a function of the program returns: ``model`` for ``fit(model)``."""
    function = definitions(source).functions.get(last_name(call.func))
    values = (
        {ast.unparse(e.value) for e in nodes_in(function, ast.Return) if e.value is not None} if function else set()
    )
    names = [each.arg for each in function.args.args] if function else []
    if len(values) != 1 or not values <= set(names) or isinstance(call.func, ast.Attribute):
        return None
    position = names.index(values.pop())
    named = [each.value for each in call.keywords if each.arg == names[position]]
    return next(iter([*named, *call.args[position : position + 1]]), None)


def _own_attributes(definition: ast.ClassDef | None) -> Iterator[tuple[str, ast.expr]]:
    for each in nodes_in(definition, ast.Assign) if definition is not None else ():
        for target in each.targets:
            targets = target.elts if isinstance(target, ast.Tuple) else [target]
            values: list[Any] = each.value.elts if isinstance(each.value, ast.Tuple) else [each.value] * len(targets)
            for one, value in zip(targets, values, strict=False):
                if isinstance(one, ast.Attribute) and getattr(one.value, "id", "") == "self":
                    yield one.attr, value


def _names_of_class(source: SourceFile, definition: ast.ClassDef, depth: int) -> _Names | None:
    """Return the attributes of a module that may hold parameters; None if some have names that are not in the text."""
    bases = [last_name(each) for each in definition.bases]
    inherited = [definitions(source).classes[each] for each in bases if each in definitions(source).classes]
    unknown = [each for each in bases if each not in ("Module", "LightningModule", "object", "ABC")]
    if len(unknown) > len(inherited) or depth > _MAX_DEPTH:
        return None
    first, built = set[str](), dict[str, str]()
    for base in inherited:
        names = _names_of_class(source, base, depth + 1)
        if names is None:
            return None
        first |= names.first
        built |= names.built_by
    for call in nodes_in(definition, ast.Call):
        key = call.args[0] if call.args else None
        if last_name(call.func) in (*_ADDING, "register_buffer"):
            if not isinstance(key, ast.Constant):
                return None
            first.add(str(key.value))
    for name, value in _own_attributes(definition):
        if _may_hold_parameters(source, value):
            first.add(name)
            func = last_name(value.func) if isinstance(value, ast.Call) else ""
            if func in definitions(source).classes or func in definitions(source).functions:
                built[name] = func
    return _Names(frozenset(first), built)


def _may_hold_parameters(source: SourceFile, value: ast.expr) -> bool:
    """Return False for numbers, texts and layers without parameters."""
    if isinstance(value, ast.Constant | ast.List | ast.Dict | ast.BinOp | ast.Compare | ast.Lambda | ast.JoinedStr):
        return False
    if isinstance(value, ast.Call):
        return last_name(value.func) not in _NO_PARAMETERS
    default = default_of(source, value)
    values = [*possible_values(source, value), *([default] if default is not None else [])]
    return not values or not all(isinstance(each, ast.Constant | ast.List | ast.BinOp) for each in values)
