"""``len(batch)`` of a tuple or dictionary counts its parts, such as inputs and labels, instead of the samples.

What you see
    The mean loss or the accuracy is wrong by a factor: it depends on the batch size, or is above 1. The number of
    samples that an epoch reports is far too small.

Why it happens
    A loader returns the inputs and the labels in a tuple or dictionary. Its length is 2, whatever the batch size is.

Fix
    Take the length of a tensor of the batch:

        inputs, labels = batch
        total += len(labels)

When this is fine
    - The batch is a single tensor or a list of samples.
    - The batch is an object with a length of its own, as those of torchtext and tensordict.

How it is detected
    Only the linter finds it, from the source code: in a loop over a loader, or a step of a LightningModule, a batch
    that is unpacked into its parts or read by the names of its keys, and whose length is added up, or is a factor or
    divisor. Also the length of the dictionary that a function of the program returns, if it is added up or compared
    with 0.

References
    Python, "len", https://docs.python.org/3/library/functions.html#len
    torch.utils.data, "default_collate",
    https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.default_collate
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import batch_loops, function_of, single_assignments
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_OWN_LENGTH: Final = re.compile(
    r"torch_geometric|torchtext|tensordict|TensorDict|tianshou|\bdgl\b|BucketIterator|read_csv\([^)]*chunksize"
)
_COUNTED: Final = re.compile(r"(?:\+=|\*|/)\s*len\(|\w=len\(|len\(\w+\)\s*(?:\*|(?:==|!=|>)\s*0)")
_STEPS: Final = frozenset(("training_step", "validation_step", "test_step"))
_COUNTS: Final = frozenset(("batch_size", "n", "num", "count"))
"""Keywords that get the number of samples, as in ``self.log(..., batch_size=8)`` and ``meter.update(loss, n=8)``."""
_CONVERTING: Final = frozenset(("tuple", "list", "map", "dict", "to", "cuda"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each length of a batch or record that is the number of its parts."""
    lengths = [each for each in definitions(source).calls.get("len", []) if len(each.args) == 1]
    lengths = [each for each in lengths if isinstance(each.args[0], ast.Name) and _is_count(source, each)]
    if not lengths or source.mentions(_OWN_LENGTH):
        return
    for scope, batch in _batches(source):
        part = _part(scope, batch)
        if part is None:
            continue
        for call in lengths:
            if last_name(call.args[0]) == batch and any(each is call for each in nodes_in(scope, ast.Call)):
                edit = source.text.replace(call.args[0], ast.unparse(part))
                yield Hit(
                    message=f"`len({batch})` is the number of the parts of the batch, not of its samples.",
                    node=call,
                    related=((part, "a part of the batch"),),
                    fix=Fix((edit,), safe=False, description="Take the length of a part"),
                )
    for call in lengths:
        record = _record(source, call)
        if record is not None:
            yield Hit(
                message=f"`{ast.unparse(call)}` is always {len(record.keys)}, the number of keys of a dictionary.",
                node=call,
                related=((record, "the dictionary"),),
            )


def _is_count(source: SourceFile, call: ast.Call) -> bool:
    """Return True for a length that is added up, multiplied, divided by, or compared with 0."""
    parent: Any = source.parents.get(id(call))
    match parent:
        case ast.AugAssign(op=ast.Add()) | ast.BinOp(op=ast.Mult()):
            return True
        case ast.BinOp(op=ast.Div(), right=right):
            return right is call
        case ast.Compare(left=left, comparators=[ast.Constant(value=0)]):
            return left is call
        case ast.keyword(arg=name):
            return name in _COUNTS
        case _:
            return False


def _batches(source: SourceFile) -> Iterator[tuple[Any, str]]:
    """Yield the loops and steps that get a batch, with its variable."""
    for loop in batch_loops(source):
        target: Any = loop.node.target
        variable = target.elts[-1] if loop.counter and isinstance(target, ast.Tuple) else target
        if isinstance(variable, ast.Name):
            yield loop.node, variable.id
    for function in source.nodes_of(ast.FunctionDef):
        if function.name in _STEPS and len(function.args.args) > 1:
            yield function, function.args.args[1].arg


def _part(scope: Any, batch: str) -> Any:
    """Return the first part of a batch that a loop or step takes out; None if the batch may be something else."""
    found: list[ast.expr] = []
    for target, value in single_assignments(scope):
        names = {each.id for each in nodes_in(value, ast.Name)}
        if isinstance(target, ast.Name) and target.id == batch and not _is_converted(value, batch):
            return None
        unpacked = isinstance(target, ast.Tuple) and len(target.elts) > 1 and batch in names
        if unpacked and _is_converted(value, batch) and isinstance(target.elts[0], ast.Name):  # type: ignore[attr-defined]
            found.append(target.elts[0])  # type: ignore[attr-defined]
    for each in nodes_in(scope, ast.Subscript):
        is_key = isinstance(each.slice, ast.Constant) and isinstance(each.slice.value, str)
        if is_key and isinstance(each.ctx, ast.Load) and isinstance(each.value, ast.Name) and each.value.id == batch:
            found.append(each)
    found = [each for each in found if last_name(each) not in ("", "_")]
    return min(found, key=lambda each: (each.lineno, each.col_offset)) if found else None


def _is_converted(value: ast.expr, batch: str) -> bool:
    """Return True for a batch itself, and for its parts on a device: ``[each.to(device) for each in batch]``."""
    match value:
        case ast.Name(id=name):
            return name == batch
        case ast.ListComp(generators=[part]) | ast.GeneratorExp(generators=[part]) | ast.DictComp(generators=[part]):
            return batch in {each.id for each in nodes_in(part.iter, ast.Name)} and not isinstance(
                part.iter, ast.Subscript
            )
        case ast.Call(func=func, args=arguments):
            owner = getattr(func, "value", None)
            given = [*arguments, *([owner] if owner is not None else [])]
            return last_name(func) in _CONVERTING and any(_is_converted(each, batch) for each in given)
        case _:
            return False


def _record(source: SourceFile, call: ast.Call) -> ast.Dict | None:
    """Return the dictionary with written keys that a variable certainly is; None if it may be something else."""
    name = last_name(call.args[0])
    values = list(origins(source, call.args[0], 2))[1:]
    records = [each for each in values if isinstance(each, ast.Dict)]
    is_record = bool(records) and all(isinstance(each, ast.Dict | ast.Call) for each in values)
    texts = [isinstance(key, ast.Constant) and isinstance(key.value, str) for each in records for key in each.keys]
    stores = [e for e in nodes_in(function_of(source, call), ast.Subscript) if isinstance(e.ctx, ast.Store)]
    is_changed = any(last_name(each.value) == name for each in stores)
    is_returned = any(isinstance(each, ast.Call) for each in values)
    return records[0] if is_record and is_returned and len(texts) > 1 and all(texts) and not is_changed else None


RULE: Final = Rule(required_words=("torch", _COUNTED), find=find)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(256, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32, shuffle=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(3):
    total = 0.0
    for batch in loader:
        inputs, targets = batch
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(batch)
    print(epoch, total / len(loader.dataset))
"""

FAILURE = Failure(
    code="DAT063",
    title="The parts of a batch are counted instead of its samples",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"len(batch)": "len(inputs)"}),
    fix="Take the length of one of the parts, such as len(inputs).",
    rule=RULE,
)
