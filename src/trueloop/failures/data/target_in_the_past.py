"""The target of a forecast lies before its inputs: ``series[i - 1]``, ``shift(1)`` or ``x, y = s[1:], s[:-1]``.

What you see
    The loss falls to a small value, and the held-out score is good. As a forecast the model is of no use: it has
    learned to reconstruct what came before the window.

Why it happens
    The sign of an offset is easily confused: ``shift(1)`` of pandas moves values to later rows, so each row gets the
    value of the row before, and ``shift(-1)`` gets the next one. Any offset fits, so no error is raised.

Fix
    Take the target from after the inputs.

        x, y = series[i : i + width], series[i + width]
        table["target"] = table["price"].shift(-1)
        x, y = sequence[:-1], sequence[1:]

When this is fine
    - The model predicts backwards on purpose: backcasting, a backward language model, imputation. Name it so.
    - Values of earlier rows are inputs: name them ``lag`` or ``previous``, not ``target``.

How it is detected
    Only the linter finds it, from the source code: a window and its target that are cut out of one array, where the
    target lies before the first step of the window, and the function takes no step after it; a column or variable
    called a target or label that is ``shift`` by a positive number of rows, if no feature is shifted further; and
    inputs ``s[1:]`` with targets ``s[:-1]`` of one array. A target that is the last step of the window is DAT018.

References
    pandas.DataFrame.shift, https://pandas.pydata.org/docs/reference/api/pandas.DataFrame.shift.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from trueloop.analysis.queries.batch_loops import assigned_pairs, function_of, is_label
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.queries.window_pairs import Pair, Part, add_linear, is_only_target, parts_of, window_pairs
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, integer, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_WANTED: Final = re.compile(
    r"back_?cast|backward(?!\()|revers|prev|past|histor|bidirect|smooth|retro|hindcast|imput|inverse", re.I
)
"""Words of code that predicts backwards on purpose."""
_LAG: Final = re.compile(
    r"lag|prev|past|last|shift|before|minus|(^|_)old|histor|delay|_?t_?1$|base|naive", re.IGNORECASE
)
"""Words of names of earlier values that are not the target."""
_INPUT: Final = re.compile(
    r"(^|_)(in|inp|inputs?|x|xs|xb|src|source|features?|input_ids|dec_in)($|_)|_in$", re.IGNORECASE
)
_OUTPUT: Final = re.compile(r"(^|_)(out|outputs?|next)($|_)", re.IGNORECASE)
_CONVERSIONS: Final = frozenset((
    "dropna", "fillna", "to_numpy", "astype", "bfill", "reset_index", "copy", "clone", "long", "float", "to",
    "contiguous", "rename", "to_frame", "numpy", "detach", "squeeze", "unsqueeze", "reshape", "view", "flatten",
))  # fmt: skip


class _Named(NamedTuple):
    """A value, and the name that it gets."""

    name: str
    value: ast.expr


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each target that lies before its inputs."""
    reported = set[int]()
    for pair in window_pairs(source):
        for window, target in parts_of(pair):
            if id(target.node) in reported or not _is_before(window, target) or not _is_target(source, pair, target):
                continue
            if not _moving(source, pair, window) or not _moving(source, pair, target):
                continue  # y[:n] and y[n:m] are parts of a split
            if is_only_target(pair, window, target) and not _WANTED.search(_words(source, pair, target)):
                reported.add(id(target.node))
                yield Hit(
                    message=f"The target `{ast.unparse(target.node)}` lies before the input "
                    f"`{ast.unparse(window.node)}`: the model learns to predict the past.",
                    node=target.node,
                    related=((window.node, "the input"),),
                )
    groups = list(_named_values(source))
    shifts = [(each, _rows(each.value)) for group in groups for each in group]
    others = [number for other, number in shifts if number > 0 and not _is_target_name(other.name)]
    for each, rows in shifts:
        is_shifted_less = bool(others) and min(others) > rows
        if rows > 0 and _is_target_name(each.name) and not is_shifted_less and not _is_wanted(source, each.value):
            yield Hit(
                message=f"`{each.name}` gets `{ast.unparse(each.value)}`: the value of an earlier row, not of a later "
                "one.",
                node=each.value,
                fix=_negative_shift(source, each.value),
            )
    for group in groups:
        yield from _exchanged_shifts(source, group)


def _is_before(window: Part, target: Part) -> bool:
    """Return True if a target ends before the first step of the window."""
    if (window.rest and window.rest != target.rest) or window.upper is None:
        return False
    end = target.upper if target.is_slice else add_linear(target.lower, {"": 1}, 1)
    if end is None or target.is_own_end:
        return False
    distance = add_linear(end, window.lower, -1)
    return set(distance) <= {""} and distance.get("", 0) <= 0


def _moving(source: SourceFile, pair: Pair, part: Part) -> bool:
    """Return True if the first index of a part is a variable of a loop, or a parameter."""
    loops = [each for each in enclosing_nodes(source, part.node) if isinstance(each, ast.For | ast.While)]
    generators = nodes_in(pair.function, ast.comprehension)
    targets = [each.target for each in (*loops, *generators) if not isinstance(each, ast.While)]
    names = {name.id for each in targets for name in nodes_in(each, ast.Name)}
    names |= {each.arg for each in nodes_in(getattr(pair.function, "args", ast.Pass()), ast.arg)}
    names |= {
        each.target.id for loop in loops for each in nodes_in(loop, ast.AugAssign) if isinstance(each.target, ast.Name)
    }
    return bool(names & set(part.lower))


def _is_target(source: SourceFile, pair: Pair, target: Part) -> bool:
    """Return False for the second of a pair that may be (future, past)."""
    if not isinstance(source.parents.get(id(pair.target)), ast.Tuple):
        return True
    return is_label(pair.target) if isinstance(pair.target, ast.Name) else not target.is_slice


def _words(source: SourceFile, pair: Pair, target: Part) -> str:
    """Return the text of the function that cuts the window; outside of functions the statements there."""
    if not isinstance(pair.function, ast.Module):
        return ast.unparse(pair.function)
    nodes: list[ast.AST] = [pair.inputs, pair.target, target.node]
    around = [each for node in nodes for each in enclosing_nodes(source, node) if not isinstance(each, ast.Module)]
    return "\n".join(ast.unparse(each) for each in around)


def _named_values(source: SourceFile) -> Iterator[list[_Named]]:
    """Yield what the statements of each block assign, and the items of dictionaries and keyword arguments."""
    blocks: dict[int, list[_Named]] = {}
    for statement in source.nodes_of(ast.Assign):
        found = blocks.setdefault(id(source.block(statement)), [])
        for target, value in assigned_pairs(statement):
            key = (
                target.slice.value
                if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant)
                else ""
            )
            name = key if isinstance(key, str) and key else last_name(target)
            found.append(_Named(name, value))
    yield from blocks.values()
    for node in source.nodes_of(ast.Dict, ast.Call):
        if isinstance(node, ast.Call):
            yield [_Named(each.arg or "", each.value) for each in node.keywords]
        else:
            keys = [each.value if isinstance(each, ast.Constant) else "" for each in node.keys]
            yield [_Named(str(key), value) for key, value in zip(keys, node.values, strict=True)]


def _is_target_name(name: str) -> bool:
    is_named = is_label(ast.Name(name)) or bool(_OUTPUT.search(name))
    return is_named and not _LAG.search(name) and not _INPUT.search(name)


def _is_wanted(source: SourceFile, node: ast.expr) -> bool:
    return bool(_WANTED.search(getattr(function_of(source, node), "name", "")))


def _bare(node: ast.expr) -> ast.expr:
    """Return an expression without conversions around it."""
    while True:
        match node:
            case ast.Call(func=ast.Attribute(attr=attr, value=inner)) if attr in _CONVERSIONS:
                node = inner
            case ast.Attribute(attr="values", value=inner):
                node = inner
            case _:
                return node


def _rows(node: ast.expr) -> int:
    """Return by how many rows ``column.shift(n)`` moves a column; 0 for other expressions."""
    match _bare(node):
        case ast.Call(func=ast.Attribute(attr="shift"), args=args, keywords=keywords) if len(args) <= 1:
            names = {each.arg: each.value for each in keywords}
            rows = names.get("periods", args[0] if args else None)
            if not names.keys() <= {"periods", "fill_value"}:
                return 0
            return 1 if rows is None else integer(rows) or 0
        case _:
            return 0


def _negative_shift(source: SourceFile, node: ast.expr) -> Fix | None:
    call = _bare(node)
    rows = call.args[0] if isinstance(call, ast.Call) and call.args else None
    if rows is None:
        return None
    return Fix((source.text.replace(rows, f"-{ast.unparse(rows)}"),), safe=False, description="Predict the next row")


def _exchanged_shifts(source: SourceFile, group: list[_Named]) -> Iterator[Hit]:
    """Yield targets ``s[:-1]`` whose inputs are ``s[1:]``."""
    cut = [(each, _cut_of(_bare(each.value))) for each in group]
    for target, (array, part) in cut:
        if part != "[:-1]" or not _is_target_name(target.name) or _is_wanted(source, target.value):
            continue
        inputs = [each for each, found in cut if found == (array, "[1:]") and _INPUT.search(each.name)]
        if len(inputs) == 1:
            yield Hit(
                message=f"The inputs are `{ast.unparse(inputs[0].value)}` and the targets "
                f"`{ast.unparse(target.value)}`: each step predicts the one before it.",
                node=target.value,
                related=((inputs[0].value, "the inputs"),),
            )


def _cut_of(node: ast.expr) -> tuple[str, str]:
    """Return the array of ``s[:, 1:]``, with the other indices, and "[1:]" or "[:-1]"; ("", "") for others."""
    if not isinstance(node, ast.Subscript):
        return "", ""
    indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    texts = [
        "" if isinstance(each, ast.Slice) and (each.lower or each.upper) else ast.unparse(each) for each in indices
    ]
    cuts = [ast.unparse(each) for each, text in zip(indices, texts, strict=True) if not text]
    if len(cuts) != 1 or cuts[0] not in ("1:", ":-1"):
        return "", ""
    return f"{ast.unparse(node.value)}[{', '.join(texts)}]", f"[{cuts[0]}]"


RULE = Rule(required_words=("torch", re.compile(r"\.shift\(|\[.*:.*\]")), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
series = torch.sin(torch.arange(300) * 0.2) + 0.2 * torch.randn(300)
width = 12
windows = torch.stack([series[t : t + width] for t in range(1, 240)])
targets = torch.stack([series[t - 1] for t in range(1, 240)])
model = nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    for rows in torch.randperm(239).split(24):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(windows[rows]).squeeze(1), targets[rows])
        loss.backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="DAT049",
    title="The target lies before the inputs",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"series[t - 1]": "series[t + width]"}),
    fix="Take the target from after the inputs.",
    rule=RULE,
)
