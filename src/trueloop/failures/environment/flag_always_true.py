"""A flag or condition is true whatever is given: by ``bool`` of a text, ``store_true`` with default True, or ``or``.

What you see
    ``--freeze False`` freezes the encoder all the same, or an option that is on by default cannot be switched off. The
    two runs that should differ give the same result.

Why it happens
    ``argparse`` calls ``bool("False")``, and a string that is not empty is true. Only ``--freeze ""`` gives False.
    ``bool(sys.argv[1])`` and ``bool(os.environ["DEBUG"])`` do the same.
    With ``action="store_true", default=True``, the flag is True with ``--freeze`` and without it. In
    ``if name == "train" or "valid"``, the second text is not compared with anything, and it is true.

Fix
    Use a flag that can be switched off by ``--no-freeze``:

        parser.add_argument("--freeze", action=argparse.BooleanOptionalAction, default=True)

    Compare with each of several values:

        if name in ("train", "valid"):

When this is fine
    - The type is a function of your own that reads the text, such as ``str2bool``.
    - Other libraries, such as ``click`` and ``typer``, read "False" as False.
    - ``bool(os.environ.get("DEBUG", ""))``: whether a variable of the environment is set at all is a usual switch.
    - Another option, ``set_defaults`` or the program sets the same name to False.
    - The value of ``name or "train"`` is used, and not only whether it is true.

How it is detected
    Only the linter finds it: a call of ``add_argument`` with ``type=bool``, or with ``action="store_true"`` and the
    default True, or ``bool`` of an item of ``sys.argv`` or, where the text "False" or "0" is the default, of a
    variable of the environment. ``store_true`` is reported if the program reads the flag, and nothing else sets it. It
    also reports a condition that joins a comparison and a text, number or class with ``or`` or ``and``, and a
    comparison with ``("a" or "b")``, which is ``"a"``.

References
    Python, "argparse", on type, https://docs.python.org/3/library/argparse.html#type
"""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Final

from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.command_line_options import destination
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, dotted_name
from trueloop.failures.environment.setting_never_read.settings import unread_settings
from trueloop.failures.failure import Failure, Rule, Severity, changed

_HARMLESS: Final = re.compile(r"pin_?mem|cache|download|volta|[av]100", re.IGNORECASE)
"""Names of options that only change how fast a program is, or on which machine it runs."""
_NO: Final = frozenset(("false", "0", "no", "off", "f", "n"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each argument that is converted by ``bool``, and each condition that is true whatever is compared."""
    yield from _texts_as_flags(source)
    yield from _conditions(source)
    for call in source.all_calls:
        if last_name(call.func) != "add_argument" or not call.args or _has_no_effect(source, call):
            continue
        is_stuck = _is_stuck(source, call)
        for each in call.keywords:
            if each.arg == "action" and is_stuck:
                yield Hit(
                    message=f"{ast.unparse(call.args[-1])} is True with the flag and without it: nothing sets it to "
                    "False.",
                    node=call,
                    fix=_flag(source, each),
                )
            if each.arg == "type" and isinstance(each.value, ast.Name) and each.value.id == "bool":
                passes_false = _passes_false(source, call)
                yield Hit(
                    message=f"`type=bool` makes {ast.unparse(call.args[-1])} True for every text, also for "
                    '"False": bool("False") is True.',
                    node=call,
                    fix=None if passes_false or not _is_plain(call) else _flag(source, each),
                )


def _texts_as_flags(source: SourceFile) -> Iterator[Hit]:
    """Yield each call of ``bool`` with a text that the command line or the environment gives."""
    for call in definitions(source).calls.get("bool", []):
        if isinstance(call.func, ast.Name) and len(call.args) == 1 and _is_given_text(source, call.args[0]):
            yield Hit(
                message=f"`{ast.unparse(call)}` is True for every text that is not empty, also for "
                '"False" and "0". Compare the text.',
                node=call,
            )


def _conditions(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``name == "train" or "valid"``, of which the second value is not compared."""
    for node in source.nodes_of(ast.BoolOp):
        word = "or" if isinstance(node.op, ast.Or) else "and"
        parent = source.parents.get(id(node))
        compared = [_kind(source, each) for value in node.values for each in _compared(value)]
        kinds = [_kind(source, each) for each in node.values]
        kinds[0] = kinds[0] if kinds[0] == "str" else ""  # `1 or x == 3` is a switch for trials
        alone = next((each for each, kind in zip(node.values, kinds, strict=True) if kind and kind in compared), None)
        if alone is not None and _is_condition(source, node):
            effect = "the whole condition is always true" if word == "or" else "that part is always true"
            yield Hit(
                message=f"`{ast.unparse(alone)}` in `{ast.unparse(node)}` is not compared with anything, so {effect}.",
                node=node,
                fix=_membership(source, node),
            )
        elif _compared(parent) and all(_kind(source, each) for each in node.values):
            used = node.values[0 if word == "or" else -1]
            yield Hit(message=f"`{ast.unparse(node)}` is `{ast.unparse(used)}`: nothing else is compared.", node=parent)


def _compared(node: ast.AST | None) -> list[ast.expr]:
    """Return what a comparison for equality, membership or class compares; [] for other expressions."""
    match node:
        case ast.Compare(ops=[ast.Eq() | ast.NotEq() | ast.In() | ast.NotIn() | ast.Is() | ast.IsNot(), *_]):
            return [node.left, *node.comparators]
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kinds]):
            return [kinds]
        case _:
            return []


def _kind(source: SourceFile, node: ast.expr) -> str:
    """Return the kind of a value that is certainly true, such as "str"; "" for other expressions."""
    if isinstance(node, ast.Constant):
        return type(node.value).__name__ if node.value and type(node.value) in (str, int, float) else ""
    is_layer = bool(_CLASS.match(source.qualified_name(node) or dotted_name(node)))
    return "class" if is_layer or (isinstance(node, ast.Name) and node.id in definitions(source).classes) else ""


def _is_condition(source: SourceFile, node: ast.expr) -> bool:
    """Return True for an expression of which only the truth is used."""
    parent = source.parents.get(id(node))
    if isinstance(parent, ast.BoolOp) or (isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not)):
        return _is_condition(source, parent)
    is_message = isinstance(parent, ast.Assert)  # assert name == "train" and "only in training"
    return not is_message and node in (getattr(parent, "test", None), *getattr(parent, "ifs", ()))


def _membership(source: SourceFile, node: ast.BoolOp) -> Fix | None:
    """Return the fix that writes ``name in ("train", "valid")``; None if that is not all of the condition."""
    first, *others = node.values
    match first:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[value]) if isinstance(node.op, ast.Or):
            pass
        case _:
            return None
    if not all(_kind(source, each) for each in others):
        return None
    values = ", ".join(source.text.segment(each) for each in (value, *others))
    edit = source.text.replace(node, f"{source.text.segment(left)} in ({values})")
    return Fix((edit,), safe=False, description="Compare with each value")


def _is_given_text(source: SourceFile, value: ast.expr) -> bool:
    """Return True for an item of ``sys.argv``, and for a variable of the environment with a text for "no" as default.

    Without such a default, a program may ask whether the variable is set.
    """
    for each in origins(source, value, 2):
        match each:
            case ast.Subscript(value=owner, slice=ast.Constant(value=int()) | ast.Name()):
                if last_name(owner) == "argv":
                    return True
            case ast.Call(func=ast.Name(id="getenv") | ast.Attribute(attr="get" | "getenv") as func, args=[_, default]):
                is_environment = last_name(func) == "getenv" or last_name(getattr(func, "value", None)) == "environ"
                text = default.value if isinstance(default, ast.Constant) else None
                if is_environment and isinstance(text, str) and text.lower() in _NO:
                    return True
            case _:
                pass
    return False


def _is_stuck(source: SourceFile, call: ast.Call) -> bool:
    """Return True for a flag with the default True that the program reads, and that nothing sets to False."""
    given = {each.arg: each.value for each in call.keywords}
    default, action = given.get("default"), given.get("action")
    is_flag = isinstance(action, ast.Constant) and action.value == "store_true"
    name = destination(call)
    if not isinstance(default, ast.Constant) or default.value is not True or not name:
        return False
    if not is_flag and (action is not None or "nargs" in given or "const" in given):
        return False
    others = [each for each in definitions(source).calls.get("add_argument", []) if each is not call]
    if any(destination(each) == name for each in others):
        return False
    setters = definitions(source).calls.get("set_defaults", []) + definitions(source).calls.get("setattr", [])
    if any(each.arg in (name, None) for call in setters for each in call.keywords) or any(
        getattr(each, "value", None) == name for call in setters for each in call.args
    ):
        return False
    uses = definitions(source).attributes.get(name, [])
    return bool(uses) and all(isinstance(each.ctx, ast.Load) for each in uses)


def _has_no_effect(source: SourceFile, call: ast.Call) -> bool:
    """Return True for an option that changes no result, that the program sets itself, or that nothing reads."""
    name, known = destination(call), definitions(source)
    uses = known.attributes.get(name, [])
    assigned = [source.parents.get(id(each)) for each in uses if isinstance(each.ctx, ast.Store)]
    values = {
        each.value.value for each in assigned if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant)
    }
    if _HARMLESS.search(name) or values >= {True, False}:
        return True
    texts = {each.value for each in source.nodes_of(ast.Constant) if isinstance(each.value, str)}
    is_named = uses or name in texts or "vars" in known.calls or source.is_in_other_file(name)
    if is_named and id(call) not in _unread(source):
        return False
    others = {destination(each) for each in known.calls["add_argument"]} - {name, ""}
    return any(each in known.attributes or source.is_in_other_file(f".{each}") for each in others)


@lru_cache(maxsize=1)
def _unread(source: SourceFile) -> set[int]:
    """Return the ids of the options that ENV008 reports."""
    return {id(each.node) for each in unread_settings(source) if each.is_option}


def _passes_false(source: SourceFile, call: ast.Call) -> bool:
    """Return True if a list or text of arguments in the program has a text for "no" after one of the flags."""
    flags = {each.value for each in call.args if isinstance(each, ast.Constant)}
    values = [each.elts for each in source.nodes_of(ast.List, ast.Tuple)]
    texts = [[item.value for item in each if isinstance(item, ast.Constant)] for each in values]
    texts += [each.value.split() for each in source.nodes_of(ast.Constant) if isinstance(each.value, str)]
    pairs = [pair for each in texts for pair in pairwise(each)]
    pairs += [tuple(word.split("=", 1)) for each in texts for word in each if isinstance(word, str) and "=" in word]
    return any(flag in flags and str(value).lower() in _NO for flag, value in pairs)


def _is_plain(call: ast.Call) -> bool:
    return {each.arg for each in call.keywords} <= {"type", "default", "help", "dest", "required"}


def _flag(source: SourceFile, keyword: ast.keyword) -> Fix | None:
    """Return the fix that makes an option with ``--no-`` of it; None if the file does not import argparse by name."""
    names = [alias.name for each in source.nodes_of(ast.Import) for alias in each.names if alias.asname is None]
    if "argparse" not in names:
        return None
    edit = source.text.replace(keyword, "action=argparse.BooleanOptionalAction")
    return Fix((edit,), safe=False, description="Make it a flag")


_CLASS: Final = re.compile(r"(torch\.)?(nn|optim)\.(\w+\.)*[A-Z]\w*$")
_FLAGS: Final = re.compile(
    r"""type=bool|store_true|bool\(|(?:[=!]=|\bis\b)[^\n]*\b(?:or|and)\b|['")]\s+(?:or|and)\b|\b(?:or|and)\s+\(?['"\d]"""
    r"""|is(?:instance|subclass)\([^\n]*\b(?:or|and)\b"""
)
RULE = Rule(required_words=(_FLAGS,), find=find)

BAD = """
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--freeze", type=bool, default=True)
args = parser.parse_args(["--freeze", "False"])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
if args.freeze:
    model[0].requires_grad_(False)
optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="ENV007",
    title="A flag or condition is always true",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"type=bool": "action=argparse.BooleanOptionalAction", '"--freeze", "False"': '"--no-freeze"'}),
    fix="Use action=argparse.BooleanOptionalAction instead of type=bool, and `x in (a, b)` instead of `x == a or b`.",
    rule=RULE,
)
