"""Finds held-out data that is not scaled although the training data is, in the source."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.batch_loops import assigned_in, function_of, is_label, is_loss_call, single_assignments
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.held_out_names import is_held_out, is_other_part, is_training
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, encloses, nodes_in

_CENTRES: Final = frozenset(("mean", "nanmean", "median", "nanmedian", "min", "amin", "nanmin"))
_CONVERSIONS: Final = frozenset((
    "tensor", "from_numpy", "as_tensor", "Tensor", "FloatTensor", "DoubleTensor", "asarray", "array",
))  # fmt: skip
_METHODS: Final = frozenset((
    "float", "double", "long", "to", "cuda", "cpu", "numpy", "to_numpy", "reshape", "view", "unsqueeze", "squeeze",
    "astype", "copy", "clone", "detach", "flatten", "contiguous", "type", "split",
))  # fmt: skip
_HARMLESS: Final = frozenset((
    "len", "print", "isinstance", "type", "id", "range", "shape", "size", "ndim", "dtype", "columns", "predict",
    "score", "randperm", "unique", "bincount", "head", "isnan", "isfinite",
))  # fmt: skip
_SCALES: Final = re.compile(
    r"\.transform\(|scal|norm|standard|mean|std|(?<![a-z])(mu|sd|sigma)(?![a-z])", re.IGNORECASE
)


class _Scaling(NamedTuple):
    """Training data that is scaled with its own statistics."""

    node: ast.expr
    data: ast.expr
    width: str
    """What it is divided by; "" for a scaler."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield held-out data that reaches a model or a dataset without the scaling of the training data."""
    models = {id(each.node) for each in source.ops(OpKind.MODEL_CALL)}
    reported: set[str] = set()
    for scaling in _scalings(source):
        name = dotted_name(_array(scaling.data))
        is_target = is_label(_array(scaling.data))
        if is_target and _is_scaled_back(source, scaling):
            continue
        sides = [each for each in _counterparts(source, scaling) if ast.unparse(each) not in reported]
        for held_out in sides:
            use, own = (
                _Uses(source, models, is_target=is_target, scaling=node).first(data)
                for node, data in ((None, held_out), (scaling.node, scaling.data))
            )
            if use is not None and own is None and name and not _may_scale_later(source, scaling):
                reported.add(ast.unparse(held_out))
                yield Hit(
                    message=f"`{ast.unparse(held_out)}` is used here unscaled, but the model is trained on "
                    f"`{ast.unparse(scaling.data)}` after scaling: equal numbers mean something else in "
                    "training and in evaluation. Scale both with the statistics of the training data.",
                    node=use,
                    related=((scaling.node, "the training data is scaled here"),),
                )
                break


def _scalings(source: SourceFile) -> Iterator[_Scaling]:
    """Yield the scalings of data that is not called held-out data, with its own statistics."""
    fitted = {ast.unparse(c.args[0]): c for c in source.all_calls if last_name(c.func) == "fit" and c.args}
    for node in source.nodes_of(ast.Call, ast.BinOp):
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr="fit_transform" | "transform" as attr), args=[data, *_]):
                made = [last_name(each.func) for each in origins(source, owner) if isinstance(each, ast.Call)]
                is_scaler = any(each.endswith("Scaler") for each in made) or "scal" in ast.unparse(owner).lower()
                is_own = attr == "fit_transform" or ast.unparse(data) in fitted
                if is_scaler and is_own and not is_held_out(data):
                    yield _Scaling(node, data, "")
            case ast.BinOp(op=ast.Div(), left=ast.BinOp(op=ast.Sub(), left=data, right=centre), right=width):
                if _is_statistic(source, centre, data) and not is_held_out(data):
                    yield _Scaling(node, data, ast.unparse(width).partition(" +")[0].strip("()"))
            case _:
                pass


def _may_scale_later(source: SourceFile, scaling: _Scaling) -> bool:
    """Return True if the scaler or the mean is also used for data that is called neither training nor held-out data."""
    others: list[ast.expr] = []
    match scaling.node:
        case ast.Call(func=ast.Attribute(value=owner)):
            for call in source.all_calls:
                if isinstance(call.func, ast.Attribute) and call.func.attr == "transform" and call is not scaling.node:
                    others += call.args[:1] if ast.unparse(call.func.value) == ast.unparse(owner) else []
        case ast.BinOp(left=ast.BinOp(right=centre) as own):
            for each in source.nodes_of(ast.BinOp):
                if isinstance(each.op, ast.Sub) and each is not own and ast.unparse(each.right) == ast.unparse(centre):
                    others.append(each.left)
        case _:
            pass
    parts = [each for each in others if is_training(each) or is_held_out(each)]
    return len(parts) < len(others)


def _is_statistic(source: SourceFile, node: ast.expr, data: ast.expr) -> bool:
    """Return True for the mean or the smallest value of the array that some data is, or is taken from."""
    values = [node]
    if isinstance(node, ast.Name | ast.Attribute):
        names = (function_of(source, node), source.tree)
        values = next((found for each in names if (found := assigned_in(each, dotted_name(node)))), [])
    root = dotted_name(_array(data))
    for call in (call for value in values for call in nodes_in(value, ast.Call)):
        if isinstance(call.func, ast.Attribute) and call.func.attr in _CENTRES and root:
            of = call.args[0] if dotted_name(call.func.value) in ("np", "numpy", "torch") and call.args else None
            axes = [*call.args[of is not None :], *(e.value for e in call.keywords if e.arg in ("dim", "axis"))]
            is_over_rows = not axes or ast.unparse(axes[0]).lstrip("([").startswith(("0", "None"))
            if is_over_rows and dotted_name(_array(of or call.func.value)) == root:
                return True
    return False


def _array(node: Any) -> Any:
    """Return the variable of ``torch.tensor(x[i:j]).float()``; a slice of it that is not variable keeps its slice."""
    while True:
        match node:
            case ast.Subscript(value=value) if not _is_part(node):
                node = value
            case ast.Call(func=func, args=[value, *_]) if last_name(func) in _CONVERSIONS:
                node = value
            case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in _METHODS:
                node = value
            case ast.Attribute(value=value, attr="values" | "iloc" | "loc" | "T"):
                node = value
            case ast.Subscript(value=value):
                return value
            case _:
                return node


def _is_part(node: ast.Subscript) -> bool:
    """Return True for ``x[:n]`` or ``x[n:]``, which is a part of the samples."""
    part = node.slice
    return isinstance(part, ast.Slice) and part.step is None and (part.lower is None) != (part.upper is None)


def _counterparts(source: SourceFile, scaling: _Scaling) -> Iterator[ast.expr]:
    """Yield the first expression of each array that holds the held-out samples of scaled training data."""
    data: Any = scaling.data
    while isinstance(data, ast.Call) and (data.args or isinstance(data.func, ast.Attribute)):
        data = data.args[0] if last_name(data.func) in _CONVERSIONS and data.args else getattr(data.func, "value", None)
    if isinstance(data, ast.Subscript) and _is_part(data) and getattr(data.slice, "upper", None) is not None:
        upper, root = ast.unparse(data.slice.upper), ast.unparse(data.value)  # type: ignore[attr-defined]
        for each in source.nodes_of(ast.Subscript):
            lower = getattr(each.slice, "lower", None) if _is_part(each) else None
            if lower is not None and ast.unparse(lower) == upper and ast.unparse(each.value) == root:
                yield each
        return
    name = dotted_name(_array(data))
    found: set[str] = set()
    for target, value in single_assignments(function_of(source, scaling.node)):
        items = target.elts if isinstance(target, ast.Tuple | ast.List) else []
        if items and isinstance(value, ast.Call) and last_name(value.func) == "train_test_split":
            pairs = [(ast.unparse(a), b) for a, b in zip(items[::2], items[1::2], strict=False)]
        else:
            is_made_of_it = any(ast.unparse(each) == name for each in nodes_in(value, ast.Name, ast.Attribute))
            origin = _array(value)
            is_converted = bool(dotted_name(origin)) and is_other_part(name, origin)  # which is judged itself
            pairs = [
                (name, each)
                for each in items or [target]
                if not is_made_of_it and not is_converted and is_other_part(name, each)
            ]
        for own, other in pairs:
            if own == name and ast.unparse(other) not in found:
                found.add(ast.unparse(other))
                yield other


def _is_scaled_back(source: SourceFile, scaling: _Scaling) -> bool:
    """Return True if predictions are scaled back, so that targets keep their unit."""
    if "inverse" in source.text.source or not scaling.width:
        return True
    products = [each for each in source.nodes_of(ast.BinOp) if isinstance(each.op, ast.Mult)]
    return any(scaling.width in ast.unparse(each) for each in products)


class _Uses:
    """Follows data through variables and functions to the calls that get it.

    Args:
        source: the file.
        models: ids of the calls of models.
        is_target: whether the data are targets, which a loss gets.
        scaling: for training data, the scaling, which is skipped; other uses do not matter then.
    """

    def __init__(self, source: SourceFile, models: set[int], *, is_target: bool, scaling: ast.expr | None) -> None:
        self.source, self.models, self.is_target, self.scaling = source, models, is_target, scaling
        self.calls = 0

    def first(self, data: ast.expr) -> ast.expr | None:
        """Return the first call of a model or dataset, or a loss for targets, that gets the data unscaled.

        None if there is none, or if any use may scale the data.
        """
        is_slice = isinstance(data, ast.Subscript) and _is_part(data)
        use = self._in(self.source.tree, {ast.unparse(data if is_slice else _array(data))})
        return use if isinstance(use, ast.expr) else None

    def _in(self, scope: Any, names: set[str]) -> ast.expr | bool | None:
        """Return the first use of some variables in a function or module, as `_use` does."""
        if any(self._is_skipped(v) and ast.unparse(t) in names for t, v in single_assignments(scope)):
            return None
        names = self._aliases(scope, names)
        found: list[ast.expr] = []
        for node in nodes_in(scope, ast.Name, ast.Attribute, ast.Subscript):
            if isinstance(node.ctx, ast.Load) and ast.unparse(node) in names:
                use = self._use(node)
                if use is False and self.scaling is None:
                    return False
                if isinstance(use, ast.expr) and not (self.scaling and encloses(self.scaling, node)):
                    found.append(use)
        return min(found, key=lambda each: each.lineno, default=None)

    def _aliases(self, scope: Any, names: set[str]) -> set[str]:
        """Return some variables, and those that get their values, converted or indexed."""
        found, before = set(names), 0
        while len(found) > before:
            before = len(found)
            for target, value in single_assignments(scope):
                is_path = isinstance(target, ast.Name | ast.Attribute) and not self._is_skipped(value)
                if is_path and self._is_data(value, found):
                    found.add(ast.unparse(target))
            found |= self._returned(found)
        return found

    def _is_skipped(self, value: ast.expr) -> bool:
        return self.scaling is not None and encloses(value, self.scaling)

    @staticmethod
    def _is_data(value: Any, names: set[str]) -> bool:
        """Return True if a value is one of some variables, converted or indexed."""
        while value is not None and ast.unparse(value) not in names:
            match value:
                case ast.Call(func=func, args=[inner, *_]) if last_name(func) in _CONVERSIONS:
                    value = inner
                case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr in _METHODS:
                    value = inner
                case ast.Subscript(value=inner) | ast.Attribute(value=inner, attr="values"):
                    value = inner
                case _:
                    return False
        return value is not None

    def _returned(self, names: set[str]) -> set[str]:
        """Return the variables that get one of some variables from a function which returns it."""
        found: set[str] = set()
        for each in self.source.nodes_of(ast.Return):
            if not isinstance(each.value, ast.Tuple):
                continue
            positions = [i for i, item in enumerate(each.value.elts) if self._is_data(item, names)]
            called = getattr(function_of(self.source, each), "name", "")
            for target, value in single_assignments(self.source.tree) if positions else ():
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Call) and last_name(value.func) == called:
                    found |= {ast.unparse(target.elts[i]) for i in positions if i < len(target.elts)}
        return found

    def _use(self, node: ast.AST) -> ast.expr | bool | None:
        """Return the call that gets data unscaled; None if the use does not matter, False if it may scale the data."""
        parent: Any = self.source.parents.get(id(node))
        while _is_same_data(parent, node):
            node, parent = parent, self.source.parents.get(id(parent))
        match parent:
            case ast.Attribute(attr=attr):
                return None if attr in _HARMLESS else False
            case ast.Call() if parent.func is not node:
                return self._of_call(parent, node)
            case ast.Assign() | ast.Compare() | ast.FormattedValue() | ast.Expr() | ast.AnnAssign():
                return None
            case ast.Tuple():
                outer = self.source.parents.get(id(parent))
                return None if isinstance(outer, ast.Return | ast.Assign) else False
            case _:
                return False

    def _of_call(self, call: ast.Call, node: ast.AST) -> ast.expr | bool | None:
        name, known = last_name(call.func), definitions(self.source)
        if name in _HARMLESS or (is_loss_call(self.source, call) and not self.is_target):
            return None
        if name == "TensorDataset" or (is_loss_call(self.source, call) if self.is_target else id(call) in self.models):
            return call
        if self.is_target or not (isinstance(call.func, ast.Name) or dotted_name(call.func).startswith("self.")):
            return False
        if name in known.classes:
            text = "".join(map(ast.unparse, known.classes[name].body))
            return call if name in self._datasets() and not _SCALES.search(text) else False
        return self._in_function(call, known.functions.get(name), node)

    def _in_function(self, call: ast.Call, function: ast.FunctionDef | None, node: ast.AST) -> ast.expr | bool | None:
        """Return the call if the function gets data that it gives to a model unscaled."""
        keyword = next((each.arg for each in call.keywords if each.value is node), None)
        position = next((i for i, each in enumerate(call.args) if each is node), None)
        if function is None or self.calls > 3 or (keyword is None and position is None):
            return False
        names = [each.arg for each in function.args.args if each.arg != "self"]
        name = keyword or (names[position] if position is not None and position < len(names) else "")
        self.calls += 1
        use = self._in(function, {name})
        self.calls -= 1
        return call if isinstance(use, ast.expr) else use

    def _datasets(self) -> set[str]:
        bases = definitions(self.source).classes.items()
        return {name for name, each in bases if any(last_name(base).endswith("Dataset") for base in each.bases)}


def _is_same_data(parent: Any, node: ast.AST) -> bool:
    """Return True if an expression is the data of one of its parts, converted or indexed."""
    match parent:
        case ast.Call(func=func) if func is node:
            return last_name(node) in _METHODS
        case ast.Call(func=func):
            return last_name(func) in _CONVERSIONS
        case ast.Attribute(attr=attr):
            return attr in _METHODS or attr in ("values", "iloc", "loc", "T")
        case ast.Subscript(value=value):
            return value is node
        case _:
            return False
