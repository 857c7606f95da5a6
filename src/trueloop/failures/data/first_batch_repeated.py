"""Each step takes the first batch of a loader that does not shuffle, so all steps are made on the same batch.

What you see
    The training loss falls to nearly zero within a few hundred steps, and the held-out score is poor: the model has
    seen one batch only.

Why it happens
    ``next(iter(loader))`` starts a new pass over the loader each time. Without shuffling every pass begins with the
    same batch, so the rest of the data is never used. Or a variable of an earlier line, such as the batch of a first
    try, has a name like that of the loop's batch and is passed to the model instead.

Fix
    Keep one iterator and start again when it ends, or loop over the loader.

        batches = iter(loader)
        for step in range(steps):
            try:
                x, y = next(batches)
            except StopIteration:
                batches = iter(loader)
                x, y = next(batches)

When this is fine
    - The loader shuffles: each pass begins with another batch.
    - You take one batch once, before the loop, to overfit it on purpose.
    - The loader has one batch, or is a stream that continues.

How it is detected
    The sanitizer counts passes over a loader that does not shuffle, or over loaders of one dataset that one line
    creates, that ended after their first batch and trained on it. It reports 12 in a row of a loader with at least 3
    batches. The linter reports ``next(iter(loader))`` in a loop that trains on the batch, if the only loader of that
    name, or the one that is created right there, has no sampler and does not shuffle. Streams, datasets that do not
    use their index, and batches of all samples are not reported. It also reports a loop over a loader that never reads
    its batch and trains the model on a variable from before the loop.

References
    torch.utils.data, https://docs.pytorch.org/docs/stable/data.html
"""

import ast
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trueloop.analysis.abstract_value import LEAF
from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.assignments import assigned_value
from trueloop.analysis.queries.batch_loops import (
    LOADER_WORDS,
    assigned_in,
    assigned_pairs,
    batch_loops,
    created_loader,
    function_of,
)
from trueloop.analysis.queries.loop_variables import stored_names
from trueloop.analysis.queries.possible_values import enclosing_nodes, known_constant
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.source_text import dotted_name, encloses, nodes_in, walk
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import BackwardEnded, BatchLoaded, LoaderStarted, Ref, TracingGap

MIN_PASSES: Final = 12
MIN_BATCHES: Final = 3


@dataclass(slots=True)
class _Passes:
    """Successive passes over one loader without shuffling that ended after their first batch."""

    batches: int
    count: int = 0
    loaded: int = 0
    trained: bool = False
    reported: bool = False


class Detector(BaseDetector):
    """Counts passes that end after the first batch."""

    def __init__(self) -> None:
        self._passes: weakref.WeakKeyDictionary[Ref, _Passes] = weakref.WeakKeyDictionary()
        self._by_dataset: weakref.WeakKeyDictionary[Ref, dict[CodePosition, _Passes]] = weakref.WeakKeyDictionary()
        """Dataset -> the line that creates loaders of it -> their passes."""

    def on_loader_started(self, event: LoaderStarted) -> Evidence | None:
        """Count the previous pass; return evidence at the twelfth one."""
        if event.shuffles is not False or event.sampler != "SequentialSampler":
            return None
        passes = self._passes.get(event.loader)
        if passes is None:
            passes = self._passes[event.loader] = self._first_pass(event)
        is_first_only = passes.loaded == 1 and passes.trained
        passes.count = passes.count + 1 if is_first_only else 0
        passes.loaded, passes.trained = 0, False
        if passes.count < MIN_PASSES or passes.batches < MIN_BATCHES or passes.reported:
            return None
        passes.reported = True
        return _evidence(event.location, passes)

    def _first_pass(self, event: LoaderStarted) -> _Passes:
        """Return the passes over the loaders of one dataset that one line creates, or new ones."""
        new = _Passes(len(event.live_loader))
        if event.dataset is None or event.made_at is None:
            return new
        return self._by_dataset.setdefault(event.dataset, {}).setdefault(event.made_at, new)

    def on_batch_loaded(self, event: BatchLoaded) -> None:
        """Count the batch."""
        if event.loader in self._passes:
            self._passes[event.loader].loaded += 1

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Record that the batch is trained on."""
        if event.loader is not None and event.loader in self._passes:
            self._passes[event.loader].trained = True

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Discard the running passes."""
        for each in self._passes.values():
            each.count = each.loaded = 0

    def inconclusive(self) -> str:
        """Return a reason if no loader keeps its order."""
        return "" if self._passes else "no loader that does not shuffle was used"


def _evidence(location: CodePosition | None, passes: _Passes) -> Evidence:
    return Evidence(
        message=f"{passes.count} steps in a row were made on the first of {passes.batches} batches: each starts a "
        f"new pass "
        "over a loader that does not shuffle, so the model sees one batch only.",
        location=location,
    )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``next(iter(loader))`` whose batch a loop trains on."""
    if "IterableDataset" in source.text.source or "streaming" in source.text.source:
        return
    for call in source.all_calls:
        start = _new_pass(source, call)
        loader = None if start is None else start.args[0]
        created = None if loader is None else loader if isinstance(loader, ast.Call) else created_loader(source, loader)
        if loader is None or not isinstance(created, ast.Call) or not _repeats_order(source, created):
            continue
        if any(_trains_in_loop(source, each, 0) for each in _uses(source, call)):
            yield Hit(
                message=f"`{ast.unparse(call)}` returns the first batch each time: a new pass starts, and the loader "
                "does not shuffle.",
                node=call if start is None or encloses(call, start) else start,
                related=() if created is loader else ((created, "the loader"),),
            )


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield the same as `find`, and each model that a loop over a loader trains on another variable than its batch."""
    yield from find(source)
    undefined = source.modules[0].undefined_names
    for loop in batch_loops(source):
        batch = {each for each in stored_names(loop.node.target) - {loop.counter} if not each.startswith("_")}
        call = _constant_input(source, loop.node) if batch and not batch & _read_names(loop.node.body) else None
        if call is not None:
            given, names = ast.unparse(call.args[0]), " and ".join(f"`{each}`" for each in sorted(batch))
            yield Hit(
                message=f"`{ast.unparse(call)}` gets the same `{given}` in every iteration: nothing in this loop reads "
                f"{names}.",
                node=call,
                related=((loop.node, "the loop"),),
                severity=Severity.NOTE if given in undefined else None,
            )


def _read_names(block: list[ast.stmt]) -> set[str]:
    """Return the variables that are read for more than their own next value, as in ``x = x.to(device).float()``."""
    pairs = [pair for each in block for assign in nodes_in(each, ast.Assign) for pair in assigned_pairs(assign)]
    moved = {id(_owner(value)) for target, value in pairs if dotted_name(target) == dotted_name(_owner(value)) != ""}
    names = [name for each in block for name in nodes_in(each, ast.Name)]
    return {each.id for each in names if isinstance(each.ctx, ast.Load) and id(each) not in moved}


def _owner(node: ast.expr) -> ast.expr:
    """Return the object whose methods an expression calls, one after the other."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return node


def _constant_input(source: SourceFile, loop: ast.For) -> ast.Call | None:
    """Return the first call of a model in a loop that trains, if no call gets what the loop draws or computes."""
    stored = stored_names(loop)
    inside = [each for each in source.operations if each.loops and each.loops[-1].node is loop]
    calls = [each for each in inside if each.kind is OpKind.MODEL_CALL and encloses(loop, each.node)]
    plain = [e.node for e in calls if e.node.args and isinstance(e.node.args[0], ast.Name) and not e.node.keywords]
    inputs = {name.id for each in plain for given in each.args for name in nodes_in(given, ast.Name)}
    if not calls or len(plain) != len(calls) or inputs & stored:
        return None
    results = {id(each.result) for each in calls}
    backwards = [each.subject for each in inside if each.kind is OpKind.BACKWARD]
    trained = any(id(value) in results for root in backwards for value in root.autograd_graph())
    optimised = {LEAF} & {fact for each in calls for value in each.inputs for fact in value.facts}
    return plain[0] if trained and not optimised and calls[0].grad is True else None


def _new_pass(source: SourceFile, call: ast.Call) -> ast.Call | None:
    """Return ``iter(loader)`` of ``next(iter(loader))`` or ``iter(loader).__next__()``; None for other calls."""
    match call:
        case ast.Call(func=ast.Name(id="next"), args=[iterator, *_]):
            pass
        case ast.Call(func=ast.Attribute(attr="__next__" | "next", value=iterator)):
            pass
        case _:
            return None
    if isinstance(iterator, ast.Name):  # batches = iter(loader), in the same block
        block: list[ast.stmt] = source.block(source.statement_of(call))
        values = assigned_in(function_of(source, call), iterator.id)
        iterator = values[0] if len(values) == 1 and any(encloses(each, values[0]) for each in block) else iterator
    is_iter = isinstance(iterator, ast.Call) and last_name(iterator.func) == "iter" and len(iterator.args) == 1
    return iterator if is_iter and isinstance(iterator, ast.Call) else None


def _repeats_order(source: SourceFile, created: ast.Call) -> bool:
    """Return True for a DataLoader that certainly starts with the same batch each time, of several."""
    options = {each.arg: each.value for each in created.keywords}
    options |= dict(zip(("dataset", "batch_size", "shuffle", "sampler", "batch_sampler"), created.args, strict=False))
    shuffle, size, dataset = (options.get(each) for each in ("shuffle", "batch_size", "dataset"))
    if not last_name(created.func).endswith("DataLoader") or {None, "sampler", "batch_sampler"} & options.keys():
        return False
    if shuffle is not None and known_constant(source, shuffle) is not False:
        return False
    return not _is_all(source, size) and dataset is not None and _uses_index(source, dataset)


def _is_all(source: SourceFile, size: ast.expr | None) -> bool:
    """Return True for a batch size that is the number of samples: a length, or the size of a tensor of the file."""
    if isinstance(size, ast.Name):
        value = assigned_value(source, size, size.id)
        size = value if isinstance(value, ast.Call | ast.Subscript) else size
    if isinstance(size, ast.Subscript) and known_constant(source, size) is not None:  # config["batch_size"]
        size = ast.Constant(known_constant(source, size))
    if size is None or isinstance(size, ast.Call | ast.Subscript):
        return size is not None
    made = [
        each for each in source.all_calls if last_name(each.func) in ("randn", "rand", "zeros", "randint", "arange")
    ]
    return any(ast.unparse(argument) == ast.unparse(size) for each in made for argument in each.args[:1])


def _uses_index(source: SourceFile, dataset: ast.expr) -> bool:
    """Return False for a dataset of the file whose ``__getitem__`` ignores its index: it creates new samples."""
    value = assigned_value(source, dataset, dataset.id) if isinstance(dataset, ast.Name) else dataset
    name = last_name(value.func) if isinstance(value, ast.Call) else ""
    for each in source.nodes_of(ast.FunctionDef):
        if each.name == "__getitem__" and len(each.args.args) > 1:
            owner = source.parents.get(id(each))
            names = {inner.id for inner in nodes_in(each, ast.Name)}
            if getattr(owner, "name", "") == name and each.args.args[1].arg not in names:
                return False
    return True


def _uses(source: SourceFile, call: ast.Call) -> Iterator[ast.Call]:
    """Yield the call, or the calls of the function that returns its result."""
    function = function_of(source, call)
    if isinstance(source.parents.get(id(call)), ast.Return):
        yield from (each for each in source.all_calls if last_name(each.func) == getattr(function, "name", ""))
    else:
        yield call


def _trains_in_loop(source: SourceFile, call: ast.Call, depth: int) -> bool:
    """Return True if a loop repeats a call and differentiates a loss of its result."""
    function = function_of(source, call)
    kinds = ast.For | ast.While | ast.ExceptHandler
    loop = next((each for each in enclosing_nodes(source, call) if isinstance(each, kinds)), None)
    if isinstance(loop, ast.ExceptHandler):
        return False  # a new pass after the last batch
    if loop is not None:
        return _is_trained_on(loop, call)
    if isinstance(function, ast.Module) or depth or not _is_trained_on(function, call):
        return False
    callers = [each for each in source.all_calls if last_name(each.func) == function.name]
    return any(isinstance(e, ast.For | ast.While) for each in callers for e in enclosing_nodes(source, each))


def _is_trained_on(block: ast.AST, call: ast.Call) -> bool:
    """Return True if a backward pass starts from a value that is computed from the result of a call."""
    derived: set[str] = set()
    statements = sorted((each for each in nodes_in(block, ast.stmt)), key=lambda each: each.lineno)
    for each in statements:
        if isinstance(each, ast.For | ast.While | ast.If | ast.With | ast.Try | ast.FunctionDef | ast.ClassDef):
            continue
        nodes = list(walk(each))
        if any(node is call for node in nodes) or any(isinstance(n, ast.Name) and n.id in derived for n in nodes):
            derived |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            names = [node.func for node in nodes if isinstance(node, ast.Call)]
            if any(last_name(name) == "backward" or "train" in last_name(name) for name in names):
                return True
    return False


RULE = Rule(required_words=(LOADER_WORDS, "backward|train"), find=find_all)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(160, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=False)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    inputs, targets = next(iter(loader))
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="DAT012",
    title="Every step uses the first batch of a loader",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"shuffle=False": "shuffle=True"}),
    fix="Create the iterator once, before the loop: `batches = iter(loader)`.",
    rule=RULE,
    detector=Detector,
)
