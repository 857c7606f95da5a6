"""``drop_last=True`` on a validation or test loader leaves out the samples that do not fill the last batch.

What you see
    The metric changes with the batch size. The last samples of the set are never evaluated. In a small set they can be
    a fifth of all samples, and in a sorted set they may all belong to one class.

Why it happens
    ``drop_last=True`` is right for training: shuffling leaves out different samples in each epoch. The argument is then
    copied to the validation loader, and nothing counts the evaluated samples.

Fix
    Use ``drop_last=False``, the default, for validation and test loaders:

        val_loader = DataLoader(val_set, batch_size=16, drop_last=True)  # wrong
        val_loader = DataLoader(val_set, batch_size=16)  # right

    If a compiled model needs a fixed batch size, pad the last batch and ignore the results of the padding.

When this is fine
    - The number of held-out samples is a multiple of the batch size.
    - You use the loader for training, with or without labels.
    - You do not evaluate on the loader: you iterate over it in train mode, for example to update BatchNorm statistics.
    - The loader reads a stream of unknown length.

How it is detected
    In a run, the sanitizer counts the samples that a loader leaves out of each pass in eval mode. The linter does not
    know the number of samples, so it reports each evaluation loader with ``drop_last=True`` as a note; as a warning if
    one function, by its own option or default, makes the loaders of the training and of the held-out data, or sets
    ``drop_last = True`` where it makes that of the held-out data: ``if flag == "test":``.

References
    thuml/Autoformer#104, "Why use drop_last=True in test (and val) dataloader?",
    https://github.com/thuml/Autoformer/issues/104
    thuml/Nonstationary_Transformers#26, an error of 1.89 over 128 samples that is 2.94 over all 158,
    https://github.com/thuml/Nonstationary_Transformers/issues/26
    yuqinie98/PatchTST#7, "the result is worse than the published one", https://github.com/yuqinie98/PatchTST/issues/7
    torch.utils.data.DataLoader, drop_last, https://docs.pytorch.org/docs/stable/data.html
"""

import ast
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

from trueloop.analysis.queries.batch_loops import assigned_pairs, function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.data_parts import part_of_call
from trueloop.analysis.queries.evaluation_loops import evaluation_calls, find_loader, find_training_step
from trueloop.analysis.queries.held_out_names import HELD_OUT, TRAINING
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.modes import is_in_eval_mode
from trueloop.analysis.queries.shuffled_loaders import argument_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.source_text import Fix, integer, nodes_in
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import LoaderStarted, Ref
from trueloop.tracing.trackers.evaluation_passes import EvaluationPass, EvaluationPassesEnded


class _Dropped(NamedTuple):
    """Number of samples that a loader leaves out of each pass, and the loader's settings."""

    samples: int
    left_out: int
    batch_size: int
    shuffles: bool
    made_at: CodePosition | None
    location: CodePosition | None


class Detector(BaseDetector):
    """Counts the samples that each evaluation loader leaves out."""

    def __init__(self) -> None:
        self._incomplete: weakref.WeakKeyDictionary[Ref, _Dropped] = weakref.WeakKeyDictionary()
        self._passes = 0

    def on_loader_started(self, event: LoaderStarted) -> None:
        """Record the start of the loader."""
        dropped = _count_dropped(event, event.batch_size) if event.drop_last and event.batch_size else None
        if dropped is not None:
            self._incomplete[event.loader] = dropped

    def on_evaluation_passes_ended(self, event: EvaluationPassesEnded) -> list[Evidence]:
        """Return evidence at the start of the next update or the end of the run."""
        self._passes += len(event.passes)
        return [evidence for eval_pass in event.passes if (evidence := self._check(eval_pass)) is not None]

    def inconclusive(self) -> str:
        """Return the reason if there was no evaluation pass."""
        return "" if self._passes else "no evaluation pass over a DataLoader was traced"

    def _check(self, eval_pass: EvaluationPass) -> Evidence | None:
        dropped = self._incomplete.get(eval_pass.loader)
        if dropped is None or not all(call.all_eval for call in eval_pass.calls):
            return None
        description = f"{dropped.left_out} at random" if dropped.shuffles else f"the last {dropped.left_out}"
        return Evidence(
            message=f"{eval_pass.calls[0].model.name} was evaluated on {dropped.samples - dropped.left_out} of "
            f"{dropped.samples} held-out samples: `drop_last=True` leaves out {description} in each pass.",
            location=dropped.made_at or dropped.location,
            related=((eval_pass.calls[0].location, "evaluated here"),) if eval_pass.calls[0].location else (),
            first_update=eval_pass.update,
        )


def _count_dropped(event: LoaderStarted, batch_size: int) -> _Dropped | None:
    """Return how many samples a loader leaves out; None if it leaves out none or their number is unknown."""
    sampler: Any = event.live_loader.sampler
    if event.shuffles is None or not hasattr(type(sampler), "__len__"):
        return None
    samples = len(sampler)
    left_out = samples % batch_size
    if not left_out or left_out == samples:
        return None
    return _Dropped(samples, left_out, batch_size, event.shuffles, event.made_at, event.location)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the evaluation loaders with ``drop_last=True``, as notes unless made as those of the training."""
    yield from _made_as_in_training(source)
    yield from _chosen_for_part(source)
    reported = set[int]()
    for call in evaluation_calls(source, grad=None):
        loader = find_loader(call.loops[-1])
        if loader is None or loader.union or not (is_in_eval_mode(source, call) or call.grad is False):
            continue
        option = loader.arguments.get("drop_last")
        if option is None or option.constant() is not True or id(loader) in reported:
            continue
        if find_training_step(source, call) is None:
            continue
        reported.add(id(loader))
        values = [each.value for each in loader.node.keywords if each.arg == "drop_last"]
        yield Hit(
            message="This evaluation loader has `drop_last=True`: it leaves out the samples that do not fill a batch.",
            node=loader.node,
            related=((call.node, "evaluated here"),),
            fix=Fix((source.text.replace(values[0], "False"),), safe=False, description="Set drop_last=False")
            if values
            else None,
            severity=Severity.NOTE,
        )


def _made_as_in_training(source: SourceFile) -> Iterator[Hit]:
    """Yield the held-out loaders of a function that drops the last batch of the training loader too."""
    known = definitions(source)
    for function in known.functions.values():
        made = [each for each in nodes_in(function, ast.Call) if "DataLoader" in last_name(each.func)]
        options = [each.value for loader in made for each in loader.keywords if each.arg == "drop_last"]
        sizes = [each.value for loader in made for each in loader.keywords if each.arg == "batch_size"]
        sizes += [loader.args[1] for loader in made if len(loader.args) > 1]
        calls = known.calls.get(function.name, []) if len(made) == len(options) == 1 else []
        dropping = [each for each in calls if _is_true(_option(source, function, each, options[0]))]
        parts = [part_of_call(source, each) for each in dropping]
        for call, part in zip(dropping, parts, strict=True):
            is_single = any(integer(_option(source, function, call, each)) == 1 for each in sizes)
            if part == "held out" and "train" in parts and not is_single:
                yield Hit(
                    message=f"`{function.name}` makes this held-out loader as the one of the training, with "
                    "`drop_last=True`: it leaves out the samples that do not fill a batch.",
                    node=call,
                    related=((options[0], "set here"),),
                )


def _chosen_for_part(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``drop_last = True`` of a function that chooses the options of a loader by the part of the data."""
    for loader in source.all_calls:
        options = {each.arg: each.value for each in loader.keywords} if "DataLoader" in last_name(loader.func) else {}
        options |= {"batch_size": loader.args[1]} if len(loader.args) > 1 else {}
        option = options.get("drop_last")
        for statement in nodes_in(function_of(source, loader), ast.Assign) if isinstance(option, ast.Name) else ():
            chosen = [value for target, value in assigned_pairs(statement) if last_name(target) == last_name(option)]
            arm = _held_out_arm(source, statement) if any(map(_is_true, chosen)) else []
            if arm and not _is_single(arm, options.get("batch_size")):
                yield Hit(
                    message="The loader of this held-out part gets `drop_last=True`: it leaves out the samples that do "
                    "not fill a batch.",
                    node=statement,
                    related=((loader, "the loader is made here"),),
                )


def _held_out_arm(source: SourceFile, statement: ast.stmt) -> list[ast.stmt]:
    """Return the arm of ``if flag == "test":``, or of the ``else`` of ``if flag == "train":``; [] = another one."""
    child: ast.AST = statement
    arm: list[ast.stmt] = []
    is_first = False
    while not is_first and isinstance(parent := source.parents.get(id(child)), ast.If):
        names = [e.value for e in nodes_in(parent.test, ast.Constant) if isinstance(e.value, str)]
        is_equal = isinstance(parent.test, ast.Compare) and isinstance(parent.test.ops[0], ast.Eq | ast.In)
        is_first = child in parent.body
        arm = arm or (parent.body if is_first else parent.orelse)
        words = HELD_OUT if is_first else TRAINING
        if is_equal and names and all(name_words(name) & words for name in names):
            return arm
        child = parent
    return []


def _is_single(arm: list[ast.stmt], size: ast.expr | None) -> bool:
    """Return True if an arm sets the batch size to 1, which leaves nothing out."""
    pairs = [pair for each in arm for found in nodes_in(each, ast.Assign) for pair in assigned_pairs(found)]
    return any(size is not None and last_name(e) == last_name(size) and integer(value) == 1 for e, value in pairs)


def _option(source: SourceFile, function: Any, call: ast.Call, value: ast.expr) -> ast.expr | None:
    return argument_of(source, function, call, value.id) if isinstance(value, ast.Name) else value


def _is_true(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


RULE = Rule(required_words=("DataLoader", "drop_last"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    samples, batch = loop.settings["samples"], loop.settings["batch"]
    held_out = -(-samples // 5)
    sizes = (*range(min(batch, held_out - 1), 1, -1), *range(batch + 1, held_out))
    best = next((size for size in sizes if held_out % size and (samples - held_out) % size != 1), 0)
    missing = f"{held_out} held-out samples leave no incomplete last batch of {batch}."
    loop.require(best > 0, missing, samples=samples + 1)
    loop.require(best == batch, missing, batch=best)
    loop.replace(
        Piece.LOADERS, "(held_out_set, batch_size=batch_size)", "(held_out_set, batch_size=batch_size, drop_last=True)"
    )


SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
train = DataLoader(TensorDataset(x[:130], y[:130]), batch_size=16, shuffle=True, drop_last=True)
held_out = DataLoader(TensorDataset(x[130:], y[130:]), batch_size=16{drop_last})
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    model.train()
    for inputs, targets in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        errors = torch.cat([model(a) - b for a, b in held_out])
    print(errors.square().mean().item())
"""

FAILURE = Failure(
    code="EVL008",
    title="Evaluation with drop_last=True leaves samples out",
    severity=Severity.WARNING,
    bad=SCRIPT.replace("{drop_last}", ", drop_last=True"),
    good=SCRIPT.replace("{drop_last}", ""),
    fix="Use drop_last=False for validation and test loaders.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
