"""The target is the same tensor as the input, so hiding or disturbing the input in place changes the target too.

What you see
    The loss of a masked language model falls to 0 and its accuracy is 100 %, but it fills every gap with the mask
    token. A denoising model learns to copy its input.

Why it happens
    ``labels = input_ids`` gives the tensor a second name and copies nothing. ``input_ids[masked] = MASK`` then writes
    into the memory of both, so the right answers are lost.

Fix
    Copy the target before the input is changed.

        labels = input_ids.clone()
        input_ids[masked] = MASK

When this is fine
    - The input is changed by an operation that returns a new tensor, such as ``masked_fill`` or ``torch.where``.
    - Only one of both names is used afterwards.
    - The labels of a causal language model are its inputs, and nothing is changed in place.
    - What is changed is an item with a name of a dictionary or table.

How it is detected
    Only the linter finds it: two names of a function stand for one tensor, since one is assigned to the other or both
    get the same expression. One is called labels, target, clean or original, or the other masked, noisy or corrupted.
    Then a statement hides a part of it or adds noise in place, and both names are read afterwards. In a run, labels
    that are all the mask token are reported as one class.

References
    PyTorch, "Tensor Views", https://docs.pytorch.org/docs/stable/tensor_view.html
"""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import assigned_pairs, function_of, is_label
from trueloop.analysis.queries.possible_values import in_other_arm, origins
from trueloop.analysis.queries.simple_statements import simple_statements
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_TARGET: Final = re.compile(r"label|target|clean|(^|_)(orig|original|truth|gt|uncorrupted|unmasked)(_|$)", re.I)
_DISTURBED: Final = re.compile(r"(^|_)(masked|noisy|noised|corrupted|occluded|damaged|perturbed|disturbed|x_?adv)(_|$)")
_HIDING: Final = re.compile(r"mask|nois|rand|corrupt|drop|hid(e|den)|occlu|bernoulli|-100\b|\bpad\w*\b", re.IGNORECASE)
_CHANGING: Final = re.compile(r"^(add|bernoulli|copy|(index_|masked_)?fill|(masked_)?scatter|mul|normal|sub|zero)_$")
_SIZES: Final = frozenset(("shape", "size", "device", "dtype", "dim", "ndim", "numel", "len", "rand_like"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each tensor that is input and target and is changed in place."""
    functions = {id(each): each for each in (function_of(source, e) for e in source.nodes_of(ast.Assign))}
    for function in functions.values():
        block = list(simple_statements(function.body, heads=True))
        for statement, names in _pairs(block):
            change = _changed(source, block, statement, names) if _is_input_and_target(names) else None
            if change is not None:
                yield Hit(
                    message=f"`{names[0]}` and `{names[1]}` are the same tensor, and `{ast.unparse(change)}` changes "
                    "both: copy the target first, with clone().",
                    node=statement,
                    related=((change, "changed here"),),
                )


def _pairs(block: Sequence[ast.stmt]) -> Iterator[tuple[ast.stmt, tuple[str, str]]]:
    """Yield each statement from which on two names stand for one tensor, with both names."""
    known: dict[str, str] = {}
    for statement in block:
        for target, value in assigned_pairs(statement) if isinstance(statement, ast.Assign) else ():
            name, of = ast.unparse(target), ast.unparse(value)
            if not _is_place(target):
                continue
            if _is_place(value):
                others = [key for key, origin in known.items() if origin == of and key != name]
                yield from ((statement, (name, each)) for each in (of, *others))
            known = {key: origin for key, origin in known.items() if name not in (key, origin)}
            known |= {name: of} if isinstance(value, ast.Subscript | ast.Attribute) else {}


def _is_place(node: ast.expr) -> bool:
    """Return True for a variable, an attribute, or an item such as ``batch["labels"]``."""
    match node:
        case ast.Name():
            return True
        case ast.Attribute(value=ast.Name(), attr=attr):
            return attr not in _SIZES
        case ast.Subscript(value=inner, slice=ast.Name() | ast.Constant()):
            return _is_place(inner)
        case _:
            return False


def _word(name: str) -> str:
    """Return the last name of a place: "labels" for ``batch["labels"]``."""
    return re.sub(r"\W+$", "", name).rpartition("'")[2].rpartition(".")[2]


def _is_input_and_target(names: tuple[str, str]) -> bool:
    words = list(map(_word, names))
    targets = [bool(_TARGET.search(each)) or is_label(ast.Name(id=each)) for each in words]
    disturbed = [bool(_DISTURBED.search(each)) for each in words]
    return targets[0] != targets[1] or disturbed[0] != disturbed[1]


def _changed(
    source: SourceFile, block: Sequence[ast.stmt], made_at: ast.stmt, names: tuple[str, str]
) -> ast.stmt | None:
    """Return the statement that changes both names in place, if both are read after it."""
    change: ast.stmt | None = None
    unread = set(names)
    for statement in block[block.index(made_at) + 1 :]:
        if in_other_arm(source, made_at, statement):
            continue
        if change is not None:
            unread -= {each for each in unread if _reads(source, statement, each)}
            if not unread:
                return change
        if any(_changes_place(statement, each) and _is_hiding(source, statement, each) for each in names):
            change = change or statement
        elif isinstance(statement, ast.Assign) and any(ast.unparse(each) in unread for each in statement.targets):
            return None  # the name gets another tensor
    return None


def _changes_place(statement: ast.stmt, name: str) -> bool:
    match statement:
        case (
            ast.Assign(targets=[ast.Subscript(value=place, slice=index)])
            | ast.AugAssign(target=ast.Subscript(value=place, slice=index))
        ):
            return ast.unparse(place) == name and not isinstance(getattr(index, "value", None), str)
        case ast.AugAssign(target=ast.Name() | ast.Attribute() as place):
            return ast.unparse(place) == name
        case (
            ast.Expr(value=ast.Call(func=ast.Attribute(value=place, attr=method)))
            | ast.Assign(value=ast.Call(func=ast.Attribute(value=place, attr=method)))
        ):
            return ast.unparse(place) == name and bool(_CHANGING.search(method))
        case _:
            return False


def _is_hiding(source: SourceFile, statement: ast.stmt, name: str) -> bool:
    """Return True if a change sets a part to a fixed value or speaks of masks, noise or random numbers."""
    is_part = isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant | ast.UnaryOp)
    index = getattr(statement.targets[0], "slice", None) if isinstance(statement, ast.Assign) else None
    chosen = origins(source, index, 2) if isinstance(index, ast.expr) and is_part else ()
    is_fixed = any(isinstance(each, ast.Tuple | ast.Slice | ast.Compare) for each in chosen)
    return is_fixed or bool(_HIDING.search(ast.unparse(statement).replace(name, "")))


def _reads(source: SourceFile, statement: ast.stmt, name: str) -> bool:
    """Return True if a statement uses the values of a tensor, not to change them."""
    owner = re.split(r"[\[.]", name)[0]
    for each in nodes_in(statement, ast.Name):
        parent: Any = source.parents.get(id(each))
        is_written = isinstance(getattr(parent, "ctx", None), ast.Store) and isinstance(parent, ast.Subscript)
        is_size = last_name(getattr(parent, "func", parent)) in _SIZES
        if each.id == owner and isinstance(each.ctx, ast.Load) and not (is_written or is_size):
            return owner == name or name in ast.unparse(statement) or isinstance(parent, ast.Return | ast.Call)
    return False


_WORDS: Final = (
    r"\S*(label|target|clean|orig|truth|masked|nois[yei]|corrupt|occlud|damaged|perturbed|disturbed|x_?adv|\by\b)\S*"
)
_SECOND_NAME: Final = re.compile(
    rf"^\s*({_WORDS} = [\w.]+(\[[\w\"']+\])?|[\w.]+(\[[\w\"']+\])? = {_WORDS})\s*(#.*)?$", re.I | re.M
)
RULE: Final = Rule(required_words=("torch", _SECOND_NAME), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
text = (torch.randint(0, 20, (256, 1)) + torch.arange(8)) % 20 + 1
model = nn.Sequential(nn.Embedding(21, 16), nn.Flatten(), nn.Linear(128, 8 * 21), nn.Unflatten(1, (8, 21)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(60):
    input_ids = text[torch.randint(0, 256, (32,))]
    labels = input_ids
    masked = torch.rand(input_ids.shape) < 0.15
    input_ids[masked] = 0
    loss = nn.functional.cross_entropy(model(input_ids)[masked], labels[masked])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="DAT068",
    title="Hiding a part of the input changes the target too",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"labels = input_ids\n": "labels = input_ids.clone()\n"}),
    fix="Copy the target before the input is changed: labels = input_ids.clone().",
    rule=RULE,
)
