"""Finds statements in ``__getitem__`` that change a stored sample in place.

``self.data[i]`` of a tensor, array or list is not a copy: ``x -= x.mean()``, ``x[random] = 0`` and ``x.add_(noise)``
write into the stored data, so each epoch reads other samples than the one before.
"""

import ast
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeGuard

from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import dotted_name

VIEWS: Final = frozenset((
    "torch.from_numpy", "torch.as_tensor", "torch.asarray", "np.asarray", "numpy.asarray", "view", "reshape", "squeeze",
    "unsqueeze", "numpy", "transpose", "permute", "detach",
))  # fmt: skip
"""Functions and methods whose result shares memory with their argument."""
CHANGING: Final = frozenset((
    "add_", "sub_", "mul_", "div_", "pow_", "sqrt_", "log_", "exp_", "neg_", "addcmul_", "subtract_", "multiply_",
))  # fmt: skip
"""In-place methods that give another result each time."""
MASKING: Final = frozenset(("masked_fill_", "index_fill_", "fill_", "copy_"))
"""In-place methods that change a sample again only if they are random."""
FRESH: Final = ("h5py", "mmap", "zarr", "lmdb", "load_dataset", "datasets.", "open(")
"""Words in the source of storages that return a copy of an item."""
WRAPPED: Final = frozenset(("dataset", "ds", "base", "base_dataset", "source", "subset", "inner", "parent", "dset"))
ARRAYS: Final = ("torch.", "np.", "numpy.")


class _Change(NamedTuple):
    """A statement that changes a sample in place."""

    node: ast.stmt
    sample: str
    """Source of the stored sample: "self.data[i]"."""
    needs_array: str
    """Name of the variable if the change is in place only for arrays; "" if it is in any case."""


def find_changed_samples(source: SourceFile) -> Iterator[Hit]:
    """Yield the statements that change a stored sample while it is read."""
    for owner in source.nodes:
        if not isinstance(owner, ast.ClassDef):
            continue
        methods = {each.name: each for each in owner.body if isinstance(each, ast.FunctionDef)}
        if (getitem := methods.get("__getitem__")) is None:
            continue
        stored = _stored(owner, getitem)
        changes = {id(each.node): each for each in _changes(getitem, {}, stored, methods)} if stored else {}
        for each in changes.values():
            yield Hit(
                message=f"`{ast.unparse(each.node)}` changes the stored sample `{each.sample}`, which is not a copy: "
                "the next epoch reads the changed sample and changes it again.",
                node=each.node,
            )


def _stored(owner: ast.ClassDef, getitem: ast.FunctionDef) -> dict[str, bool]:
    """Return the attributes whose items ``__getitem__`` reads without a copy, and whether each is a list."""
    index = getitem.args.args[1].arg if len(getitem.args.args) > 1 else ""
    indexed = {
        each.value.attr
        for each in ast.walk(getitem)
        if isinstance(each, ast.Subscript) and _is_own(each.value) and index in ast.unparse(each.slice)
    }
    found: dict[str, bool] = {}
    for each in ast.walk(owner):
        values: list[tuple[Any, Any]] = []
        if isinstance(each, ast.Assign):
            values = [pair for target in each.targets for pair in _pairs(target, each.value)]
        for target, value in values:
            if not _is_own(target) or target.attr not in indexed or any(word in ast.unparse(value) for word in FRESH):
                continue
            is_list = isinstance(value, ast.List | ast.ListComp)
            is_array = isinstance(value, ast.Call) and (
                dotted_name(value.func).startswith(ARRAYS) or _method(value) in ("astype", "float", "numpy", "clone")
            )
            is_array |= any(isinstance(n, ast.Call) and dotted_name(n.func).startswith(ARRAYS) for n in ast.walk(value))
            is_given = isinstance(value, ast.Name) and target.attr not in WRAPPED
            is_given &= len(indexed) > 1 or f"from_numpy(self.{target.attr}[" in ast.unparse(getitem)
            if is_list or is_array or is_given:
                found[target.attr] = is_list
    return found


def _changes(
    method: ast.FunctionDef, samples: dict[str, str], stored: dict[str, bool], methods: dict[str, ast.FunctionDef]
) -> Iterator[_Change]:
    """Yield the changes of samples in a method, in the order of its statements.

    Args:
        method: ``__getitem__``, or a method that it calls.
        samples: variables that refer to stored samples -> the source of the sample; updated.
        stored: see `_stored`.
        methods: the methods of the class; empty to follow no calls.
    """
    arrays = _names_used_as_arrays(method)
    for statement, tests in _statements(method.body, ()):
        change = _change(statement, tests, samples, stored)
        if change is not None and (not change.needs_array or change.needs_array in arrays):
            yield change
        call = getattr(statement, "value", None)
        if not isinstance(call, ast.Call) or not call.args or (callee := methods.get(_method(call))) is None:
            pass
        elif len(callee.args.args) > 1 and (sample := _sample(call.args[0], samples, stored)):
            parameter, result = callee.args.args[1], getattr(statement, "targets", [None])[0]
            yield from _changes(callee, {parameter.arg: sample}, stored, {})
            if isinstance(result, ast.Name) and result.id in arrays:
                yield from _changes_of_array(callee, parameter.arg, sample, stored)
        if isinstance(statement, ast.Assign):
            _assign(statement, samples, stored)


def _changes_of_array(method: ast.FunctionDef, name: str, sample: str, stored: dict[str, bool]) -> Iterator[_Change]:
    """Yield the changes in a method that gets a sample which is certainly an array."""
    samples = {name: sample}
    for statement, tests in _statements(method.body, ()):
        if (change := _change(statement, tests, samples, stored)) is not None:
            yield change
        if isinstance(statement, ast.Assign):
            _assign(statement, samples, stored)


def _names_used_as_arrays(method: ast.FunctionDef) -> set[str]:
    """Return the variables of which a method reads an attribute or a part, as it would not of a number."""
    used = {each.value.id for each in ast.walk(method) if isinstance(each, ast.Attribute | ast.Subscript)
            and isinstance(each.value, ast.Name)}  # fmt: skip
    for each in ast.walk(method):
        match each:  # torch.tensor(image).flatten()
            case ast.Attribute(value=ast.Call(args=[ast.Name(id=name), *_]), attr="flatten" | "permute" | "transpose"):
                used.add(name)
            case _:
                pass
    return used


def _assign(statement: ast.Assign, samples: dict[str, str], stored: dict[str, bool]) -> None:
    """Update the variables that refer to stored samples."""
    for target in statement.targets:
        for name, value in _pairs(target, statement.value):
            for each in ast.walk(name):
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                    sample = _sample(value, samples, stored) if each is name else ""
                    samples.pop(each.id, None)
                    samples |= {each.id: sample} if sample else {}


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[Any, Any]]:
    """Return the single assignments of ``a, b = c, d``."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


def _change(
    statement: ast.stmt, tests: tuple[str, ...], samples: dict[str, str], stored: dict[str, bool]
) -> _Change | None:
    """Return the change that a statement makes to a sample, if it makes one that differs from time to time."""
    is_random = any("rand" in each for each in (ast.unparse(statement), *tests))
    match statement:
        case ast.AugAssign(target=ast.Name(id=name) as target) if name in samples:
            return _Change(statement, samples[name], name)
        case ast.AugAssign(target=ast.Subscript() as target, value=value):
            sample = _sample(target.value, samples, stored) or _sample(target, samples, stored)
            is_count = isinstance(value, ast.Constant) and _is_own(target.value)
            return _Change(statement, sample, "") if sample and not is_count else None
        case ast.Assign(targets=[ast.Subscript(value=owner) as target], value=value):
            sample = _sample(owner, samples, stored)
            again = ast.unparse(target) in ast.unparse(value) and isinstance(value, ast.BinOp)
            is_dict = isinstance(target.slice, ast.Constant) and isinstance(target.slice.value, str)
            again |= is_dict and "transform" in ast.unparse(value) and ast.unparse(target) in ast.unparse(value)
            return _Change(statement, sample, "") if sample and (again or is_random) else None
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=method))):
            sample = _sample(owner, samples, stored)
            changes = method in CHANGING or (method in MASKING and is_random)
            return _Change(statement, sample, "") if sample and changes else None
        case _:
            return None


def _sample(node: ast.expr, samples: dict[str, str], stored: dict[str, bool]) -> str:
    """Return the source of the stored sample that an expression is, or is a view of; "" if it is none."""
    match node:
        case ast.Name(id=name):
            return samples.get(name, "")
        case ast.Subscript(value=value, slice=index) if isinstance(value, ast.Attribute) and _is_own(value):
            copies = (ast.List, ast.ListComp, ast.Compare, ast.Call)
            return ast.unparse(node) if value.attr in stored and not isinstance(index, copies) else ""
        case ast.Subscript(value=value, slice=ast.Slice() | ast.Constant() | ast.Tuple() | ast.Name()):
            return _sample(value, samples, stored)
        case ast.Call(func=function, args=args):
            if dotted_name(function) in VIEWS and args:
                return _sample(args[0], samples, stored)
            is_method = isinstance(function, ast.Attribute) and function.attr in VIEWS
            return _sample(getattr(function, "value", function), samples, stored) if is_method else ""
        case _:
            return ""


def _statements(block: list[ast.stmt], tests: tuple[str, ...]) -> Iterator[tuple[ast.stmt, tuple[str, ...]]]:
    """Yield the statements of a block in their order, with the conditions around each.

    The body of a condition that sets an attribute of the object is skipped: it may run once per sample.
    """
    for each in block:
        yield each, tests
        bodies = [getattr(each, name, []) for name in ("body", "orelse", "finalbody")]
        for body in () if isinstance(each, ast.FunctionDef | ast.ClassDef) else bodies:
            stores = [n for s in body for n in ast.walk(s) if isinstance(getattr(n, "ctx", None), ast.Store)]
            marks = any("self." in ast.unparse(n) for n in stores if isinstance(n, ast.Attribute | ast.Subscript))
            if not (isinstance(each, ast.If) and marks):
                yield from _statements(body, (*tests, ast.unparse(each.test)) if isinstance(each, ast.If) else tests)


def _is_own(node: Any) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and dotted_name(node.value) == "self"


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""
