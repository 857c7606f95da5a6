"""The built-in ``hash()`` of a string decides on a split, an index or a seed, and is another number in every run.

What you see
    Two runs with the same seeds give different results. After a restart, samples of the old test set are in the
    training set, and a loaded model looks up other rows of its embedding than it was trained with.

Why it happens
    Python salts the hash of strings and bytes with a random number that it draws when the process starts. No seed of
    ``random``, NumPy or PyTorch changes that, only the environment variable PYTHONHASHSEED.

Fix
    Use a hash that depends on the text alone.

        bucket = hash(name) % 10  # wrong
        bucket = zlib.crc32(name.encode()) % 10  # right

When this is fine
    - The hash is that of a number, or of a tuple of numbers, which is not salted.
    - PYTHONHASHSEED is set for every run.
    - The hash only distributes work, and no result depends on it.

How it is detected
    Only the linter finds it: the remainder of ``hash(...)`` by a number, ``hash(name) % 10``, if the argument is a
    string by its form or its name, and the program does not mention PYTHONHASHSEED.

References
    Python documentation, ``object.__hash__``, https://docs.python.org/3/reference/datamodel.html#object.__hash__
    PYTHONHASHSEED, https://docs.python.org/3/using/cmdline.html#envvar-PYTHONHASHSEED
"""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.failures.failure import Failure, Rule, Severity, changed

_TEXT: Final = frozenset((
    "name", "names", "path", "file", "filename", "fname", "text", "word", "token", "pid", "key", "subject", "patient",
    "speaker", "url", "title", "sentence", "string", "stem", "site", "filepath", "uri", "caption",
))  # fmt: skip


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each remainder of the hash of a string."""
    if "PYTHONHASHSEED" in source.text.source or "hash" in definitions(source).functions:
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


RULE = Rule(required_words=("hash(", "%", "torch|numpy|sklearn"), find=find)

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
    title="hash() of a string differs in every run",
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
