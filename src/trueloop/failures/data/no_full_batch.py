"""``drop_last=True`` drops the only batch: the loader gives none, so the loop over it never runs.

What you see
    Training ends at once and without an error. The mean loss of an epoch is 0, or the division by the number of
    batches fails, and the model predicts what it predicted before training.

Why it happens
    ``drop_last=True`` leaves out the last batch if it is smaller than ``batch_size``. With fewer samples than one
    batch, this is the only batch. A loop over nothing is valid Python. ``range(len(x) // batch_size)`` does the same.

Fix
    Use a smaller batch size, or keep the incomplete batch:

        loader = DataLoader(dataset, batch_size=64, shuffle=True, drop_last=False)

When this is fine
    - The dataset itself has no sample: a held-out set that is optional.
    - A replay buffer or the data of one of many clients is still small; other passes give batches.
    - A resumed run skips all batches of its first epoch.
    - The loader is never used.
    - A smoke test checks only that a program runs.

How it is detected
    In a run: a ``DataLoader`` over a dataset with samples was used, and it and all loaders that were created at the
    same line gave no batch, since its sampler has fewer indices than one batch and ``drop_last`` is set, also in a
    ``BatchSampler``. In the text: number of samples and batch size are both known, as in ``torch.randn(50, 8)``, and
    ``drop_last`` is set, or the loop that trains is over ``range(samples // batch_size)``.

References
    torch.utils.data.DataLoader, https://docs.pytorch.org/docs/stable/data.html
"""

import ast
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.possible_values import possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.source_text import Fix, integer, nodes_in
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import LoaderExhausted, LoaderStarted, Ref, WatchEnded

_MAX_LINES: Final = 256  # at which loaders are created
_MAX_DEPTH: Final = 8
_PYTORCH_SAMPLERS: Final = frozenset((
    "SequentialSampler", "RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler", "DistributedSampler",
))  # fmt: skip
_OF_SHAPE: Final = frozenset(("randn", "rand", "zeros", "ones", "empty"))


class _Dropped(NamedTuple):
    """A pass over a loader that has no full batch."""

    loop: CodePosition | None
    samples: int
    batch_size: int


class Detector(BaseDetector):
    """Finds loaders that gave no batch in any pass because they had less than one full batch."""

    def __init__(self) -> None:
        self._pending: tuple[Ref, CodePosition, _Dropped] | None = None
        """The pass that has started and may give no batch."""
        self._found: dict[CodePosition, _Dropped | None] = {}
        """Line that creates loaders -> the first pass without a batch; None if one of the loaders gave a batch."""

    def on_loader_started(self, event: LoaderStarted) -> None:
        """Record the sizes of a loader whose only batch is dropped."""
        line = event.made_at or event.location
        if line is None or (line not in self._found and len(self._found) >= _MAX_LINES):
            return
        dropped = _dropped(event)
        if dropped is None:
            self._found[line] = None
        else:
            self._pending = event.loader, line, dropped

    def on_loader_exhausted(self, event: LoaderExhausted) -> None:
        """Record that a pass gave no batch."""
        pending = self._pending
        if pending is not None and event.loader is pending[0]:
            self._pending, (_, line, dropped) = None, pending
            self._found.setdefault(line, None if event.batches else dropped)

    def on_watch_ended(self, event: WatchEnded) -> list[Evidence]:
        """Return the loaders that never gave a batch."""
        return [
            Evidence(
                message=f"This loader gave no batch: `drop_last` leaves out its only batch, of {each.samples} samples, "
                f"since a full one has {each.batch_size}. A loop over it never runs.",
                location=line,
                related=((each.loop, "nothing is iterated here"),) if each.loop else (),
                first_update=0,
            )
            for line, each in self._found.items()
            if each is not None
        ]


def _dropped(event: LoaderStarted) -> _Dropped | None:
    """Return the sizes of a loader with samples, but without one full batch; None for other loaders."""
    from torch.utils.data import BatchSampler, IterableDataset

    loader = event.live_loader
    batches: Any = loader.batch_sampler
    if isinstance(loader.dataset, IterableDataset) or type(batches) is not BatchSampler or not batches.drop_last:
        return None
    try:
        indices, samples = len(batches.sampler), len(loader.dataset)  # type: ignore[arg-type]
    except TypeError:
        return None
    count = indices if type(batches.sampler).__name__ in _PYTORCH_SAMPLERS else samples
    is_dropped = 0 < indices <= count < batches.batch_size
    return _Dropped(event.location, indices, batches.batch_size) if is_dropped else None


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each loader, and each loop over whole batches, for which the text shows that there is no full batch."""
    for call in source.all_calls:
        if last_name(call.func) == "DataLoader":
            options = {each.arg: each.value for each in call.keywords}
            dropped = options.get("drop_last")
            first, size = (*call.args[:1], options.get("dataset"))[0], (*call.args[1:2], options.get("batch_size"))[0]
            if (
                first is None
                or options.keys() & {"sampler", "batch_sampler"}
                or not _is_true(source, dropped)
                or not _is_iterated(source, call)
            ):
                continue
            samples, per_batch = _samples(source, first, 0), _number(source, size, 0)
            if samples and per_batch and samples < per_batch:
                yield Hit(
                    message=f"This loader gives no batch: `drop_last` leaves out its only batch, of {samples} samples, "
                    f"since a full one has {per_batch}. A loop over it never runs.",
                    node=call,
                    fix=_keep_last(source, dropped),
                )
    yield from _empty_ranges(source)


def _empty_ranges(source: SourceFile) -> Iterator[Hit]:
    """Yield the loops over ``range(samples // batch_size)`` that train and have no iteration."""
    for loop in source.nodes_of(ast.For):
        calls = [each for each in nodes_in(loop.iter, ast.Call) if last_name(each.func) in ("range", "trange")]
        divided = calls[0].args[0] if calls and len(calls[0].args) == 1 else None
        if isinstance(divided, ast.Name):
            values = possible_values(source, divided)
            divided = values[0] if len(values) == 1 else None
        if not isinstance(divided, ast.BinOp) or not isinstance(divided.op, ast.FloorDiv):
            continue
        samples, size = _number(source, divided.left, 0), _number(source, divided.right, 0)
        trains = any(last_name(each.func) == "backward" for each in nodes_in(loop, ast.Call))
        if samples and size and samples < size and trains:
            yield Hit(
                message=f"This loop never runs: `{ast.unparse(divided)}` is {samples} // {size} = 0.",
                node=loop,
            )


def _is_true(source: SourceFile, node: ast.expr | None) -> bool:
    if isinstance(node, ast.Name):
        values = possible_values(source, node)
        node = values[0] if len(values) == 1 else None
    return isinstance(node, ast.Constant) and node.value is True


def _is_iterated(source: SourceFile, call: ast.Call) -> bool:
    """Return True if a loop is over a loader, or over the variable that it is assigned to."""
    parent = source.parents.get(id(call))
    names = {ast.unparse(each) for each in parent.targets} if isinstance(parent, ast.Assign) else set[str]()
    loops = [*source.nodes_of(ast.For), *source.nodes_of(ast.comprehension)]
    return any(
        each is call or (isinstance(each, ast.Name | ast.Attribute) and ast.unparse(each) in names)
        for loop in loops
        for each in nodes_in(loop.iter, ast.Name, ast.Attribute, ast.Call)
    )


def _number(source: SourceFile, node: ast.expr | None, depth: int) -> int | None:
    """Return the number that an expression certainly is; None if it is unknown."""
    known = integer(node)
    if known is not None or node is None or depth > _MAX_DEPTH:
        return known
    match node:
        case (
            ast.Call(func=ast.Name(id="len"), args=[value])
            | ast.Call(func=ast.Attribute(value=value, attr="size"), args=[ast.Constant(value=0)])
        ):
            return _samples(source, value, depth + 1)
        case ast.Subscript(value=ast.Attribute(value=value, attr="shape"), slice=ast.Constant(value=0)):
            return _samples(source, value, depth + 1)
        case ast.Name():
            values = possible_values(source, node)
            return _number(source, values[0], depth + 1) if len(values) == 1 else None
        case _:
            return None


def _samples(source: SourceFile, node: ast.expr, depth: int) -> int | None:
    """Return the number of rows of a tensor, or of samples of a dataset; None if it is unknown."""
    if depth > _MAX_DEPTH:
        return None
    match node:
        case ast.Call(args=[rows, *_]) if last_name(node.func) in ("TensorDataset", "Subset"):
            rows = node.args[-1] if last_name(node.func) == "Subset" else rows
            return _samples(source, rows, depth + 1)
        case ast.Call():
            return _number(source, _first_size(node), depth + 1)
        case ast.Subscript(slice=ast.Slice(lower=None, upper=ast.Constant(value=int(size)), step=None)):
            return size
        case ast.Name() | ast.Attribute(value=ast.Name(id="self")):
            values = possible_values(source, node)
            return _samples(source, values[0], depth + 1) if len(values) == 1 else None
        case _:
            return None


def _first_size(call: ast.Call) -> ast.expr | None:
    """Return the number of rows of the tensor, or of numbers, that a call creates; None for other calls."""
    match call:
        case ast.Call(func=ast.Name(id="range") | ast.Attribute(attr="arange" | "randperm"), args=[size]):
            return size
        case ast.Call(func=ast.Attribute(attr=attr), args=[size, *_]) if attr in _OF_SHAPE:
            return size.elts[0] if isinstance(size, ast.Tuple | ast.List) and size.elts else size
        case ast.Call(func=ast.Attribute(attr="randint"), args=[*_, ast.Tuple(elts=[size, *_])]):
            return size
        case _:
            return None


def _keep_last(source: SourceFile, dropped: ast.expr | None) -> Fix | None:
    if not isinstance(dropped, ast.Constant):
        return None
    return Fix((source.text.replace(dropped, "False"),), safe=False, description="Keep the last batch")


RULE: Final = Rule(required_words=("drop_last&DataLoader|range(&//&backward(",), find=find)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(50, 10)
y = (x[:, 0] > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True, drop_last=True)
model = nn.Linear(10, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(8):
    for inputs, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
print((model(x).argmax(1) == y).float().mean().item())
"""

FAILURE = Failure(
    code="DAT046",
    title="drop_last drops the only batch, so nothing is iterated",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"drop_last=True": "drop_last=False"}),
    fix="Use a batch size that is at most the number of samples, or drop_last=False.",
    rule=RULE,
    detector=Detector,
)
