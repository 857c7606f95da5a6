"""The built-in ``hash()`` of a string, or the order of a set of strings, gives other numbers in every run.

What you see
    Two runs with the same seeds give different results. After a restart, samples of the old test set are in the
    training set, and a loaded model looks up other rows of its embedding than it was trained with.

Why it happens
    Python salts the hash of strings and bytes with a random number that it draws when the process starts. No seed of
    ``random``, NumPy or PyTorch changes that, only the environment variable PYTHONHASHSEED. The order of a set follows
    the hashes, so a vocabulary numbered by ``enumerate(set(words))`` has other numbers after a restart.

Fix
    Use a hash that depends on the text alone.

        bucket = hash(name) % 10  # wrong
        bucket = zlib.crc32(name.encode()) % 10  # right
        vocabulary = {word: i for i, word in enumerate(sorted(set(words)))}

When this is fine
    - The hash is that of a number, or of a tuple of numbers, which is not salted.
    - PYTHONHASHSEED is set for every run.
    - The hash only distributes work, and no result depends on it.
    - The vocabulary is saved together with the weights.
    - The numbers only rename words, as the characters of an edit distance.

How it is detected
    Only the linter finds it: the remainder of ``hash(...)`` by a number, ``hash(name) % 10``, if the argument is a
    string by its form or its name, and the program does not mention PYTHONHASHSEED; and a dictionary of numbers for the
    items of a set of strings that is not sorted, or a split of their list in a program that sets a seed. A dictionary
    is only a note where no weights are saved or loaded and no seed is set, and it is not reported where a call that
    saves gets the dictionary.

References
    Python documentation, ``object.__hash__``, https://docs.python.org/3/reference/datamodel.html#object.__hash__
    PYTHONHASHSEED, https://docs.python.org/3/using/cmdline.html#envvar-PYTHONHASHSEED
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.held_out_names import is_held_out, is_training
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_TEXT: Final = frozenset((
    "name", "names", "path", "file", "filename", "fname", "text", "word", "token", "pid", "key", "subject", "patient",
    "speaker", "url", "title", "sentence", "string", "stem", "site", "filepath", "uri", "caption",
))  # fmt: skip
_WORDS: Final = frozenset(("words", "tokens", "chars", "char", "texts", "corpus", "tags", "tag", "sentences", "vocab"))
_FILES: Final = frozenset((
    "name", "names", "path", "paths", "file", "files", "filename", "filenames", "fname", "stem", "filepath", "uri",
    "caption", "sentence", "sentences", "text", "texts", "title", "url",
))  # fmt: skip
"""Names of what is text in any data; a patient or a key may be a number."""
_WEIGHTS: Final = ("torch.save(", "load_state_dict(", "save_pretrained(", "save_file(")
_SEEDS: Final = re.compile(r"seed\(|random_state\s*=\s*\d|seed_everything")
_SAVING: Final = re.compile(r"save|dump|write")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each remainder of the hash of a string, and each numbering of a set of strings."""
    if "PYTHONHASHSEED" in source.text.source:
        return
    if "set(" in source.text.source or "{" in source.text.source:
        yield from _numberings(source)
        yield from _splits(source)
    if "hash" in definitions(source).functions:
        return
    for node in source.nodes_of(ast.BinOp):
        call = node.left
        if isinstance(call, ast.Call) and last_name(call.func) == "abs" and len(call.args) == 1:
            call = call.args[0]
        match call:
            case ast.Call(func=ast.Name(id="hash"), args=[value]) if isinstance(node.op, ast.Mod) and _is_text(value):
                yield Hit(
                    message=f"`{ast.unparse(node)}` is another number in every run, as "
                    f"`{ast.unparse(value)}` is a string: Python salts the hash of strings, and no seed changes that.",
                    node=node,
                )
            case _:
                pass


def _numberings(source: SourceFile) -> Iterator[Hit]:
    """Yield each dictionary that numbers the items of a set of strings."""
    keeps_weights = any(word in source.text.source for word in _WEIGHTS)
    is_seeded = "seed(" in source.text.source  # the program is meant to give the same result in every run
    for node in source.nodes_of(ast.DictComp, ast.Call, ast.For):
        items, target = _numbered(source, node)
        unordered = None if items is None else _unordered(source, items)
        is_sorted = items is not None and f"{ast.unparse(items)}.sort(" in source.text.source
        if items is None or unordered is None or is_sorted or not _has_text(source, items, unordered):
            continue
        if any(_saves(call, target) for call in source.all_calls) or _makes_characters(source, node, target):
            continue
        yield Hit(
            message=f"`{ast.unparse(unordered)}` is a set of strings, whose order is another one in every run: "
            + (
                "a process that loads the weights gives other numbers to the items. Use `sorted(...)`."
                if keeps_weights
                else "no seed makes two runs equal. Use `sorted(...)`."
            ),
            node=node,
            severity=None if keeps_weights or is_seeded else Severity.NOTE,
        )


def _splits(source: SourceFile) -> Iterator[Hit]:
    """Yield each split into training and held-out data, in a seeded program, of a list of a set of strings."""
    if not _SEEDS.search(source.text.source):
        return
    reported: set[int] = set()
    for node in source.nodes_of(ast.Call, ast.Subscript):
        items = _split(source, node)
        unordered = None if items is None else _unordered(source, items)
        if items is None or unordered is None or id(unordered) in reported:
            continue
        if not _has_text(source, items, unordered, _FILES) or f"{ast.unparse(items)}.sort(" in source.text.source:
            continue
        reported.add(id(unordered))
        yield Hit(
            message=f"`{ast.unparse(unordered)}` is a set of strings, whose order is another one in every run: in "
            "spite of the seed, the split is another one too. Use `sorted(...)`.",
            node=unordered,
            related=((node, "split here"),),
        )


def _split(source: SourceFile, node: ast.AST) -> ast.expr | None:
    """Return the list that a node splits: ``train_test_split(ids)``, ``train = ids[:n]``, the files of a dataset."""
    match node:
        case ast.Call(args=[items, *_], func=func) if last_name(func) in ("train_test_split", "random_split"):
            return items
        case ast.Subscript(value=ast.Name() as items, slice=ast.Slice()):
            parent = source.parents.get(id(node))
            is_part = isinstance(parent, ast.Assign) and any(
                is_held_out(each) or is_training(each) for each in parent.targets
            )
            return items if is_part else None
        case ast.Subscript(value=ast.Attribute() as items, slice=ast.Name()):
            is_item = getattr(function_of(source, node), "name", "") == "__getitem__"
            return items if is_item and "random_split(" in source.text.source else None
        case _:
            return None


def _numbered(source: SourceFile, node: ast.AST) -> tuple[ast.expr | None, str]:
    """Return the items that a node numbers and the variable of the dictionary; None for other nodes."""
    parent = source.parents.get(id(node))
    target = ast.unparse(parent.targets[0]) if isinstance(parent, ast.Assign) else ""
    match node:
        case ast.DictComp(
            key=ast.Name(id=key),
            value=ast.Name() | ast.BinOp(),
            generators=[
                ast.comprehension(
                    target=ast.Tuple(elts=[_, ast.Name(id=item)]),
                    iter=ast.Call(func=ast.Name(id="enumerate"), args=[items, *_]),
                )
            ],
        ) if key == item:
            return items, target
        case ast.Call(func=ast.Name(id="dict"), args=[ast.Call(func=ast.Name(id="zip"), args=[items, numbers])]):
            return (items if last_name(getattr(numbers, "func", numbers)) in ("range", "count") else None), target
        case ast.For(target=ast.Name(id=item), iter=items, body=body):
            for each in body:
                match each:
                    case ast.Assign(
                        targets=[ast.Subscript(value=owner, slice=ast.Name(id=key))],
                        value=ast.Call(func=ast.Name(id="len")),
                    ) if key == item:
                        return items, ast.unparse(owner)
                    case _:
                        pass
        case ast.For(
            target=ast.Tuple(elts=[ast.Name(id=number), ast.Name(id=item)]),
            iter=ast.Call(func=ast.Name(id="enumerate"), args=[items, *_]),
            body=[ast.Assign(targets=[ast.Subscript(value=owner, slice=ast.Name(id=key))], value=value), *_],
        ) if key == item and any(each.id == number for each in nodes_in(value, ast.Name)):
            return items, ast.unparse(owner)
        case _:
            pass
    return None, ""


def _unordered(source: SourceFile, items: ast.expr) -> ast.expr | None:
    """Return the set of which some items are all, in its own order; None for other items."""
    for each in origins(source, items, 3):
        is_list = isinstance(each, ast.Call) and last_name(each.func) in ("list", "tuple") and len(each.args) == 1
        for made in origins(source, each.args[0], 2) if is_list and isinstance(each, ast.Call) else (each,):
            if _is_set(source, made):
                return made
    return None


def _is_set(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a set, and for what two sets have in common, or one of them has."""
    match node:
        case ast.SetComp() | ast.Call(func=ast.Name(id="set")):
            return True
        case (
            ast.Call(func=ast.Attribute(attr="intersection" | "union" | "difference", value=left))
            | ast.BinOp(op=ast.BitAnd() | ast.BitOr() | ast.Sub(), left=left)
        ):
            return any(_is_set(source, each) for each in origins(source, left, 2) if each is not node)
        case _:
            return False


def _has_text(source: SourceFile, items: ast.expr, unordered: ast.expr, words: frozenset[str] = frozenset()) -> bool:
    """Return True if a set contains strings, by its name, and the names and calls in what it is made of.

    With words, a key such as that in ``frame["id"]`` is no such string, but a name: numbers may be below it.
    """
    made = [items, unordered]
    for name in nodes_in(unordered, ast.Name):
        made += list(origins(source, name, 3))
    for each in (node for value in made for node in nodes_in(value, ast.expr)):
        name = last_name(each)
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value:
            if not words or isinstance(source.parents.get(id(each)), ast.List | ast.Set | ast.Tuple):
                return True
            name = each.value if isinstance(source.parents.get(id(each)), ast.Subscript) else ""
        if name in ("split", "lower", "strip", "read", "read_text", "read_csv", "listdir", "glob", "iglob"):
            return not words or name != "read_csv"
        is_named = isinstance(each, ast.Name | ast.Attribute | ast.Constant)
        if is_named and set(name_words(name)) & (words or (_TEXT | _WORDS)):
            return True
    return False


def _makes_characters(source: SourceFile, node: ast.AST, target: str) -> bool:
    """Return True if each number only becomes a character, as for an edit distance: ``chr(numbers[word])``."""
    reads = [e for e in nodes_in(function_of(source, node), ast.Name) if e.id == target and isinstance(e.ctx, ast.Load)]
    items = [source.parents.get(id(each)) for each in reads]
    calls = [source.parents.get(id(each)) for each in items if isinstance(each, ast.Subscript)]
    return bool(calls) and len(calls) == len(reads) and all(last_name(getattr(e, "func", None)) == "chr" for e in calls)


def _saves(call: ast.Call, target: str) -> bool:
    """Return True if a call writes a dictionary, by its name or that of the object that holds it."""
    if not _SAVING.search(last_name(call.func)) or not target:
        return False
    own = target.rpartition(".")[2]
    written = [last_name(each) for argument in (*call.args, *call.keywords) for each in nodes_in(argument, ast.expr)]
    return own in written or any(name_words(name) & {"vocab", "tokenizer", "mapping", "dataset"} for name in written)


def _is_text(value: ast.expr) -> bool:
    """Return True for a string by its form or its name, and a tuple that contains one."""
    match value:
        case ast.JoinedStr() | ast.Constant(value=str() | bytes()) | ast.Call(func=ast.Name(id="str" | "repr")):
            return True
        case ast.Tuple(elts=items):
            return any(map(_is_text, items))
        case ast.Call(func=ast.Attribute(value=inner)):  # name.lower()
            return _is_text(inner)
        case _:
            return bool(set(name_words(last_name(value))) & _TEXT)


RULE = Rule(
    required_words=(
        "hash(&%|set(&enumerate(|set(&len(|set(&zip(|= {&enumerate(|= {&zip(|enumerate({|zip({|set(&split(|set(&seed",
        "torch|numpy|sklearn",
    ),
    find=find,
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
names = [f"patient-{number:03d}" for number in range(120)]
x = torch.randn(120, 4)
y = x.sum(1, keepdim=True)
held_out = torch.tensor([hash(name) % 5 == 0 for name in names])
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[~held_out]), y[~held_out])
    loss.backward()
    optimizer.step()
print(nn.functional.mse_loss(model(x[held_out]), y[held_out]).item())
"""

FAILURE = Failure(
    code="DAT028",
    title="Hash of a string, or order of a set, differs in every run",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=BAD,
    good=changed(
        BAD,
        {"hash(name) % 5": "zlib.crc32(name.encode()) % 5", "import torch\nfrom": "import zlib\nimport torch\nfrom"},
    ),
    fix="Use a hash of the text alone: `zlib.crc32(name.encode()) % 10`.",
    rule=RULE,
)
