"""Follows the order of the rows of arrays through the source, and finds arrays in different orders that are paired."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.assignments import assigned_value
from trueloop.analysis.queries.batch_loops import is_label, is_loss_call
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in

_DRAWING: Final = frozenset(("randperm", "permutation", "choice", "randint", "sample", "integers"))
"""Functions that draw row numbers at random."""
_ORDERS: Final = _DRAWING | {"shuffle", "train_test_split"}
SEEDS: Final = frozenset((
    "seed", "manual_seed", "set_state", "setstate", "seed_everything", "set_seed", "set_rng_state",
))  # fmt: skip
GENERATORS: Final = frozenset(("RandomState", "default_rng", "Random", "Generator"))
_FILLED: Final = frozenset((
    "ones", "zeros", "full", "ones_like", "zeros_like", "full_like", "empty", "eye", "linspace", "len", "range",
    "arange", "shape", "size", "item", "device", "dtype", "numel",
))  # fmt: skip
"""Functions and attributes whose result has no rows in a certain order."""
_REDUCTIONS: Final = frozenset(("mean", "std", "max", "min", "sum", "var", "median"))
_KEEPS_NUMBERS: Final = frozenset((
    "split", "chunk", "array_split", "enumerate", "tqdm", "tolist", "numpy", "list", "tensor", "from_numpy", "to",
    "cpu", "array", "asarray", "long", "LongTensor", "int", "as_tensor", "iter", "cuda", "copy", "clone", "view", "cat",
    "concat", "concatenate", "hstack", "append",
))  # fmt: skip
"""Functions whose result contains the same row numbers."""
_CONVERSIONS: Final = _KEEPS_NUMBERS | {
    "float", "double", "half", "bool", "byte", "detach", "squeeze", "flatten", "ravel", "contiguous", "to_numpy",
    "toarray", "todense", "argmax", "type", "t",
}  # fmt: skip
"""Methods without arguments whose result has the same rows."""
_OF_FITTED: Final = frozenset(("transform", "inverse_transform", "predict", "predict_proba", "decision_function"))
"""Methods of an estimator whose result has the rows of their argument."""
_PAIRING: Final = re.compile(r"Dataset$|^zip$|train|fit|step|update|loss|crit|entropy|objective|split|^learn")
_DELIBERATE: Final = re.compile(r"rand|perm|shuf|null|nois|corrupt|fake|wrong|control", re.IGNORECASE)
"""Names of labels that are in another order on purpose."""
_INPUTS: Final = frozenset((
    "input", "inputs", "features", "feats", "data", "images", "imgs", "texts", "sentences", "sequences", "samples",
    "x", "xs", "xb", "xtr", "xtrain",
))  # fmt: skip
_ONE_SAMPLE: Final = re.compile(r"__getitem__|__call__|transform|augment|collate|patch|jigsaw", re.IGNORECASE)
"""Names of functions that may shuffle the parts of one sample."""
_SETTINGS: Final = frozenset(("test_size", "train_size", "random_state", "n_splits", "num_samples", "batch_size"))
"""Arguments that are numbers."""
EXPERIMENT: Final = re.compile(r"permut|null|corrupt|nois|random_label|importance|control|negative", re.IGNORECASE)
"""Names of functions that shuffle one of two arrays on purpose."""
_NEGATIVES: Final = frozenset(("neg", "negs", "negative", "negatives", "anchor", "real", "fake", "pos", "positive"))
_RANDOM: Final = re.compile(r"_?(rng|prng|gen|generator|g|rs)$")
"""Names of random number generators."""
_SIZES: Final = frozenset(("n", "m", "num", "size", "len", "length", "total", "count", "samples"))
_MAX_DEPTH: Final = 40
Order = tuple[Any, ...]


class Rows(NamedTuple):
    """Where the rows of a value come from."""

    roots: frozenset[str] = frozenset()
    """Variables that hold the original rows; empty for a single number, and for rows that are all equal."""
    order: Order | None = ()
    """Orders in which the rows were put, oldest first; None = rows in different orders are mixed."""
    numbers: Order | None = ()
    """If the value holds row numbers: the order of the rows that it selects as an index; None = unknown."""


_NO_ROWS: Final = Rows()
_MODULE: Final = Rows()
"""An imported module; its functions make new rows."""


def find_orders(source: SourceFile) -> Iterator[Hit]:
    """Yield each pair of arrays whose rows are in different orders."""
    if "permutation_test" in source.text.source or not any(
        last_name(each.func) in _ORDERS for each in source.all_calls
    ):
        return
    shuffling = frozenset(shuffling_functions(source))
    reported: set[int] = set()
    draws: dict[Any, ast.AST] = {}
    imported = [alias for each in source.nodes_of(ast.Import) for alias in each.names]
    module = Scope(source, shuffling, draws, {(each.asname or each.name): _MODULE for each in imported})
    drawing = _ORDERS | shuffling
    for name, functions in _blocks(source):
        if name and not any(map(module.is_ordered, module.variables)) and not _calls_any(functions, drawing):
            continue
        scope = Scope(source, shuffling, draws, module.variables)
        scope.of_one_sample = bool(_ONE_SAMPLE.search(name))
        scope.of_class = name.startswith("self ")
        hits: list[Hit] = []
        for function in functions:
            if isinstance(function, ast.Module):
                scope = module
            else:
                scope.enter(function, module.variables)
            hits += [hit for statement in function.body for hit in scope.read(statement)]
        for hit in hits:
            if id(hit.node) not in reported and not EXPERIMENT.search(name):
                reported.add(id(hit.node))
                yield hit


def _calls_any(blocks: Iterable[ast.AST], names: frozenset[str]) -> bool:
    return any(last_name(call.func) in names for each in blocks for call in nodes_in(each, ast.Call))


def _blocks(source: SourceFile) -> Iterator[tuple[str, list[ast.Module | ast.FunctionDef]]]:
    """Yield modules, functions and classes by name; a class, as "self Name", with its methods, which share ``self``."""
    for module in source.modules:
        yield "", [module.tree]
    for node in source.nodes_of(ast.FunctionDef, ast.ClassDef):
        if isinstance(node, ast.FunctionDef) and not isinstance(source.parents.get(id(node)), ast.ClassDef):
            yield node.name, [node]
        elif isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            methods.sort(key=lambda each: each.name != "__init__")
            yield f"self {node.name}", list(methods)


def shuffling_functions(source: SourceFile) -> Iterator[str]:
    """Yield the functions that return their argument in a new random order; others are random number generators."""
    for node in source.nodes_of(ast.FunctionDef):
        if not node.args.args or any(not _RANDOM.match(each.arg) for each in node.args.args[1:]):
            continue
        if not _calls_any([node], _ORDERS) or _calls_any([node], SEEDS | GENERATORS):
            continue
        scope = Scope(source, frozenset(), {}, {})
        for statement in node.body:
            list(scope.read(statement))
            if isinstance(statement, ast.Return) and statement.value is not None:
                rows = scope.rows(statement.value)
                if rows.order and node.args.args[0].arg in rows.roots:
                    yield node.name


class Scope:
    """The variables of a function or module, in the order of its statements.

    Args:
        source: the file.
        shuffling: functions that return their argument in another order.
        draws: key of a drawn order -> the call that draws it; it grows.
        outer: variables of the module.
    """

    def __init__(
        self,
        source: SourceFile,
        shuffling: frozenset[str],
        draws: dict[Any, ast.AST],
        outer: Mapping[str, Rows],
    ) -> None:
        self.source, self.shuffling, self.draws = source, shuffling, draws
        self.of_one_sample = False
        """Whether the statements may be about the parts of one sample."""
        self.of_class = False
        """Whether the statements are those of all methods of a class."""
        self.variables = dict(outer)
        self._generators: dict[str, str] = {}
        self._indices: set[str] = set()
        """Variables with row numbers by which an array was indexed."""
        self._seed: tuple[str, int] | None = None
        """The latest seed, and the number of orders drawn since; None before the first seed."""
        self._keys: dict[int, Any] = {}
        """Id of a call that draws an order -> the key of this order; orders from equal seeds have equal keys."""
        self._drawn_from: dict[str, int] = {}
        """Generator -> the number of orders drawn from it."""

    def is_ordered(self, name: str) -> bool:
        """Return True for a variable that holds row numbers, or rows that are not in their original order."""
        rows = self.variables[name]
        return rows.order != () or rows.numbers != ()

    def enter(self, function: ast.FunctionDef, outer: Mapping[str, Rows]) -> None:
        """Forget the local variables of the previous method, and hide module variables with the name of a parameter."""
        kept = {name: rows for name, rows in self.variables.items() if name.startswith("self.")}
        parameters = {each.arg for each in nodes_in(function.args, ast.arg)}
        self.variables = {name: rows for name, rows in {**outer, **kept}.items() if name not in parameters}

    # Statements ---------------------------------------------------------------------------------------------------

    def read(self, statement: ast.stmt) -> Iterator[Hit]:
        """Read a statement, and yield the wrong pairs in it."""
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return
        blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        if isinstance(statement, ast.For):
            yield from self._pairs(statement.iter)
            self._bind(statement.target, self._items(statement.iter))
        if isinstance(statement, ast.If) and statement.orelse:
            yield from self._read_arms(statement)
        elif any(blocks):
            evaluates = isinstance(statement, ast.With) and "grad" in ast.unparse(statement.items[0].context_expr)
            hits = [hit for block in blocks for inner in block for hit in self.read(inner)]
            yield from () if evaluates else hits
        else:
            yield from self._pairs(statement)
            self._update(statement)

    def _read_arms(self, statement: ast.If) -> Iterator[Hit]:
        """Read both arms of a condition, of which one runs: what they change differently is unknown afterwards."""
        before = dict(self.variables)
        yield from [hit for inner in statement.body for hit in self.read(inner)]
        first, self.variables = self.variables, before
        yield from [hit for inner in statement.orelse for hit in self.read(inner)]
        for name, rows in first.items():
            other = self.variables.get(name, rows)
            self.variables[name] = rows if rows == other else Rows(rows.roots | other.roots, None)

    def _update(self, statement: ast.stmt) -> None:
        """Update the variables."""
        for each in nodes_in(statement, ast.Call):
            if last_name(each.func) in SEEDS:
                self._seed = ", ".join(map(ast.unparse, each.args)), 0
        match statement:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value)
            case ast.AugAssign(target=ast.Subscript() as target, value=value):
                self._change(target, value)
            case ast.AugAssign(target=target, value=value):
                self._bind(target, _mixed([self.rows(target), self.rows(value)]))
            case ast.Expr(value=ast.Call(args=[shuffled]) as call) if last_name(call.func) == "shuffle":
                self._shuffle_in_place(call, shuffled)
            case ast.Expr(value=ast.Call() as call):
                self._fill_in_place(call)
            case _:
                pass

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        """Bind the variables of an assignment."""
        if isinstance(value, ast.Call) and last_name(value.func) in GENERATORS | {"manual_seed"}:
            self._generators[dotted_name(target)] = ast.unparse(value) if value.args or value.keywords else ""
            self._drawn_from.pop(dotted_name(target), None)
        if isinstance(target, ast.Tuple | ast.List):
            several = self._several(value, len(target.elts))
            for part, rows in zip(target.elts, several, strict=True):
                self._bind(part, rows)
        elif isinstance(target, ast.Subscript):
            self._change(target, value)
        else:
            self._bind(target, self.rows(value))

    def _change(self, target: ast.Subscript, value: ast.expr) -> None:
        """Read an assignment to some rows of an array; with shuffled rows in it, the order becomes unknown."""
        name, own = dotted_name(target.value), self.rows(target.value)
        if name and any(each.order != () for each in (own, self.rows(target.slice), self.rows(value))):
            self.variables[name] = Rows(own.roots or frozenset((name,)), None)

    def _several(self, value: ast.expr, count: int) -> list[Rows]:
        """Return the rows of each variable that a value is unpacked into."""
        if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == count:
            return [self.rows(each) for each in value.elts]
        if isinstance(value, ast.Call) and last_name(value.func) in ("train_test_split", "shuffle"):
            arrays = [self.rows(each) for each in value.args]
            if not any(each.arg == "shuffle" for each in value.keywords):
                arrays = [_reordered(each, (self._draw(value),)) for each in arrays]
            parts = [each for each in arrays for _ in range(1 + (last_name(value.func) != "shuffle"))]
            if len(parts) == count:
                return parts
        rows = self.rows(value)
        if rows.order and isinstance(value, ast.Call):
            rows = Rows(rows.roots, None)  # perhaps only one of the results is in this order
        return [rows] * count

    def _bind(self, target: ast.expr, rows: Rows) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for each in target.elts:
                self._bind(each, rows)
        name = dotted_name(target)
        if name:
            is_plain = rows.roots and rows.order == ()
            self.variables[name] = Rows(frozenset((name,)), (), rows.numbers) if is_plain else rows

    def _shuffle_in_place(self, call: ast.Call, shuffled: ast.expr) -> None:
        """Read ``np.random.shuffle(x)``."""
        name = dotted_name(shuffled)
        before = self.variables.get(name, Rows(frozenset((name,))))
        drawn = (self._draw(call),)
        if name and not before.roots:  # row numbers
            self.variables[name] = Rows(frozenset((name,)), (), drawn)
        elif name:
            self.variables[name] = _reordered(before, drawn)

    def _fill_in_place(self, call: ast.Call) -> None:
        """Read ``targets.append(label)`` and ``fill(out, labels)``: a value without rows may get those of another."""
        owner = [call.func.value] if isinstance(call.func, ast.Attribute) else []
        values = [*owner, *call.args, *(each.value for each in call.keywords)]
        found = [(each, self.rows(each)) for each in values]
        if any(rows.order != () for _, rows in found):
            for each, rows in found:
                name = dotted_name(each)
                if name in self.variables and not rows.roots:
                    self.variables[name] = Rows(frozenset((name,)), None)

    def _draw(self, node: ast.Call) -> Any:
        """Return the key of the order that a call draws."""
        if id(node) not in self._keys:
            options = {each.arg: ast.unparse(each.value) for each in node.keywords}
            given = next((options[name] for name in ("random_state", "generator", "rng") if name in options), "")
            if last_name(node.func) in self.shuffling and len(node.args) > 1:
                given = ast.unparse(node.args[1])
            owner = node.func.value if isinstance(node.func, ast.Attribute) else None
            name = given or dotted_name(owner)
            key: Any = id(node)
            if isinstance(owner, ast.Call) and last_name(owner.func) in GENERATORS and owner.args:
                key = "generator", ast.unparse(owner), 0
            elif self._generators.get(name):
                key = "generator", self._generators[name], self._drawn_from.get(name, 0)
                self._drawn_from[name] = self._drawn_from.get(name, 0) + 1
            elif given not in ("", "None"):
                key = "random_state", given
            elif self._seed is not None and name not in self._generators:
                key = "seed", *self._seed
                self._seed = self._seed[0], self._seed[1] + 1
            self._keys[id(node)] = key
            self.draws.setdefault(key, node)
        return self._keys[id(node)]

    # Expressions --------------------------------------------------------------------------------------------------

    def rows(self, node: ast.AST | None, depth: int = 0) -> Rows:
        """Return where the rows of an expression come from."""
        if isinstance(node, ast.NamedExpr):
            self._bind(node.target, self.rows(node.value, depth + 1))
            node = node.target
        match node:
            case ast.Lambda() | ast.Constant() | ast.JoinedStr() | None:
                return _NO_ROWS
            case ast.Name() | ast.Attribute():
                return self._variable(node, depth)
            case ast.Subscript(value=value, slice=index):
                first = index.elts[0] if isinstance(index, ast.Tuple) and index.elts else index
                return self._subscript(self.rows(value, depth + 1), first, depth)
            case ast.Call():
                return self._call(node, depth)
            case ast.ListComp() | ast.GeneratorExp():
                for each in node.generators:
                    self._bind(each.target, self.rows(each.iter))  # its items are in the order of what it iterates over
                return self.rows(node.elt, depth + 1)
            case _:
                return _mixed(
                    [self.rows(each, depth + 1) for each in ast.iter_child_nodes(node)] if depth < _MAX_DEPTH else []
                )

    def _variable(self, node: ast.Name | ast.Attribute, depth: int) -> Rows:
        name = dotted_name(node)
        if name in self.variables:
            return self.variables[name]
        if isinstance(node, ast.Name):
            return Rows(frozenset((node.id,)))
        inner = self.rows(node.value, depth + 1)
        if node.attr in _FILLED:
            return _NO_ROWS
        return inner if inner.order != () or inner.numbers != () or not name else Rows(frozenset((name,)))

    def _subscript(self, own: Rows, index: ast.expr, depth: int) -> Rows:
        """Return the rows of ``x[index]``: those of ``x``, in the order of the index if that is random."""
        chosen = _NO_ROWS if isinstance(index, ast.Slice | ast.Constant) else self.rows(index, depth + 1)
        taken = _index_rows(own, chosen)
        self._indices |= chosen.roots if chosen.numbers and not chosen.order else set()
        return Rows(taken.roots, taken.order, (*own.numbers, ast.unparse(index)) if own.numbers else own.numbers)

    def _call(self, node: ast.Call, depth: int) -> Rows:
        """Return the rows of the result of a call."""
        name = last_name(node.func)
        arguments = [self.rows(each, depth + 1) for each in node.args]
        method = node.func if isinstance(node.func, ast.Attribute) else None
        owner = self.rows(method.value, depth + 1) if method is not None else _NO_ROWS
        is_reduced = name in _FILLED or (name in _REDUCTIONS and _is_reduction(node, owner))
        if is_reduced or (method is not None and self._has_no_rows(method.value)):
            return _NO_ROWS
        shuffled = self._shuffled(node, name, arguments, owner)
        if shuffled is not None:
            return shuffled
        if name in ("index_select", "take") and arguments:
            is_method = method is not None and dotted_name(method.value) not in ("torch", "np", "numpy")
            parts = [owner, *arguments] if is_method else arguments
            return _index_rows(parts[0], parts[-1] if name == "index_select" else parts[min(1, len(parts) - 1)])
        if name in _OF_FITTED and arguments:
            parts = arguments  # whatever the rows were that the owner was fitted on
        elif owner.order != () or owner.numbers != ():
            parts = [owner, *(each for each in arguments if each.order != ())]
        else:
            parts = arguments if any(each.roots for each in arguments) else [owner]
            if method is not None and owner.roots and not node.args and name not in _CONVERSIONS:
                return _NO_ROWS  # agent.parameters()
        found = _mixed(parts)
        if not found.roots and (method is None or isinstance(method.value, ast.Name | ast.Call)):
            found = Rows(frozenset((f"{name}:{node.lineno}:{node.col_offset}",)))  # new data
        if found.order and _joins_blocks(node, name):
            found = Rows(found.roots, None)  # block after block, each in this order
        numbers = [each.numbers for each in parts if each.numbers != ()]
        if numbers:
            kept = numbers[0] if name in _KEEPS_NUMBERS else None  # others may sort them, or add those of neighbours
            return Rows(found.roots, found.order, kept)
        return found

    def _has_no_rows(self, node: ast.expr) -> bool:
        """Return True for a variable whose value has no rows, such as a mean; False for an imported module."""
        known = self.variables.get(node.id) if isinstance(node, ast.Name) else None
        return known is not None and known is not _MODULE and not known.roots and known.numbers == ()

    def _shuffled(self, node: ast.Call, name: str, arguments: list[Rows], owner: Rows) -> Rows | None:
        """Return the rows of a result in a new order; None for other calls."""
        if name == "sample" and any(each.arg == "frac" for each in node.keywords):  # a table of pandas
            return _reordered(owner, (self._draw(node),))
        shuffles = name in self.shuffling and all(isinstance(each, ast.Name | ast.Attribute) for each in node.args[1:])
        if arguments and (shuffles or name == "shuffle"):
            return _reordered(arguments[0], (self._draw(node),))
        is_of_object = name == "sample" and isinstance(getattr(node.func, "value", None), ast.Call)  # of a distribution
        if name not in _DRAWING or is_of_object or _draws_one(node, name) or self._draws_codes(node, name):
            return None
        drawn = (self._draw(node),)
        if name == "permutation" and arguments and arguments[0].roots and _is_array(node.args[0]):
            return _reordered(arguments[0], drawn)
        return Rows(frozenset((f"{name}:{node.lineno}:{node.col_offset}",)), (), drawn)

    def _draws_codes(self, node: ast.Call, name: str) -> bool:
        """Return True for more numbers than there are values, ``rng.integers(5, size=600)``: a categorical column."""
        if name not in ("randint", "integers"):
            return False
        options = {each.arg: each.value for each in node.keywords}
        has_size = len(node.args) > 2 or (len(node.args) == 2 and isinstance(node.args[1], ast.Tuple | ast.List))
        size = options.get("size") or (node.args[-1] if has_size else None)
        bounds = node.args[:-1] if has_size else node.args
        high = options.get("high") or (bounds[-1] if bounds else None)
        count = size.elts[0] if isinstance(size, ast.Tuple | ast.List) and size.elts else size
        values, drawn = self._number(high), self._number(count)
        return values is not None and drawn is not None and values < drawn

    def _number(self, node: ast.expr | None) -> int | None:
        """Return the value of a number, or of a variable that is set to one; None if it is not known."""
        found = assigned_value(self.source, node, node.id) if isinstance(node, ast.Name) else node
        number = getattr(found, "value", None)
        return number if isinstance(number, int) else None

    def _items(self, node: ast.expr) -> Rows:
        """Return the rows of the items of an iterable."""
        rows = self.rows(node)
        return Rows(rows.roots, rows.order, (*rows.numbers, "items")) if rows.numbers else rows

    # Pairs --------------------------------------------------------------------------------------------------------

    def _pairs(self, node: ast.AST) -> Iterator[Hit]:
        """Yield the pairs of values in a statement whose rows are in different orders."""
        for each in nodes_in(node, ast.comprehension):
            self._bind(each.target, self.rows(each.iter))
        of_callers = {  # calls within functions whose arguments are unknown
            id(call) for each in nodes_in(node, ast.Lambda) if each.args.args for call in nodes_in(each.body, ast.Call)
        }
        for each in nodes_in(node, ast.Call, ast.Return, ast.Yield):
            if id(each) in of_callers:
                continue
            arguments: list[ast.expr] = []
            if isinstance(each, ast.Call):
                parent = self.source.parents.get(id(each)) if _PAIRING.search(last_name(each.func)) else None
                if parent is not None and (
                    not isinstance(parent, ast.Attribute) or parent.attr not in ("item", "detach")
                ):
                    arguments = [*each.args, *(word.value for word in each.keywords if word.arg not in _SETTINGS)]
            elif isinstance(each.value, ast.Tuple) and not self.of_one_sample:
                arguments = each.value.elts
            if arguments:
                yield from self._compare(each, arguments)

    def _compare(self, node: Any, arguments: list[ast.expr]) -> Iterator[Hit]:
        name = last_name(node.func) if isinstance(node, ast.Call) else ""
        is_loss = name != "" and is_loss_call(self.source, node)
        any_pair = is_loss or name == "TensorDataset"  # other functions get more than inputs and labels
        is_dataset = name.endswith("Dataset") and not any_pair
        sides = [(each, self.rows(each)) for each in arguments[: 2 if is_loss or is_dataset else None]]
        if not name and self.of_class:  # others may be the parts of one sample
            sides = [each for each in sides if any(root.startswith("self.") for root in each[1].roots)]
        indices = [_index(each) for each, _ in sides]
        matched = {each for each in indices if each and indices.count(each) > 1}
        for i, (first, own) in enumerate(sides):
            for second, other in sides[i + 1 :]:
                if _index(first) != _index(second) and {_index(first), _index(second)} & matched:
                    continue  # x[tr], y[tr], x[te]: each row belongs to another array
                is_pair = any_pair or (is_dataset and (is_label(_array(first)) or is_label(_array(second))))
                is_pair = is_pair or are_inputs_and_labels(first, second) or are_inputs_and_labels(second, first)
                is_pair = is_pair and not (is_loss and (_is_setting(first, own) or _is_setting(second, other)))
                is_pair = is_pair and not any(
                    _is_model(self.source, each) or _is_uniform(self.source, each) for each in (first, second)
                )
                if is_pair and _differ(own, other, self._indices) and not _is_deliberate((first, own), (second, other)):
                    yield self._hit(node, (first, own), (second, other))
                    return

    def _hit(self, node: Any, *sides: tuple[ast.expr, Rows]) -> Hit:
        def line(side: tuple[ast.expr, Rows]) -> int:
            return getattr(self._drawn(side[1]), "lineno", 0)

        (rest, other), (shuffled, own) = sorted(sides, key=line)
        return Hit(
            message=f"The rows of `{ast.unparse(_array(shuffled))}` are shuffled here, and those of "
            f"`{ast.unparse(_array(rest))}` {'in another order' if other.order else 'are not'}: samples get the labels "
            "of others.",
            node=self._drawn(own),
            related=((node, "used together here"),),
        )

    def _drawn(self, rows: Rows) -> ast.AST | None:
        """Return the call that draws the latest random order of some rows; None if there is none."""
        return next((self.draws[each] for each in reversed(rows.order or ()) if each in self.draws), None)


def are_inputs_and_labels(first: ast.expr, second: ast.expr) -> bool:
    """Return True if the names of two arrays say that one contains inputs and the other one their labels."""
    is_input = bool(name_words(last_name(_array(first))) & _INPUTS) and not is_label(_array(first))
    return is_input and is_label(_array(second))


def _is_setting(node: ast.expr, rows: Rows) -> bool:
    """Return True for an attribute that may be a setting instead of an array: ``state.params``."""
    array = _array(node)
    is_attribute = isinstance(array, ast.Attribute) and not dotted_name(array).startswith("self.")
    return is_attribute and rows.order == () and not is_label(array)


def _is_uniform(source: SourceFile, node: ast.expr) -> bool:
    """Return True for rows that are all the same: ``np.zeros((n, 1))`` for labels that nothing reads."""
    made = [last_name(each.func) for each in origins(source, _array(node)) if isinstance(each, ast.Call)]
    return any(name in ("zeros", "ones", "full", "zeros_like", "ones_like", "empty") for name in made)


def _is_model(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a variable with methods of a module: ``evaluate(model, x)`` does not pair arrays."""
    name = dotted_name(_array(node))
    text = source.text.source
    return bool(name) and any(f"{name}.{each}(" in text for each in ("parameters", "train", "eval", "state_dict"))


def _array(node: ast.expr) -> ast.expr:
    """Return the variable of ``torch.tensor(x[i:j]).float()``."""
    while True:
        match node:
            case ast.Subscript(value=value):
                node = value
            case ast.Call(args=[ast.Name() | ast.Attribute() | ast.Subscript() | ast.Call() as value, *_]):
                node = value
            case ast.Call(func=ast.Attribute(value=value)):
                node = value
            case _:
                return node


def _index(node: ast.expr) -> str:
    """Return the row numbers of ``torch.tensor(x[rows])`` as text; "" for a whole array."""
    while isinstance(node, ast.Call) and (node.args or isinstance(node.func, ast.Attribute)):
        node = node.args[0] if node.args else node.func.value  # type: ignore[attr-defined]
    return ast.unparse(node.slice) if isinstance(node, ast.Subscript) else ""


def _differ(first: Rows, second: Rows, indices: set[str]) -> bool:
    """Return True if two arrays certainly have their rows in different orders, and are different data.

    Args:
        first: an array.
        second: another one.
        indices: variables with row numbers, which are not data; both arrays may be indexed by one of them.
    """
    if first.order is None or second.order is None:
        return False
    data = first.roots - indices, second.roots - indices
    orders = first.order, second.order
    if first.roots & second.roots:  # parts of one order, such as p[:80] and p[80:], are not two orders
        orders = tuple([each for each in order if not isinstance(each, str)] for order in orders)
    return all(data) and not data[0] & data[1] and orders[0] != orders[1]


def _is_deliberate(*sides: tuple[ast.expr, Rows]) -> bool:
    """Return True if only the labels are shuffled and their name says so, or if the pair contains negative samples."""
    names = [ast.unparse(_array(each)) for each, _ in sides]
    if any(name_words(each) & _NEGATIVES for each in names):
        return True
    alone = not all(rows.order for _, rows in sides)
    return alone and any(
        rows.order and _DELIBERATE.search(name) and is_label(_array(node))
        for name, (node, rows) in zip(names, sides, strict=True)
    )


def _draws_one(node: ast.Call, name: str) -> bool:
    """Return True for a draw of a single number or item, such as an action: ``random.choice(actions)``."""
    library = dotted_name(getattr(node.func, "value", None)).rpartition(".")[2]
    is_single = name == "choice" or (name in ("randint", "integers") and library in ("random", "rng"))
    return is_single and not node.keywords and len(node.args) <= 1 + (name != "choice")


def _is_reduction(call: ast.Call, owner: Rows) -> bool:
    """Return True for a statistic over all rows: ``x.mean()``, ``x.mean(0)``, not ``x.mean(1)``."""
    is_function = not owner.roots or dotted_name(getattr(call.func, "value", None)) in ("torch", "np", "numpy")
    axes = [*call.args[is_function:], *(each.value for each in call.keywords if each.arg in ("dim", "axis"))]
    return not axes or getattr(axes[0], "value", None) == 0


def _joins_blocks(call: ast.Call, name: str) -> bool:
    """Return True for ``torch.cat([x, y])``, whose rows are those of ``x`` followed by those of ``y``."""
    if name not in ("cat", "concat", "concatenate", "vstack") or not call.args:
        return False
    axes = [*call.args[1:], *(each.value for each in call.keywords if each.arg in ("dim", "axis"))]
    is_several = isinstance(call.args[0], ast.List | ast.Tuple) and len(call.args[0].elts) > 1
    return is_several and all(getattr(each, "value", None) == 0 for each in axes)


def _is_array(node: ast.expr) -> bool:
    """Return True for a variable whose name is not that of a number of rows."""
    return isinstance(node, ast.Name | ast.Attribute) and not name_words(ast.unparse(node)) & _SIZES


def _index_rows(rows: Rows, index: Rows) -> Rows:
    """Return the rows that an index takes."""
    if index.order is None or index.numbers is None or rows.order is None:
        return Rows(rows.roots | index.roots, None)
    order = (*index.order, *index.numbers)
    return Rows(rows.roots | (index.roots if order else frozenset()), (*rows.order, *order))


def _reordered(rows: Rows, drawn: Order) -> Rows:
    return Rows(rows.roots, (*rows.order, *drawn), rows.numbers) if rows.order is not None and rows.roots else rows


def _mixed(parts: Sequence[Rows]) -> Rows:
    """Return the rows of a value that is computed from several."""
    found = [each for each in parts if each.roots]
    roots = frozenset(root for each in found for root in each.roots)
    orders, numbers = {each.order for each in found}, {each.numbers for each in parts} - {()}
    order = next(iter(orders)) if len(orders) == 1 else None if orders else ()
    return Rows(roots, order, next(iter(numbers)) if len(numbers) == 1 else None if numbers else ())
