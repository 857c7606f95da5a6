"""Finds the shapes of predictions, targets and weights in the source: (B, 1), (B,) or another one.

A shape is a text with one letter per dimension: "n1" = (B, 1), "1n" = (1, B), "n" = (B,), "nn" = (B, C), "" = a number.
"""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from typing import Any, Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.activations import SIGMOID
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import loops_around, origins, unpacked_call
from trueloop.analysis.queries.shuffled_loaders import Calls, loaders_of, traced, values_of
from trueloop.analysis.queries.yielded_batches import items_of, yielded
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import dotted_name, integer, nodes_in

COLUMN: Final = "n1"
ROW: Final = "n"
MATRIX: Final = "nn"
_ACROSS: Final = "1n"
PAIRS: Final = "pairs"
"""The result of (B, 1) and (B,): (B, B)."""
ELEMENTWISE: Final = frozenset((
    "abs", "absolute", "as_tensor", "asarray", "astype", "bfloat16", "bool", "byte", "clamp", "clip", "clone",
    "contiguous", "copy", "cosh", "cpu", "cuda", "detach", "double", "exp", "float", "from_numpy", "ge", "gt", "half",
    "int", "le", "log", "log1p", "logsigmoid", "long", "lt", "neg", "numpy", "pow", "relu", "round", "sigmoid",
    "softplus", "sqrt", "square", "tanh", "to", "FloatTensor", "requires_grad_", "type", "type_as", "where", "maximum",
    "minimum", "mul", "sub", "add", "div", "expm1", "sign", "huber", "sin", "cos", "tan", "arctan", "log2", "log10",
    "floor", "ceil", "Variable", "nan_to_num", "power", "multiply", "subtract", "divide",
))  # fmt: skip
PER_ITEM_LOSSES: Final = re.compile(
    r"^((mse|l1|smooth_l1|huber|poisson_nll)_loss|binary_cross_entropy(_with_logits)?)$"
    r"|^(MSE|L1|SmoothL1|Huber|PoissonNLL|BCE|BCEWithLogits)Loss$"
)
_EXTREMA: Final = frozenset(("max", "min", "amax", "amin", "argmax", "argmin", "logsumexp"))
_REDUCTIONS: Final = _EXTREMA | {"mean", "sum", "std", "var", "norm", "prod", "median"}
_RANDOM: Final = {
    "normal": 2, "uniform": 2, "integers": 2, "gamma": 2, "beta": 2, "laplace": 2, "lognormal": 2,
    "poisson": 1, "exponential": 1, "choice": 1, "standard_t": 1,
}  # fmt: skip
"""Functions of NumPy's generators, with the position of the size among their arguments."""
_NEW: Final = frozenset(("randn", "rand", "zeros", "ones", "empty", "random", "randint", "standard_normal", *_RANDOM))
_SCALERS: Final = frozenset(("fit_transform", "transform", "inverse_transform"))
_TABLES: Final = frozenset(("to_numpy", "column_stack", "stack", "pairwise_distance", *_SCALERS))
_DATA: Final = re.compile(r"(load|fetch)_[a-z_]+$")
"""Functions of scikit-learn that return a data set."""
_LIBRARIES: Final = frozenset(("torch", "np", "numpy", "F", "functional", "th", "nn"))
_INDICES: Final = frozenset((
    "randperm", "randint", "integers", "permutation", "choice", "sample", "nonzero", "arange", "argsort", "slice",
    "split", "chunk",
))  # fmt: skip
_SPLITTING: Final = frozenset(("split", "chunk", "tensor_split", "array_split", "BatchSampler"))
_SHAPE: Final = re.compile(r"shape|(^|_)(size|sizes|dims)$|^shp$")
"""Names of variables that hold all sizes of a tensor."""
_DEPTH: Final = 12


class Shapes:
    """Finds the shapes of expressions of one program."""

    def __init__(self, source: SourceFile) -> None:
        self.source = source
        self._known: dict[tuple[int, tuple[int, ...]], str | None] = {}

    def of(self, node: ast.expr, calls: Calls = (), depth: int = _DEPTH) -> str | None:
        """Return the shape of an expression; None if it is unknown.

        Args:
            node: the expression.
            calls: the calls that lead to its function, outermost first.
            depth: number of variables and calls that may be followed.
        """
        key = id(node), tuple(map(id, calls))
        if key not in self._known:
            self._known[key] = None  # for a value that depends on itself
            self._known[key] = self._find(node, calls, depth) if depth else None
        return self._known[key]

    def _find(self, node: ast.expr, calls: Calls, depth: int) -> str | None:
        found: str | None = None
        match node:
            case ast.Constant(value=int() | float()):
                found = ""
            case ast.UnaryOp(operand=inner):
                found = self.of(inner, calls, depth)
            case ast.BinOp(left=left, right=right, op=ast.MatMult()):
                found = _multiplied(self.of(left, calls, depth), self.of(right, calls, depth))
            case ast.BinOp(left=left, right=right) | ast.Compare(left=left, comparators=[right]):
                found = joined(self.of(left, calls, depth), self.of(right, calls, depth))
            case ast.Subscript():
                found = self._of_item(node, calls, depth)
            case ast.Call(func=ast.Attribute(value=owner, attr="log_prob"), args=[actions]) if self._is_of_actions(
                owner, actions, calls, depth
            ):
                found = ROW
            case ast.Call():
                found = self._of_call(node, calls, depth)
            case ast.Name() | ast.Attribute():
                found = self._of_name(node, calls, depth)
            case _:
                pass
        return found

    def _of_name(self, node: ast.Name | ast.Attribute, calls: Calls, depth: int) -> str | None:
        match node:
            case ast.Attribute(attr="values", value=ast.Call() as inner):  # q.max(1).values
                return self.of(inner, calls, depth)
            case ast.Attribute(
                attr="values", value=ast.Subscript(slice=ast.Constant(value=str()))
            ):  # table["y"].values
                return ROW
            case ast.Attribute(attr="data" | "target" as part, value=owner) if self._is_data(owner):
                return MATRIX if part == "data" else ROW
            case ast.Attribute(attr="T", value=inner):
                return _reshaped("t", self.of(inner, calls, depth), [])
            case _:
                return self._of_variable(node, calls, depth)

    def _of_variable(self, node: ast.expr, calls: Calls, depth: int) -> str | None:
        values = values_of(self.source, node, calls)
        if values:
            return _common([self.of(each, path, depth - 1) for each, path in values])
        call = unpacked_call(self.source, node)
        if call is not None and isinstance(node, ast.Name) and last_name(call.func) != "next":
            return self._of_part(call, node.id, calls, depth)
        if not isinstance(node, ast.Name):
            return None
        items = self._items_of_tuple(node)
        if items:
            return _common([self.of(each, (), depth - 1) for each in items])
        passed = self._passed_to_lambda(node)
        return (
            _common([self.of(each, (), depth - 1) for each in passed]) if passed else self._of_batch(node, calls, depth)
        )

    def _items_of_tuple(self, node: ast.Name) -> list[ast.expr]:
        """Return what ``advantages`` gets in ``states, advantages = batch``, where a variable holds a tuple."""
        found: list[ast.expr] = []
        for statement in nodes_in(function_of(self.source, node), ast.Assign):
            for target in statement.targets:
                names = [getattr(each, "id", "") for each in target.elts] if isinstance(target, ast.Tuple) else []
                if node.id not in names or not isinstance(statement.value, ast.Name) or found:
                    continue
                tuples = [each for each in origins(self.source, statement.value) if isinstance(each, ast.Tuple)]
                found += [each.elts[names.index(node.id)] for each in tuples if len(each.elts) == len(names)]
        return found

    def _is_data(self, node: ast.expr) -> bool:
        """Return True for what ``load_diabetes()`` returns."""
        return any(isinstance(e, ast.Call) and _DATA.match(last_name(e.func)) for e in origins(self.source, node, 2))

    def _passed_to_lambda(self, node: ast.Name) -> list[ast.expr]:
        """Return the arguments that the calls of a lambda in a variable pass as one of its parameters."""
        around: Any = self.source.parents.get(id(node))
        while isinstance(around, ast.expr) and not isinstance(around, ast.Lambda):
            around = self.source.parents.get(id(around))
        names = [each.arg for each in around.args.args] if isinstance(around, ast.Lambda) else []
        assigned: Any = self.source.parents.get(id(around))
        if node.id not in names or not isinstance(assigned, ast.Assign):
            return []
        calls = definitions(self.source).calls.get(last_name(assigned.targets[0]), [])
        position = names.index(node.id)
        return [each for call in calls for each in call.args[position : position + 1]]

    def _of_part(self, call: ast.Call, name: str, calls: Calls, depth: int) -> str | None:
        """Return the shape of one of several results: of ``make_regression``, ``train_test_split`` or ``max``."""
        targets = next((e.targets for e in self.source.nodes_of(ast.Assign) if e.value is call), [])
        parts = targets[0].elts if targets and isinstance(targets[0], ast.Tuple) else []
        position = next((i for i, each in enumerate(parts) if getattr(each, "id", "") == name), -1)
        called = last_name(call.func)
        if called == "train_test_split" and position >= 0:
            inputs = call.args[position // 2 : position // 2 + 1]
            return self.of(inputs[0], calls, depth - 1) if inputs else None
        if re.match(r"make_(regression|classification|moons|blobs|circles|friedman\d)|(load|fetch)_\w+$", called):
            return (MATRIX, ROW)[position] if position in (0, 1) else None
        return self.of(call, calls, depth - 1) if called in ("max", "min", "sort", "topk") else None

    # Batches ---------------------------------------------------------------------------------------------------------

    def _of_batch(self, node: ast.Name, calls: Calls, depth: int) -> str | None:
        """Return the shape of ``y`` in ``for x, y in loader``, from a generator, or the dataset of the loader."""
        for item in items_of(self.source, node):
            parts = yielded(self.source, item, calls)
            if parts:
                return _common([self.of(each, path, depth - 1) for each, path in parts])
            if item.position is not None:
                return self._of_samples(item.iterable, item.position, calls, depth)
        return None

    def _of_samples(self, iterable: ast.expr, position: int, calls: Calls, depth: int) -> str | None:
        found: list[str | None] = []
        for loader in loaders_of(self.source, iterable, calls):
            if loader.dataset is None:
                return None
            for each, path in traced(self.source, *loader.dataset, lambda _: None):
                if not isinstance(each, ast.Call):
                    continue
                definition = definitions(self.source).classes.get(last_name(each.func))
                if last_name(each.func) == "TensorDataset":
                    tensors = each.args[position : position + 1]
                    found.append(self.of(tensors[0], path, depth - 1) if tensors else None)
                elif definition is not None:
                    found += [self._of_sample(part, depth) for part in _items(definition, position)]
        return _common(found) if found else None

    def _of_sample(self, node: ast.expr, depth: int) -> str | None:
        """Return the shape of a batch of samples that are one item of a dataset: (B,) for a number, (B, 1) for [x]."""
        for each in origins(self.source, node, 3):
            match each:
                case ast.Call(func=func, args=[ast.List(elts=[_])]) if last_name(func) in (
                    "tensor", "array", "FloatTensor", "Tensor", "asarray", "as_tensor",
                ):  # fmt: skip
                    return COLUMN
                case ast.Call(func=func, args=[inner, *_]) if last_name(func) in ("tensor", "as_tensor"):
                    return ROW if self._is_number(inner) else None
                case ast.Call(func=ast.Attribute(attr="from_numpy"), args=[inner]):
                    return self._of_sample(inner, depth)
                case ast.Call(func=ast.Name(id="float" | "int")):
                    return ROW
                case ast.Subscript(value=rows, slice=ast.Name()):
                    shape = self.of(rows, (), depth - 1)
                    made = [e.args[0] for e in origins(self.source, rows, 1) if isinstance(e, ast.Call) and e.args]
                    are_numbers = bool(made) and all(self._collects_numbers(dotted_name(e)) for e in made)
                    return ROW if are_numbers else shape if shape in (ROW, COLUMN) else None
                case _:
                    pass
        return None

    def _collects_numbers(self, name: str) -> bool:
        """Return True for a list to which only numbers are appended."""
        calls = definitions(self.source).calls.get("append", [])
        items = [e.args[0] for e in calls if name and dotted_name(getattr(e.func, "value", None)) == name and e.args]
        return bool(items) and all(dotted_name(getattr(each, "func", None)) in ("float", "int") for each in items)

    def _is_number(self, node: ast.expr) -> bool:
        for each in origins(self.source, node, 3):
            match each:
                case ast.Call(func=ast.Name(id="float" | "int")) | ast.Constant(value=int() | float()):
                    return True
                case ast.Subscript(value=mapping, slice=ast.Name() | ast.Call()):
                    tables = [e for e in origins(self.source, mapping, 3) if isinstance(e, ast.Dict)]
                    numbers = [isinstance(e, ast.Constant) for table in tables for e in table.values]
                    return (bool(numbers) and all(numbers)) or self.of(mapping) == ROW
                case _:
                    pass
        return False

    # Operations ------------------------------------------------------------------------------------------------------

    def _of_item(self, node: ast.Subscript, calls: Calls, depth: int) -> str | None:
        owner, index = node.value, node.slice
        if isinstance(owner, ast.Call) and last_name(owner.func) in ("max", "min", "median", "topk", "sort"):
            return self.of(owner, calls, depth) if integer(index) in (0, 1) else None
        outputs = _models(self.source).get(id(owner), [])
        if outputs and integer(index) is not None:
            return _of_output([each and each.attributes.get(f"[{integer(index)}]") for each in outputs])
        shape = self.of(owner, calls, depth)
        first = index.elts[0] if isinstance(index, ast.Tuple) and len(index.elts) == 2 else index
        if isinstance(first, ast.Constant) and first.value is None:  # x[None, :]
            return _reshaped("unsqueeze", shape, [0])
        return self._of_rows(shape, index) if shape and shape != PAIRS else None

    def _of_rows(self, shape: str, index: ast.expr) -> str | None:
        if isinstance(index, ast.Slice) or self._selects_rows(index):
            return shape
        match index:
            case ast.Tuple(elts=[first, second]) if isinstance(first, ast.Slice) or self._selects_rows(first):
                if isinstance(second, ast.Constant) and second.value is None:
                    return shape[:1] + "1" + shape[1:]
                is_column = integer(second) is not None and len(shape) == 2
                return shape[:1] if is_column else shape if isinstance(second, ast.Slice) and shape[-1] == "1" else None
            case _:
                return None

    def _selects_rows(self, index: ast.expr) -> bool:
        """Return True for an index that is a slice, a mask or a list of indices, not for a number."""
        if isinstance(index, ast.Compare) or (isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.Invert)):
            return True
        for each in origins(self.source, index, 3):
            if isinstance(each, ast.Subscript) and isinstance(each.slice, ast.Slice):
                return True
            if isinstance(each, ast.Compare) or last_name(getattr(each, "func", None)) in _INDICES:
                return not _is_single(each)
            if isinstance(each, ast.Name):
                loop = next(
                    (e for e in loops_around(self.source, each) if getattr(e.target, "id", "") == each.id), None
                )
                if loop is not None and last_name(getattr(loop.iter, "func", None)) in _SPLITTING:
                    return True
                parts = [part for item in items_of(self.source, each) for part, _ in yielded(self.source, item, ())]
                if parts:
                    return all(map(self._selects_rows, parts))
        return False

    def _of_call(self, node: ast.Call, calls: Calls, depth: int) -> str | None:
        name = last_name(node.func)
        model = _models(self.source).get(id(node))
        if model is not None:
            return _of_output(model)
        is_method = isinstance(node.func, ast.Attribute) and last_name(node.func.value) not in _LIBRARIES
        operands: list[ast.expr] = list(node.args)
        if is_method and isinstance(node.func, ast.Attribute):
            operands = [node.func.value, *operands]
        if is_per_item_loss(self.source, node):
            return joined(*(self.of(each, calls, depth) for each in node.args[:2])) if len(node.args) > 1 else None
        if name in _NEW or name in _TABLES:
            return self._of_table(name, node, calls, depth)
        if name in definitions(self.source).functions or not operands:
            found = [self.of(each, path, depth - 1) for each, path in values_of(self.source, node, calls)]
            return _common(found) if found else None
        own = self.of(operands[0], calls, depth)
        found_shape = self._of_operation(name, own, operands, node, calls, depth)
        if found_shape is None and not is_method:
            found = [self.of(each, path, depth - 1) for each, path in values_of(self.source, node, calls)]
            return _common(found) if found else None
        return found_shape

    def _of_distances(self, node: ast.Call) -> str | None:
        """Return the shape of one distance for each pair of rows; None if the rows of all pairs are compared."""
        operands = [each for operand in node.args[:2] for each in origins(self.source, operand, 2)]
        if any(isinstance(each, ast.Call | ast.Subscript) and _adds_dimension(each) for each in operands):
            return None
        keeps = next((each.value for each in node.keywords if each.arg == "keepdim"), None)
        is_column = getattr(keeps, "value", False) is True
        return None if len(operands) < 2 else COLUMN if is_column else ROW

    def _of_table(self, name: str, node: ast.Call, calls: Calls, depth: int) -> str | None:
        """Return the shape of new numbers, of a column of a table, of stacked columns or of scaled data."""
        match node.func:
            case ast.Attribute(value=ast.Subscript(slice=ast.Constant())) if name == "to_numpy":
                return ROW
            case _ if name == "pairwise_distance":
                return self._of_distances(node)
            case _ if name in _SCALERS:
                return self.of(node.args[0], calls, depth) if node.args else None
            case _:
                return self._of_new(node, calls, depth) if name in _NEW else _of_stack(node)

    def _of_new(self, node: ast.Call, calls: Calls, depth: int) -> str | None:
        """Return the shape of new numbers: of ``torch.randn(n, 1)``, and that of ``x`` for ``torch.randn(x.shape)``."""
        sizes = _sizes(node)
        values = origins(self.source, sizes[0], 3) if len(sizes) == 1 else []
        for each in values:
            match each:
                case (
                    ast.Attribute(attr="shape", value=owner)
                    | ast.Call(func=ast.Attribute(attr="size", value=owner), args=[], keywords=[])
                ):
                    return self.of(owner, calls, depth - 1)
                case ast.Tuple() | ast.List() | ast.Subscript(slice=ast.Slice()) | ast.Starred():
                    return None
                case ast.BinOp(left=left, right=right) if any(
                    isinstance(e, ast.Tuple | ast.List) for e in (left, right)
                ):
                    return None
                case ast.Name(id=name) | ast.Attribute(attr=name) if _SHAPE.search(name):
                    return None
                case ast.Call(func=func, args=args) if _SHAPE.search(last_name(func)) and not args:
                    return None
                case _:
                    pass
        return _of_sizes(sizes)

    def _of_operation(
        self, name: str, own: str | None, operands: list[ast.expr], node: ast.Call, calls: Calls, depth: int
    ) -> str | None:
        arguments = [*operands[1:], *(e.value for e in node.keywords if e.arg in ("dim", "axis", "index"))]
        numbers = [integer(each) for each in arguments]
        if name == "gather" and len(arguments) > 1:
            return self.of(arguments[1], calls, depth)
        if name in ("tensor", "array") and isinstance(operands[0], ast.ListComp):
            return ROW if isinstance(operands[0].elt, ast.Constant | ast.Subscript) else None
        if name in ("tensor", "array", "zeros_like", "ones_like", "empty_like", *ELEMENTWISE):
            others = [self.of(each, calls, depth) for each in operands[1:]] if name in _WITH_TWO else []
            return joined(own, *others) if others else own
        if name in ("view", "reshape", "flatten", "ravel", "squeeze", "unsqueeze", "t"):
            return _reshaped(name, own, numbers)
        if name in _REDUCTIONS:
            keeps = any(e.arg in ("keepdim", "keepdims") and getattr(e.value, "value", 0) for e in node.keywords)
            return _reduced(name, own, numbers, keeps=keeps or any(getattr(e, "value", 0) is True for e in arguments))
        return None

    def _is_of_actions(self, owner: ast.expr, actions: ast.expr, calls: Calls, depth: int) -> bool:
        """Return True for a ``Categorical`` and a batch of actions, whose log-probabilities have the shape (B,)."""
        made = [each for each, _ in values_of(self.source, owner, calls)] or [owner]
        is_categorical = all(isinstance(each, ast.Call) and last_name(each.func) == "Categorical" for each in made)
        if not is_categorical or self.of(actions, calls, depth - 1) not in (None, ROW):
            return False
        return _is_batch_of_actions(origins(self.source, actions))


def _is_batch_of_actions(values: Iterator[ast.expr]) -> bool:
    """Return False for one action, such as a sample of an episode, and for actions with a second dimension."""
    for each in values:
        match each:
            case ast.Call(func=func) if last_name(func) in ("sample", "unsqueeze", "view", "reshape", "argmax"):
                return False
            case ast.Call(args=[ast.List(elts=[_])]) | ast.Subscript(slice=ast.Tuple()):
                return False
            case _:
                pass
    return True


_WITH_TWO: Final = frozenset(
    ("mul", "sub", "add", "div", "where", "maximum", "minimum", "multiply", "subtract", "divide")
)


def joined(*shapes: str | None) -> str | None:
    """Return the shape of a sum or product; `PAIRS` for (B, 1) and (B,).

    An operand of unknown shape is taken to have the shape of the other one, as it has in a correct program.
    """
    known = {each for each in shapes if each}
    if _ACROSS in known and None in shapes:
        return None  # each row is compared with each other one
    if len(known) == 1:
        return known.pop()
    if known == {COLUMN, MATRIX}:
        return MATRIX
    if known == {COLUMN, ROW} or PAIRS in known:
        return PAIRS
    return "" if shapes and all(each == "" for each in shapes) else None


def _multiplied(first: str | None, second: str | None) -> str | None:
    is_known = first and second and PAIRS not in (first, second)
    return f"{first[:-1]}{second[1:]}" if is_known and first and second else None


def _adds_dimension(node: ast.Call | ast.Subscript) -> bool:
    """Return True for ``x.unsqueeze(1)`` and ``x[:, None]``."""
    if isinstance(node, ast.Call):
        return last_name(node.func) in ("unsqueeze", "view", "reshape", "expand", "repeat_interleave")
    return any(each.value is None for each in nodes_in(node.slice, ast.Constant))


def _common(shapes: list[str | None]) -> str | None:
    return shapes[0] if len(set(shapes)) == 1 else None


def _reshaped(name: str, own: str | None, numbers: list[int | None]) -> str | None:
    if name in ("view", "reshape"):
        return COLUMN if numbers == [-1, 1] else ROW if numbers == [-1] else None
    if name in ("flatten", "ravel"):
        return None if numbers else ROW
    if name == "t":
        return own[::-1] if own and own != PAIRS else None
    if name == "squeeze":
        at_end = not numbers or numbers[0] in (1, -1)
        return ROW if own == COLUMN and at_end else own if own in (ROW, MATRIX) and at_end else None
    if numbers in ([1], [-1]):  # unsqueeze: what is not known has one dimension, as an index of `gather`
        return COLUMN if own in (None, ROW) else None
    return _ACROSS if numbers == [0] and own in (None, ROW) else None


def _reduced(name: str, own: str | None, numbers: list[int | None], *, keeps: bool) -> str | None:
    if not numbers:
        return ""
    is_last = numbers[0] in (1, -1) and (own in (MATRIX, COLUMN) or (own is None and name in _EXTREMA))
    if is_last:
        return COLUMN if keeps else ROW
    return "1" if numbers[0] == 0 and own == COLUMN else None


def _sizes(node: ast.Call) -> list[ast.expr]:
    """Return the sizes that a call like ``torch.randn(n, 1)`` or ``np.zeros((n,))`` gets; [] if they are unknown."""
    sizes: list[ast.expr] = list(node.args)
    tuples = [
        each for each in sizes + [k.value for k in node.keywords if k.arg == "size"] if isinstance(each, ast.Tuple)
    ]
    if tuples:
        sizes = list(tuples[0].elts)
    elif last_name(node.func) == "randint":
        return []
    elif last_name(node.func) in _RANDOM:
        position = _RANDOM[last_name(node.func)]
        sizes = [k.value for k in node.keywords if k.arg == "size"] or sizes[position : position + 1]
    return sizes


def _of_sizes(sizes: list[ast.expr]) -> str | None:
    known = 0 < len(sizes) < 3 and not any(isinstance(each, ast.Starred) for each in sizes)
    shape = "".join("1" if integer(each) == 1 else "n" for each in sizes)
    return shape if known and shape[0] == "n" else None


def _of_stack(node: ast.Call) -> str | None:
    """Return the shape of ``np.stack([a, b], axis=1)`` or ``np.column_stack([a, b])`` of several columns."""
    along = [each.value for each in node.keywords if each.arg in ("axis", "dim")] or node.args[1:2]
    is_last = last_name(node.func) == "column_stack" or (bool(along) and integer(along[0]) in (1, -1))
    parts = node.args[0] if node.args else None
    return MATRIX if is_last and isinstance(parts, ast.List | ast.Tuple) and len(parts.elts) > 1 else None


def _is_single(call: ast.expr) -> bool:
    """Return True for ``randint(0, n)`` and ``choice(rows)``, which return one index."""
    match call:
        case ast.Call(args=args, keywords=[]) if last_name(call.func) in ("randint", "integers", "choice"):
            bounds = 1 if last_name(call.func) == "choice" else 2
            return len(args) <= bounds and not any(isinstance(each, ast.Tuple) for each in args)
        case _:
            return False


def _items(definition: ast.ClassDef, position: int) -> Iterator[ast.expr]:
    """Yield an item of the tuples that the ``__getitem__`` of a dataset returns."""
    for method in definition.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__getitem__":
            for each in nodes_in(method, ast.Return):
                if isinstance(each.value, ast.Tuple):
                    yield from each.value.elts[position : position + 1]


@lru_cache(maxsize=1)  # rules of one file follow each other
def _models(source: SourceFile) -> dict[int, list[AbstractValue | None]]:
    """Return the results of the calls of models, by the id of the call."""
    found: dict[int, list[AbstractValue | None]] = {}
    for each in source.ops(OpKind.MODEL_CALL, OpKind.FORWARD_CALL):
        found.setdefault(id(each.node), []).append(each.result)
    return found


def _of_output(results: list[AbstractValue | None]) -> str | None:
    """Return the shape of a model's output that is the result of its last linear layer."""
    return _common([None if each is None or each.kind is ValueKind.SEQUENCE else _of_layer(each) for each in results])


def _of_layer(result: AbstractValue) -> str | None:
    origin = result.origin(_ACTIVATIONS)
    if origin is None or origin.name not in ("torch.nn.Linear", "torch.nn.LazyLinear"):
        return None
    number = "0" if origin.name.endswith("LazyLinear") else "1"
    size = origin.arguments.get(number) or origin.arguments.get("out_features")
    width = None if size is None else size.constant()
    return None if not isinstance(width, int) else COLUMN if width == 1 else MATRIX


_ACTIVATIONS: Final = SIGMOID | {
    "torch.tanh", "torch.Tensor.tanh", "torch.nn.functional.softplus", "torch.exp", "torch.Tensor.exp",
}  # fmt: skip


def is_per_item_loss(source: SourceFile, call: ast.Call) -> bool:
    """Return True for a call of a loss with ``reduction="none"``."""
    names = [(call, last_name(call.func))]
    if not PER_ITEM_LOSSES.match(names[0][1]):
        made = chain.from_iterable(origins(source, each) for each in (call.func,))
        names = [(each, last_name(each.func)) for each in made if isinstance(each, ast.Call)]
    return bool(names) and all(PER_ITEM_LOSSES.match(name) and _reduction(each) == "none" for each, name in names)


def _reduction(call: ast.Call) -> Any:
    return next((getattr(each.value, "value", "") for each in call.keywords if each.arg == "reduction"), "mean")
