"""Finds out from the names of variables, in memory and in the source text, whether samples are called held out."""

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import FrameType
from typing import Any, Final, NamedTuple

from torch import Tensor
from torch.utils.data import DataLoader

from trueloop.analysis.source_file import last_name
from trueloop.core.findings import CodePosition
from trueloop.core.source_text import nodes_in, walk
from trueloop.tracing.frame_variables import variables
from trueloop.tracing.row_digests import has_storage
from trueloop.tracing.source_calls import tree_of
from trueloop.tracing.user_location import is_user_code

MAX_FRAMES: Final = 8
MAX_ASSIGNMENTS: Final = 4  # that lead from an argument back to the variable that holds the samples
HELD_OUT_WORDS: Final = frozenset((
    "val", "valid", "validation", "va", "vl", "vali", "test", "te", "tst", "testing", "dev", "eval", "evaluation",
    "heldout", "held", "holdout", "hold", "unseen",
))  # fmt: skip
COUNT_WORDS: Final = frozenset(
    ("iter", "iters", "step", "steps", "size", "interval", "every", "epochs", "num", "count")
)
TRAINING_WORDS: Final = frozenset(("train", "training", "tr", "trn", "fit"))
_STATISTICS: Final = frozenset(
    ("mean", "std", "var", "min", "max", "amin", "amax", "median", "quantile", "norm", "len")
)
"""Functions whose result does not contain samples: held-out samples are scaled with statistics of training samples."""
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_PREFIXED: Final = re.compile(r"[xy](va|val|valid|te|test|dev)")
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def is_held_out_name(name: str) -> bool:
    """Return True if the name of a variable says that its samples are held out: "val_loader", "xTest", "xte"."""
    words = _words(name)
    if words & (TRAINING_WORDS | COUNT_WORDS):
        return False
    return bool(words & HELD_OUT_WORDS) or any(_PREFIXED.fullmatch(word) for word in words)


class SampleName(NamedTuple):
    """What the program calls some samples."""

    held_out: str
    """The variable that calls them held out; "" if none does, or another one calls them training data."""
    is_training: bool
    in_text: bool = False
    """Whether the name is in the arguments of a call, which may pass the samples together with other data."""


def sample_name(value: Tensor | DataLoader[Any]) -> SampleName:
    """Return what the running functions call a batch, the array of which it is a part, or a loader.

    Variables that hold the samples decide, or else the source text of the innermost call that mentions such a variable
    in its arguments, as in ``model(torch.tensor(x_test[rows]))``.
    """
    holders = list(_names(value))
    names = [name for name, _ in holders]
    says = [_is_training_name(name) or is_held_out_name(name) for name in names]
    is_named = any(tells and same for tells, (_, same) in zip(says, holders, strict=True))
    is_part = any(not tells and not same for tells, (_, same) in zip(says, holders, strict=True))  # of all the data
    in_text = isinstance(value, Tensor) and not is_named and (is_part or not any(says))
    if in_text:
        names = _names_in_text()
    is_training = any(map(_is_training_name, names))
    return SampleName("" if is_training else next(filter(is_held_out_name, names), ""), is_training, in_text)


def _words(name: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(name)}


def _is_training_name(name: str) -> bool:
    return bool(_words(name) & TRAINING_WORDS) and not _words(name) & COUNT_WORDS


def _user_frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    count = 0
    while frame is not None and count < MAX_FRAMES:
        if is_user_code(frame.f_code):
            count += 1
            yield frame
        frame = frame.f_back


def _names(value: Any) -> Iterator[tuple[str, bool]]:
    """Yield the variables, attributes and keys in the running user functions that hold a value, or it and more.

    Each name comes with whether it holds just the value. The parameters of a function are left out: what they are
    called says what the function is for, not what it gets.
    """
    for frame in _user_frames():
        parameters = inspect.getargs(frame.f_code).args
        for name, held in variables(frame).items():
            if name not in parameters and _is_same(held, value):
                yield name, held is value
            elif name == "self" or type(held) is dict:
                fields: dict[Any, Any] = held if type(held) is dict else getattr(held, "__dict__", {})
                items = list(fields.items())[:64]
                yield from ((str(key), each is value) for key, each in items if _is_same(each, value))


def _is_same(held: Any, value: Any) -> bool:
    """Return True if a variable holds a value, or the tensor of which the value is a part."""
    if held is value or not isinstance(value, Tensor) or not isinstance(held, Tensor):
        return held is value and isinstance(value, Tensor | DataLoader)
    if not has_storage(held) or not has_storage(value) or not value.numel():
        return False
    if held.untyped_storage().data_ptr() != value.untyped_storage().data_ptr() or held.ndim < value.ndim:
        return False
    (first, last), (begin, end) = _extent(held), _extent(value)
    return first <= begin and end <= last  # not another slice of the same array


def _extent(tensor: Tensor) -> tuple[int, int]:
    """Return the first and last position of a tensor's values in its storage."""
    first = int(tensor.storage_offset())
    steps = (max(0, size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + int(sum(steps))


def _names_in_text() -> list[str]:
    """Return the names in the arguments of the innermost running call that mentions training or held-out samples."""
    for frame in _user_frames():
        names = _argument_names(CodePosition(frame.f_code, frame.f_lasti))
        if any(_is_training_name(name) or is_held_out_name(name) for name in names):
            return names
    return []


@lru_cache(maxsize=256)
def _argument_names(call: CodePosition) -> list[str]:
    """Return the variables from which the arguments of a call are computed; parameters of the function are left out."""
    tree = tree_of(call.code.co_filename)
    line, last, begin, end = list(call.code.co_positions())[call.instruction // 2]
    if tree is None or line is None:
        return []
    enclosing = list[ast.AST]()
    found = _find_call(tree, (line, last, begin, end), enclosing)
    if found is None:
        return []
    function = next((each for each in reversed(enclosing) if isinstance(each, _FUNCTIONS)), tree)
    bindings = _bindings(function, found.lineno)
    return list(dict.fromkeys(_mentioned([*found.args, *(each.value for each in found.keywords)], bindings)))


def _find_call(node: ast.AST, position: tuple[int | None, ...], enclosing: list[ast.AST]) -> ast.Call | None:
    """Return the call at a position, and append the nodes around it to a list."""
    line, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 1 << 30)
    if not line <= (position[0] or 0) <= (last or 0):
        return None
    if isinstance(node, ast.Call) and (line, last, node.col_offset, node.end_col_offset) == position:
        return node
    enclosing.append(node)
    for child in ast.iter_child_nodes(node):
        if (found := _find_call(child, position, enclosing)) is not None:
            return found
    enclosing.pop()
    return None


def _bindings(function: ast.AST, line: int) -> dict[str, ast.expr]:
    """Return the latest value that a function assigns to each variable before a line, or iterates over with it."""
    bindings: dict[str, ast.expr] = {}
    queue: list[ast.AST] = list(ast.iter_child_nodes(function))
    while queue:
        node = queue.pop(0)
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)) or getattr(node, "lineno", line) > line:
            continue
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.For | ast.comprehension):
            pairs = [(node.target, node.iter)]
        for target, value in pairs:
            if value.lineno <= line:
                bindings |= {each.id: value for each in nodes_in(target, ast.Name)}
        queue += ast.iter_child_nodes(node)
    return bindings


def _mentioned(expressions: Iterable[ast.expr], bindings: dict[str, ast.expr], depth: int = 0) -> Iterator[str]:
    """Yield the names in expressions, and in what was assigned to these variables; not those of functions."""
    for expression in expressions:
        calls = nodes_in(expression, ast.Call)
        functions = {id(each.func) for each in calls}
        statistics = {id(part) for each in calls if last_name(each.func) in _STATISTICS for part in walk(each)}
        for each in nodes_in(expression, ast.Name, ast.Attribute, ast.Constant):
            if id(each) in statistics:
                continue
            if isinstance(each, ast.Name) and id(each) not in functions:
                if each.id in bindings and depth < MAX_ASSIGNMENTS:
                    value = bindings[each.id]
                    rest = {name: other for name, other in bindings.items() if name != each.id}
                    yield from _mentioned([value], rest, depth + 1)
                yield from (each.id,) if "env" not in _words(each.id) else ()
            elif isinstance(each, ast.Attribute) and id(each) not in functions:
                yield each.attr
            elif isinstance(each, ast.Constant) and isinstance(each.value, str):
                yield each.value
