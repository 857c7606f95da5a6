"""Finds flags for the end of an episode that are stored with one meaning and read with the other one."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.possible_values import origins, possible_values, without_cycles
from trueloop.analysis.queries.td_targets import discounted_values, without_views
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import encloses, nodes_in

FLAG: Final = re.compile(
    r"^((b|mb|batch|is|not|non|sampled|episode|ep|all|self)_?)*"
    r"(dones?|terminals?|terminated|terminations?|terms?|ended|finals?)"
    r"(_?(b|t|mb|batch|mask|masks|tensor|flags?|buf|buffer|mem|memory|history|list|np))*$",
    re.IGNORECASE,
)
REWARDS: Final = frozenset(("r", "rew", "rews", "reward", "rewards", "rs", "rwd"))
STORING: Final = re.compile(
    r"append|push|^add|store|remember|^put|insert|record|print|memor|observe|save|log", re.IGNORECASE
)
MASK: Final = re.compile(r"mask|msk|alive|contin|^(not|non|nd)(_|$|done|term)", re.IGNORECASE)
_GOES_ON: Final = re.compile(
    r"^((b|mb|batch)_?)?((not|non)_?(dones?|term\w*|finals?)|alives?|continues?|continuation)$"
)
_OTHER_MASK: Final = re.compile(r"action|act_|legal|valid|pad|attn|attention|final|seq|avail|prob")
_STATE: Final = 3  # of state, action, reward, next state and flag at least so many are stored together
_READING: Final = re.compile(r"sample|get|draw|collate|batch|unpack|iter|next", re.IGNORECASE)
_CONVERSIONS: Final = frozenset((
    "int", "float", "bool", "array", "asarray", "tensor", "as_tensor", "FloatTensor", "float32", "Tensor", "stack",
    "from_numpy", "BoolTensor", "cat", "vstack", "zip", "concatenate", "uint8", "bool_",
))  # fmt: skip


def words_of(node: ast.AST) -> set[str]:
    """Return the words in the names that a node contains."""
    return {
        word
        for each in nodes_in(node, ast.Name, ast.Attribute)
        for word in name_words(each.id if isinstance(each, ast.Name) else each.attr)
    }


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each factor of a target that is 1 only where the episode has ended, because of what is stored as flag."""
    factors = [(each, found) for _, each in discounted_values(source) if (found := _negations(source, each))]
    stored = [(each, ended) for each in _stored(source) if (ended := _is_end(source, each)) is not None]
    meanings = {ended for _, ended in stored}
    if not factors or len(meanings) != 1 or {is_odd for _, (_, is_odd, _) in factors} != {False in meanings}:
        return
    known = [value for each, _ in stored for value in origins(source, each)]
    if _is_negated_elsewhere(source, known + [each for _, (_, _, passed) in factors for each in passed]):
        return
    names = [_name(flag) for _, (flag, _, _) in factors]
    if True in meanings and any(FLAG.match(each) or not MASK.search(each) for each in names):
        return  # a target that is multiplied by the flag itself is reported as such
    for factor, (flag, _, _) in factors:
        yield Hit(
            message=f"`{ast.unparse(factor)}` is 1 only where the episode has ended, and the target adds the value of "
            f"the next state only there: what is stored as `{ast.unparse(flag)}` is `{ast.unparse(stored[0][0])}`.",
            node=factor,
            related=((stored[0][0], "stored here"),),
        )


def _complement(node: ast.expr) -> ast.expr | None:
    """Return the flag in ``1 - done``, ``~done``, ``not done`` and ``0.0 if done else 1.0``; None for others."""
    match node:
        case (
            ast.UnaryOp(op=ast.Not() | ast.Invert(), operand=inner)
            | ast.BinOp(op=ast.Sub(), left=ast.Constant(value=1), right=inner)
            | ast.IfExp(test=inner, body=ast.Constant(value=0), orelse=ast.Constant(value=1))
            | ast.Call(func=ast.Attribute(attr="logical_not" | "bitwise_not"), args=[inner])
            | ast.Call(func=ast.Attribute(value=inner, attr="logical_not"), args=[])
        ):
            return inner
        case _:
            return None


def _plain(node: ast.expr) -> ast.expr:
    """Return a flag without conversions, indices and brackets: ``torch.tensor([float(done)])[:, None]``."""
    while True:
        inner = without_views(node)
        match inner:
            case ast.Call(func=func, args=[ast.List(elts=[one]) | one]) if last_name(func) in _CONVERSIONS:
                inner = one
            case ast.Call(func=ast.Attribute(value=value, attr="astype" | "long" | "bool" | "int" | "type" | "cuda")):
                inner = value
            case ast.Subscript(value=value, slice=key) if not isinstance(getattr(key, "value", None), str):
                inner = value
            case ast.IfExp(test=test, body=ast.Constant(value=1), orelse=ast.Constant(value=0)):
                inner = test
            case _:
                pass
        if inner is node:
            return node
        node = inner


def _negations(source: SourceFile, factor: ast.expr) -> tuple[ast.expr, bool, list[ast.expr]] | None:
    """Return the flag from which a factor is computed, whether it is negated, and all that lies between.

    None if the factor is no flag that the program reads from its memory.
    """
    is_odd, passed, node = False, list[ast.expr](), factor
    for _ in range(8):
        node = _plain(node)
        passed.append(node)
        inner = _complement(node)
        values = possible_values(source, node) if inner is None and isinstance(node, ast.Name | ast.Attribute) else []
        is_same = len(values) == 1 and (not isinstance(_plain(values[0]), ast.Call) or _complement(values[0]))
        if inner is None and not is_same:
            break
        node, is_odd = (inner, not is_odd) if inner is not None else (values[0], is_odd)
    is_flag = _is_flag(_name(node)) and len(possible_values(source, node)) < 2
    return (node, is_odd, passed) if is_flag else None


def _name(node: ast.expr) -> str:
    """Return the last name of a variable, attribute, or item of a dictionary."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return last_name(node) if isinstance(node, ast.Name | ast.Attribute) else ""


@without_cycles(None)
def _is_end(source: SourceFile, node: ast.expr) -> bool | None:
    """Return True for a value that is true where an episode has ended, False for the opposite; None if unknown."""
    node = _plain(node)
    inner = _complement(node)
    if inner is not None:
        ended = _is_end(source, inner)
        return None if ended is None else not ended
    values = possible_values(source, node) if isinstance(node, ast.Name | ast.Attribute) else []
    answers = {answer for each in values if (answer := _is_end(source, each)) is not None}
    if answers:
        return answers.pop() if len(answers) == 1 else None
    if isinstance(node, ast.BoolOp):
        return True if all(_is_end(source, each) for each in node.values) else None
    name = _name(node)
    if _GOES_ON.match(name):
        return False
    return True if (FLAG.match(name) and not MASK.search(name)) or name in ("d", "trunc", "truncated") else None


def _stored(source: SourceFile) -> Iterator[ast.expr]:
    """Yield what a program stores together with a reward, or in a container that is named after the flag."""
    for call in source.all_calls:
        name = last_name(call.func)
        if not STORING.search(name) or name in ("print", "log", "debug", "info") or _is_searched(source, name):
            continue
        items = [part for each in (*call.args, *(k.value for k in call.keywords)) for part in _items(source, each)]
        owner = last_name(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        if len(items) > _STATE and set().union(*map(words_of, items)) & REWARDS:
            yield from items
        elif len(items) == 1 and _is_flag(owner):
            yield items[0]
    for assignment in source.nodes_of(ast.Assign):
        target = assignment.targets[0]
        if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Attribute):
            is_read = isinstance(assignment.value, ast.Constant)
            yield from [assignment.value] if _is_flag(target.value.attr) and not is_read else []


def _is_flag(name: str) -> bool:
    is_mask = bool(MASK.search(name)) and not _OTHER_MASK.search(name.lower())
    return is_mask or bool(FLAG.match(name))


def _is_searched(source: SourceFile, name: str) -> bool:
    """Return True for a function of the program whose own statements store its parameters."""
    own = [each for each in source.nodes_of(ast.FunctionDef) if each.name == name]
    return bool(own) and not any(each.args.vararg for each in own)


def _items(source: SourceFile, value: ast.expr) -> list[ast.expr]:
    """Return the parts of a stored transition: of a tuple, a dictionary or a record."""
    for each in origins(source, value, 2):
        match each:
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Dict(values=parts) if len(parts) > _STATE:
                return parts
            case ast.Call(args=args, keywords=keywords) if len(args) + len(keywords) > _STATE:
                return [*args, *(k.value for k in keywords)]
            case _:
                pass
    return [value]


def _is_negated_elsewhere(source: SourceFile, known: list[ast.expr]) -> bool:
    """Return True if the program negates a flag in another place, such as where it draws a batch."""
    for node in source.nodes_of(ast.expr):
        inner = _complement(node)
        if inner is None or any(each is node or encloses(each, node) for each in known):
            continue
        around = source.parents.get(id(node))
        if isinstance(node, ast.UnaryOp) and isinstance(around, ast.While | ast.If | ast.BoolOp | ast.IfExp):
            continue
        name = _name(_plain(inner))
        if FLAG.match(name) or MASK.search(name) or _READING.search(getattr(function_of(source, node), "name", "")):
            return True
    return False
