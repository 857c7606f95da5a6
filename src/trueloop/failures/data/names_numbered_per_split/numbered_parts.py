"""Finds names that a program numbers for a training part and again for a held-out part, outside of a class."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import assigned_pairs, function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.held_out_names import HELD_OUT, TRAINING, is_other_part
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.possible_values import origins, possible_values, unpacked_call, without_cycles
from trueloop.analysis.queries.shuffled_loaders import argument_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, encloses, nodes_in, walk

ADDING: Final = frozenset(("append", "extend", "add", "update", "insert"))
ENCODERS: Final = frozenset(("LabelEncoder", "OrdinalEncoder"))
_LISTING: Final = frozenset(("sorted", "list", "tuple", "reversed"))
_DISTINCT: Final = frozenset(("fromkeys", "set", "frozenset", "unique", "Counter", "unique_everseen"))
_PRINTING: Final = frozenset(("print", "len", "info", "debug", "log", "save", "dump"))
_PART: Final = re.compile(
    r"(?<![a-z])(?:(?<=[xyXY])|(?<![A-Za-z]))(training|train|trn|tr|testing|test|tst|te|ts|validation|valid|val|va|"
    r"evaluation|eval|dev|holdout|held_out)(?![a-z])|(?<=[a-z])(?-i:Train|Test|Valid|Val|Dev|Eval)(?![a-z])",
    re.IGNORECASE,
)


_SCORES: Final = re.compile(r"score|pred|prob|logit|dist|weight", re.IGNORECASE)


class Numbering(NamedTuple):
    """A place at which names get numbers of their own."""

    kind: str
    """What numbers them: "LabelEncoder", "enumerate" or a function of the program."""
    node: Any
    names: ast.expr
    """Expression from which the names are; the arguments of a call as a tuple."""
    mapping: str
    """Variable that holds the number of each name; "" if the result of the node holds it, or the numbers."""
    gives_mapping: bool
    """Whether the result is the number of each name, and not the numbers of the records."""


def find_numbered_parts(source: SourceFile, found: list[Numbering]) -> Iterator[Hit]:
    """Yield each place that numbers the names of a held-out part, after another one for those of the training part."""
    reported: set[int] = set()
    for each in found:
        loop = _loop_over_parts(source, each)
        if loop is not None and _is_used(source, each) and id(each.node) not in reported:
            reported.add(id(each.node))
            yield Hit(
                message=f"`{ast.unparse(each.node)}` numbers the names of each part on their own: the same number "
                "stands for different names in the training and the held-out part.",
                node=each.node,
                related=((loop, "for each part"),),
            )
    calls = {id(each.node) for each in found}
    own = [each for each in found if not _gets_names(source, each, calls)]
    for first in found:
        for second in own:
            if id(second.node) not in reported and _is_pair(source, first, second) and _is_used(source, second):
                reported.add(id(second.node))
                yield Hit(
                    message=f"`{_text(first)}` and `{_text(second)}` number the names of their part on their own: "
                    "if one part lacks a name, or has them in another order, equal numbers stand for different names.",
                    node=second.node,
                    related=((first.node, "the training part"),),
                )


def _gets_names(source: SourceFile, numbering: Numbering, calls: set[int]) -> bool:
    """Return True for ``test, _ = number(test_rows, names)`` after ``train, names = number(train_rows)``."""
    used = nodes_in(numbering.node, ast.Name) if isinstance(numbering.node, ast.Call) else []
    return any(id(unpacked_call(source, each)) in calls for each in used)


def _text(numbering: Numbering) -> str:
    return ast.unparse(numbering.node) if isinstance(numbering.node, ast.expr) else ast.unparse(numbering.names)


def numberings(source: SourceFile) -> list[Numbering]:
    """Return all places that number names, and the calls of functions that do so with what they get."""
    found = [*_by_calls(source), *_by_dictionaries(source), *_by_loops(source)]
    known: dict[str, bool] = {}
    for _ in range(3):
        for name, function in definitions(source).functions.items():
            inside = [each for each in found if function_of(source, each.node) is function] if name not in known else []
            for each in inside:
                parameters = _parameters_of(function, each.names)
                gives_mapping = _gives_mapping(source, function, each)
                if parameters and gives_mapping is not None and name not in known:
                    known[name] = gives_mapping
                    found += _calls_of(source, function, each, parameters, gives_mapping)
    return found


def _by_calls(source: SourceFile) -> Iterator[Numbering]:
    """Yield ``LabelEncoder().fit_transform(names)``, ``pd.factorize(names)`` and the codes of categories."""
    for call in source.all_calls:
        name, owner = last_name(call.func), getattr(call.func, "value", None)
        if name in ("fit_transform", "fit") and owner is not None and call.args:
            made = [last_name(e.func) for e in origins(source, owner) if isinstance(e, ast.Call)]
            if set(made) & ENCODERS:
                yield Numbering(min(set(made) & ENCODERS), call, call.args[0], "", gives_mapping=False)
        elif name == "factorize" or (name == "unique" and _numbers_names(call)):
            is_method = not call.args and owner is not None
            if is_method or call.args:
                yield Numbering(name, call, owner if is_method else call.args[0], "", gives_mapping=False)  # type: ignore[arg-type]
    for each in source.nodes_of(ast.Attribute):
        match each:
            case ast.Attribute(
                attr="codes",
                value=ast.Attribute(
                    attr="cat",
                    value=ast.Call(
                        func=ast.Attribute(attr="astype", value=names), args=[ast.Constant(value="category")]
                    ),
                ),
            ):
                yield Numbering("codes", each, names, "", gives_mapping=False)
            case ast.Attribute(attr="codes", value=ast.Call(func=func, args=[names], keywords=[])) if (
                last_name(func) == "Categorical"
            ):
                yield Numbering("codes", each, names, "", gives_mapping=False)
            case _:
                pass


def _numbers_names(call: ast.Call) -> bool:
    """Return True for ``unique(names, return_inverse=True)``, but not where the ranks of scores are counted."""
    options = {each.arg for each in call.keywords}
    is_rank = "return_counts" in options or any(_SCORES.search(ast.unparse(each)) for each in call.args[:1])
    return "return_inverse" in options and not is_rank


def _by_dictionaries(source: SourceFile) -> Iterator[Numbering]:
    """Yield dictionaries of distinct names and their numbers, and lists whose ``index`` is the number."""
    for each in source.nodes_of(ast.DictComp, ast.Call):
        names = _numbered_names(source, each)
        if names is not None:
            yield Numbering("enumerate", each, names, _target(source, each), gives_mapping=True)
    indexed = {dotted_name(e.func.value) for e in source.all_calls if last_name(e.func) == "index"
               and isinstance(e.func, ast.Attribute)}  # fmt: skip
    for statement in source.nodes_of(ast.Assign) if indexed - {""} else ():
        for target, value in assigned_pairs(statement):
            names = _distinct(source, value) if dotted_name(target) in indexed - {""} else None
            if names is not None:
                yield Numbering("index", value, names, dotted_name(target), gives_mapping=True)


def _numbered_names(source: SourceFile, node: ast.AST) -> ast.expr | None:
    """Return the names in ``{name: i for i, name in enumerate(set(names))}`` or ``dict(zip(set(names), range(n)))``."""
    match node:
        case ast.DictComp(
            key=ast.Name(id=key),
            generators=[ast.comprehension(target=ast.Tuple(elts=[_, own]), iter=ast.Call(args=args) as it)],
        ) if args and last_name(it.func) == "enumerate" and key in [e.id for e in nodes_in(own, ast.Name)]:
            return _distinct(source, args[0])
        case ast.Call(func=ast.Name(id="dict"), args=[ast.Call(func=ast.Name(id="zip"), args=[listed, numbers])]):
            is_counted = isinstance(numbers, ast.Call) and last_name(numbers.func) in ("range", "count", "arange")
            return _distinct(source, listed) if is_counted else None
        case _:
            return None


@without_cycles(None)
def _distinct(source: SourceFile, node: ast.expr) -> ast.expr | None:
    """Return the names of which a list holds each one once, as ``names`` for ``sorted(set(names))``; else None."""
    for each in origins(source, node, 2):
        inner = each
        while isinstance(inner, ast.Call) and last_name(inner.func) in _LISTING and inner.args:
            inner = inner.args[0]
        if isinstance(inner, ast.SetComp):
            return inner.generators[0].iter
        if isinstance(inner, ast.Call) and last_name(inner.func) == "most_common":
            return inner.func.value if isinstance(inner.func, ast.Attribute) else None
        if isinstance(inner, ast.Call) and last_name(inner.func) == "unique" and not inner.args:
            return inner.func.value if isinstance(inner.func, ast.Attribute) else None  # table.user.unique()
        if isinstance(inner, ast.Call) and last_name(inner.func) in _DISTINCT and inner.args:
            return inner.args[0]
        if isinstance(inner, ast.Name) and inner is not each:
            return _distinct(source, inner)
    return None


def _target(source: SourceFile, node: ast.AST) -> str:
    """Return the variable that gets the value of a node; "" if it is used otherwise."""
    parent = source.parents.get(id(node))
    if isinstance(parent, ast.AnnAssign):
        return dotted_name(parent.target)
    for target, value in assigned_pairs(parent) if isinstance(parent, ast.Assign) else ():
        if value is node:
            return dotted_name(target)
    return ""


def _by_loops(source: SourceFile) -> Iterator[Numbering]:
    """Yield the loops that give each new name the number ``len(numbers)``, from an empty dictionary."""
    for loop in source.nodes_of(ast.For):
        inner = [each for each in nodes_in(loop, ast.For) if each is not loop]
        for mapping, node in added(loop):
            if any(encloses(each, node) for each in inner):
                continue
            outer: ast.AST | None = source.parents.get(id(loop))
            names = loop
            while isinstance(outer, ast.For) and not _starts_in(outer, mapping):
                names, outer = outer, source.parents.get(id(outer))
            scope = function_of(source, loop)
            if mapping.startswith("self."):
                scope = source.parents.get(id(scope))
            if _starts_in(scope, mapping):
                yield Numbering("setdefault", node, names.iter, mapping, gives_mapping=True)
    for each in source.nodes_of(ast.ListComp):
        looked_up = [dotted_name(part.value) for part in nodes_in(each.elt, ast.Subscript)]
        for mapping in looked_up:
            values = [value for s in nodes_in(function_of(source, each), ast.Assign) for target, value in
                      assigned_pairs(s) if dotted_name(target) == mapping]  # fmt: skip
            if values and all(_counts_itself(value) for value in values):
                yield Numbering("defaultdict", each, each.generators[0].iter, "", gives_mapping=False)


def added(loop: ast.For) -> Iterator[tuple[str, ast.AST]]:
    """Yield the dictionaries to which a loop adds names by ``setdefault(name, len(d))`` or ``d[name] = len(d)``."""
    for each in nodes_in(loop, ast.Call, ast.Assign):
        match each:
            case ast.Call(func=ast.Attribute(attr="setdefault", value=owner), args=[_, number]):
                pass
            case ast.Assign(targets=[ast.Subscript(value=owner)], value=number):
                pass
            case _:
                continue
        name = dotted_name(owner)
        if name and ast.unparse(number).startswith(f"len({name})"):
            yield name, each


def _starts_in(scope: Any, mapping: str) -> bool:
    """Return True if a loop, function or class sets a dictionary to an empty one, or one of special names."""
    for each in nodes_in(scope, ast.Assign, ast.AnnAssign):
        pairs = assigned_pairs(each) if isinstance(each, ast.Assign) else [(each.target, each.value)]
        for target, value in pairs:
            if dotted_name(target) == mapping:
                is_empty = isinstance(value, ast.Call) and not value.args and last_name(value.func) in (
                    "dict", "OrderedDict")  # fmt: skip
                return is_empty or isinstance(value, ast.Dict)
    return False


def _counts_itself(value: ast.expr) -> bool:
    """Return True for ``defaultdict(lambda: len(numbers))`` and ``defaultdict(count().__next__)``."""
    is_default = isinstance(value, ast.Call) and last_name(value.func) == "defaultdict"
    return is_default and bool(re.search(r"lambda: len\(|count\(\d*\)\.__next__", ast.unparse(value)))


def _parameters_of(function: ast.FunctionDef, names: ast.expr) -> list[str]:
    """Return the parameters of a function from which names follow."""
    parameters = [each.arg for each in nodes_in(function.args, ast.arg) if each.arg not in ("self", "cls")]
    read = {last_name(each) for each in nodes_in(names, ast.Name)}
    return [name for name in parameters if read & following(function, {name})]


def following(function: ast.FunctionDef, names: set[str]) -> set[str]:
    """Return the variables and attributes of a function whose values follow from some parameters."""
    found = set(names)
    for _ in range(2):
        for each in walk(function):
            match each:
                case ast.Assign(targets=targets, value=value) if _reads(value, found):
                    found |= {path_of(part) for target in targets for part in walk(target)}
                case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value) if _reads(
                    value, found
                ):
                    found |= {path_of(part) for part in walk(target)}
                case ast.Call(func=ast.Attribute(value=owner, attr=attr), args=args) if attr in ADDING:
                    found |= {path_of(owner)} if any(_reads(value, found) for value in args) else set()
                case ast.With(items=items):
                    opened = [e for e in items if e.optional_vars is not None and _reads(e.context_expr, found)]
                    found |= {last_name(e.optional_vars) for e in opened}
                case _:
                    pass
            found -= {"", "self"}
    return found


def path_of(node: ast.AST) -> str:
    """Return a variable or an attribute of ``self`` as text; "" for other nodes."""
    is_path = isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and last_name(node.value) == "self")
    return ast.unparse(node) if is_path else ""


def _reads(node: ast.AST, names: set[str]) -> bool:
    return any(path_of(each) in names for each in nodes_in(node, ast.Name, ast.Attribute))


def _gives_mapping(source: SourceFile, function: ast.FunctionDef, each: Numbering) -> bool | None:
    """Return whether a function returns the numbering itself, rather than the numbers of records; None for neither."""
    returned = [r.value for r in nodes_in(function, ast.Return) if r.value is not None]
    if not each.gives_mapping:
        return False
    if each.mapping.startswith("self."):  # IdMap().fit(ids)
        return None if function.name.startswith("__") else False
    if returned and all(_is_mapping(value, each) for value in returned):
        return True
    if _is_used(source, each):
        return False
    is_part = all(any(_is_mapping(part, each) for part in getattr(value, "elts", ())) for value in returned)
    return True if returned and is_part else None


def _is_mapping(value: ast.expr, numbering: Numbering) -> bool:
    return value is numbering.node or (dotted_name(value) or "-") == numbering.mapping


def _calls_of(
    source: SourceFile, function: ast.FunctionDef, numbering: Numbering, parameters: list[str], gives_mapping: bool
) -> Iterator[Numbering]:
    """Yield the calls of a function as places that number what they pass."""
    conditions = [e for e in nodes_in(function, ast.If, ast.IfExp) if encloses(e, numbering.node)]
    optional = {e.id for each in conditions for e in nodes_in(each.test, ast.Name)}
    around = source.parents.get(id(function))
    owner = around.name if isinstance(around, ast.ClassDef) and numbering.mapping.startswith("self.") else ""
    for call in definitions(source).calls.get(function.name, ()):
        made = origins(source, call.func.value) if isinstance(call.func, ast.Attribute) else ()
        if owner and not any(isinstance(e, ast.Call) and last_name(e.func) == owner for e in made):
            continue
        given = [e for name in parameters if (e := argument_of(source, function, call, name)) is not None]
        others = [argument_of(source, function, call, name) for name in optional]
        if given and all(e is None or (isinstance(e, ast.Constant) and e.value is None) for e in others):
            names = ast.copy_location(ast.Tuple(given, ast.Load()), call)
            yield Numbering(function.name, call, names, _target(source, call), gives_mapping)


def _is_used(source: SourceFile, numbering: Numbering) -> bool:
    """Return True if numbers are looked up, other than to print them or as the row of an array."""
    if not numbering.gives_mapping:
        return True
    if not numbering.mapping:
        return _is_looked_up_in_call(source, numbering.node)
    scope = function_of(source, numbering.node)
    for each in nodes_in(scope, ast.Name, ast.Attribute):
        is_read = dotted_name(each) == numbering.mapping and isinstance(each.ctx, ast.Load)
        if is_read and (_is_looked_up(source, each) or _is_looked_up_in_call(source, each)):
            return True
    return False


def _is_looked_up(source: SourceFile, node: ast.expr) -> bool:
    """Return True for the dictionary in ``numbers[name]``, ``numbers.get(name)`` or ``column.map(numbers)``."""
    parent: Any = source.parents.get(id(node))
    if isinstance(parent, ast.Attribute) and parent.attr in ("get", "index", "__getitem__"):
        parent = source.parents.get(id(parent))
        if not isinstance(parent, ast.Call):
            return False
    elif isinstance(parent, ast.Call) and node in parent.args:
        return last_name(parent.func) in ("map", "replace") and isinstance(parent.func, ast.Attribute)
    elif not isinstance(parent, ast.Subscript) or parent.value is not node or not isinstance(parent.ctx, ast.Load):
        return False
    child: ast.AST = parent
    outer: Any = source.parents.get(id(child))
    while outer is not None and not isinstance(outer, ast.stmt):
        if isinstance(outer, ast.Call) and last_name(outer.func) in _PRINTING:
            return False
        if isinstance(outer, ast.Subscript) and outer.slice is child:
            return False
        child, outer = outer, source.parents.get(id(outer))
    return True


def _is_looked_up_in_call(source: SourceFile, node: ast.AST) -> bool:
    """Return True if a dictionary is passed to a function of the program that looks its names up."""
    call: Any = source.parents.get(id(node))
    if isinstance(call, ast.Starred):  # encode(rows, *numbers(rows))
        return _is_looked_up_in_function(source, source.parents.get(id(call)), call)
    call = source.parents.get(id(call)) if isinstance(call, ast.keyword) else call
    if isinstance(call, ast.Attribute | ast.Subscript) and isinstance(node, ast.Call):
        return _is_looked_up(source, node)  # build(names)[name]
    if not isinstance(call, ast.Call) or call.func is node:
        return False
    if last_name(call.func) in ("map", "replace") and isinstance(call.func, ast.Attribute):
        return True
    function = definitions(source).functions.get(last_name(call.func))
    for parameter in nodes_in(function.args, ast.arg) if function is not None else ():
        if function is not None and argument_of(source, function, call, parameter.arg) is node:
            uses = [e for e in nodes_in(function, ast.Name) if e.id == parameter.arg]
            return any(_is_looked_up(source, each) for each in uses)
    return False


def _is_looked_up_in_function(source: SourceFile, call: Any, unpacked: ast.Starred) -> bool:
    """Return True if a function looks names up in the parameters that get the items of a tuple."""
    function = definitions(source).functions.get(last_name(call.func)) if isinstance(call, ast.Call) else None
    if function is None:
        return False
    names = {each.arg for each in function.args.args[call.args.index(unpacked) :]}
    return any(_is_looked_up(source, each) for each in nodes_in(function, ast.Name) if each.id in names)


def _loop_over_parts(source: SourceFile, numbering: Numbering) -> ast.expr | None:
    """Return the parts through which the loop around a place goes, as ``(train, test)``; None for other places."""
    parent: Any = source.parents.get(id(numbering.node))
    child: Any = numbering.node
    while parent is not None and not isinstance(parent, ast.FunctionDef | ast.ClassDef):
        loops = [parent] if isinstance(parent, ast.For) else getattr(parent, "generators", [])
        for loop in loops:
            targets = {e.id for e in nodes_in(loop.target, ast.Name)}
            is_inside = child is not loop.iter and _reads(numbering.names, targets)
            is_own = not numbering.mapping or numbering.kind != "setdefault" or _starts_in(parent, numbering.mapping)
            if is_inside and is_own and _are_parts(source, loop.iter):
                return loop.iter
        child, parent = parent, source.parents.get(id(parent))
    return None


def _are_parts(source: SourceFile, iterable: ast.expr) -> bool:
    """Return True for ``(train, test)``, ``("train", "test")`` or ``{"train": a, "test": b}.items()``."""
    if isinstance(iterable, ast.Call) and last_name(iterable.func) in ("items", "values", "enumerate", "zip"):
        first = iterable.args[0] if iterable.args else getattr(iterable.func, "value", None)
        return isinstance(first, ast.expr) and _are_parts(source, first)
    if isinstance(iterable, ast.Name):
        return any(_are_parts(source, e) for e in possible_values(source, iterable) if not isinstance(e, ast.Name))
    items = [*(getattr(iterable, "elts", None) or []), *(getattr(iterable, "keys", None) or [])]
    parts = [_part_of(ast.unparse(each)) for each in items if each is not None]
    return "training" in parts and "held-out" in parts


def _part_of(text: str) -> str:
    """Return "training" or "held-out" for a text with the words of one of them; else ""."""
    words = name_words(text)
    words |= {word[1:] for word in words if word[:1] in ("x", "y")}
    is_training, is_held_out = bool(words & TRAINING), bool(words & HELD_OUT)
    return "" if is_training == is_held_out else "training" if is_training else "held-out"


def _is_pair(source: SourceFile, first: Numbering, second: Numbering) -> bool:
    """Return True if one place numbers the names of the training part, and the other those of the held-out part."""
    if first.kind != second.kind or first.node is second.node or ast.dump(first.names) == ast.dump(second.names):
        return False
    if first.mapping and first.mapping == second.mapping and first.kind == "setdefault":
        return False  # the numbers go on
    if isinstance(first.node, ast.Call) and _owner(first) == _owner(second) not in ("", "pd", "np", "torch", "self"):
        return False  # an encoder that is fitted again is another failure, DAT013
    results = [_result(source, each) for each in (first, second)]
    if all(isinstance(each, ast.Name) for each in results) and is_other_part(dotted_name(results[0]), results[1]):  # type: ignore[arg-type]
        return True
    if isinstance(first.names, ast.Tuple) and isinstance(second.names, ast.Tuple):
        pairs = [e for e in zip(first.names.elts, second.names.elts, strict=False) if ast.dump(e[0]) != ast.dump(e[1])]
        return bool(pairs) and all(_is_other_part(source, *each) for each in pairs)
    return _is_other_part(source, first.names, second.names)


def _owner(numbering: Numbering) -> str:
    if not isinstance(numbering.node, ast.Call):
        return ""
    return dotted_name(getattr(numbering.node.func, "value", None))


def _result(source: SourceFile, numbering: Numbering) -> ast.expr | None:
    """Return the variable that gets the numbers of the records."""
    statement = source.statement_of(numbering.node)
    for target, value in assigned_pairs(statement) if isinstance(statement, ast.Assign) else ():
        if encloses(value, numbering.node):
            return target.elts[-1 if numbering.kind == "unique" else 0] if isinstance(target, ast.Tuple) else target
    return None


def _is_other_part(source: SourceFile, first: ast.expr, second: ast.expr) -> bool:
    """Return True for ``train[key]`` and ``test[key]``, "train.csv" and "test.csv", or ``x[:n]`` and ``x[n:]``."""
    if is_other_part(dotted_name(first), second):
        return True
    texts = [ast.unparse(each) for each in (first, second)]
    is_same = len({re.sub("_", "", _PART.sub("", text)).lower() for text in texts}) == 1
    if is_same and [_part_of(text) for text in texts] == ["training", "held-out"]:
        return True
    start, rest = _expanded(source, first), _expanded(source, second)
    cuts = re.findall(r"\[:([^\[\]:]+)\]", start)
    masks = re.findall(r"\[(\w+)\]", start)
    return any(start.replace(f"[:{cut}]", f"[{cut}:]") == rest for cut in cuts) or any(
        start.replace(f"[{mask}]", f"[~{mask}]") == rest for mask in masks
    )


def _expanded(source: SourceFile, node: ast.expr) -> str:
    """Return the text of an expression in which variables for a part of data are replaced by how they were split."""
    text = ast.unparse(node)
    for each in nodes_in(node, ast.Name):
        values = [value for value in possible_values(source, each) if isinstance(value, ast.Subscript)]
        call = unpacked_call(source, each)
        if values:
            text = re.sub(rf"\b{each.id}\b", lambda _, value=values[0]: ast.unparse(value), text)
        elif call is not None and "split" in last_name(call.func):
            statement: Any = source.parents.get(id(call))
            names = [ast.unparse(part) for part in getattr(statement.targets[0], "elts", ())]
            number = names.index(each.id) if each.id in names else 0
            split = f"split_{call.lineno}_{number // 2}[{'_:' if number % 2 else ':_'}]"
            text = re.sub(rf"\b{each.id}\b", lambda _, split=split: split, text)
    return text
