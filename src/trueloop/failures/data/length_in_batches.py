"""``__len__`` of a dataset counts batches although ``__getitem__`` returns single samples: most samples are never read.

What you see
    An epoch is shorter than expected by the batch size, and the model overfits early: it sees the first samples only.

Why it happens
    A sampler draws the indices 0 to ``len(dataset) - 1``. If ``__len__`` returns ``len(self.x) // batch_size``, the
    DataLoader never asks for the other samples, and makes batches of the rest once more.

Fix
    Return the number of samples; the DataLoader counts the batches:

        def __len__(self):
            return len(self.x)

When this is fine
    - ``__getitem__`` returns a whole batch, as with ``DataLoader(dataset, batch_size=None)``.
    - An index stands for a window, so a division by its length or stride is right.

How it is detected
    Only the linter finds it: a class derived from Dataset whose ``__len__`` divides a length by something called a
    batch size, and whose ``__getitem__`` uses the index as it comes to read one item.

References
    torch.utils.data, "Map-style datasets", https://docs.pytorch.org/docs/stable/data.html#map-style-datasets
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_BATCH_SIZE: Final = re.compile(r"^_?(train_?)?(mini_?)?batch(_?size)?$|^_?bs$|^batchsize$", re.IGNORECASE)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``__len__`` that counts batches of samples that ``__getitem__`` returns one by one."""
    for definition in source.nodes_of(ast.ClassDef):
        if not any("Dataset" in last_name(each) for each in definition.bases):
            continue
        methods = {each.name: each for each in definition.body if isinstance(each, ast.FunctionDef)}
        length, item = methods.get("__len__"), methods.get("__getitem__")
        quotient = _divided_by_batch_size(source, length) if length is not None else None
        if quotient is not None and item is not None and _reads_one(item):
            yield Hit(
                message=f"`__len__` returns `{ast.unparse(quotient)}`, the number of batches, but `__getitem__` "
                "returns a single sample: the samples after that index are never read.",
                node=quotient,
                related=((item, "returns one sample"),),
                fix=_fix(source, quotient),
            )


def _divided_by_batch_size(source: SourceFile, length: ast.FunctionDef) -> Any:
    """Return the quotient with a batch size from which a method returns its value; None if there is none."""
    for returned in nodes_in(length, ast.Return):
        for value in origins(source, returned.value) if returned.value is not None else ():
            for part in nodes_in(value, ast.BinOp):
                if isinstance(part.op, ast.FloorDiv | ast.Div) and _BATCH_SIZE.match(last_name(part.right)):
                    return part
    return None


def _reads_one(method: ast.FunctionDef) -> bool:
    """Return True if the index is used as it comes to read an item, and nothing depends on a batch size."""
    arguments = [each.arg for each in method.args.args[1:]]
    names = {last_name(each) for each in nodes_in(method, ast.Name, ast.Attribute)}
    if len(arguments) != 1 or any(map(_BATCH_SIZE.match, names)):
        return False
    index = arguments[0]
    uses = [each for each in nodes_in(method, ast.Name) if each.id == index]
    plain = [each for each in nodes_in(method, ast.Subscript) if getattr(each.slice, "id", "") == index]
    return bool(plain) and len(plain) == len(uses)


def _fix(source: SourceFile, quotient: ast.BinOp) -> Fix | None:
    parent = source.parents.get(id(quotient))
    if not isinstance(parent, ast.Return):
        return None
    edit = source.text.replace(quotient, source.text.segment(quotient.left))
    return Fix((edit,), safe=False, description="Return the number of samples")


RULE: Final = Rule(
    required_words=("__len__", "__getitem__", "Dataset", re.compile(r"//? *\S*(batch|bs\b)", re.I)), find=find
)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Samples(Dataset):
    def __init__(self, x, y, batch_size):
        self.x, self.y, self.batch_size = x, y, batch_size

    def __len__(self):
        return len(self.x) // self.batch_size

    def __getitem__(self, index):
        return self.x[index], self.y[index]


x = torch.randn(512, 8)
loader = DataLoader(Samples(x, x.sum(1, keepdim=True), 8), batch_size=8, shuffle=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="DAT056",
    title="Length of a dataset counts batches, not samples",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"len(self.x) // self.batch_size": "len(self.x)"}),
    fix="Return the number of samples from __len__.",
    rule=RULE,
)
