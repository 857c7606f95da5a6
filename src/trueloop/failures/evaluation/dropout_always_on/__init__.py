"""Functional dropout stays active in eval mode because it does not get ``training=self.training``.

What you see
    Predictions of a model in eval mode differ from call to call, and the validation loss is too high.

Why it happens
    ``torch.nn.functional.dropout`` is a function, and its argument ``training`` is True by default. ``model.eval()``
    changes modules only, so it has no effect on the function. ``F.batch_norm(..., training=True)`` normalises by the
    batch in eval mode too, and never reads the running statistics that it gets.

Fix
    Pass the mode of the module, or use ``nn.Dropout``:

        x = F.dropout(x, 0.3)  # wrong
        x = F.dropout(x, 0.3, training=self.training)  # right

When this is fine
    - You use Monte Carlo dropout: you predict each sample several times with different dropout masks.
    - The call has a condition, or a submodule is left in train mode on purpose.
    - You want dropout in eval mode too, as in Tacotron 2 and pix2pix. Then write ``training=True``.
    - Batches normalise in an evaluation on purpose, as in meta-learning and test-time adaptation.

How it is detected
    In a run, the sanitizer reports a call of ``dropout``, ``dropout1d``, ``dropout2d`` or ``dropout3d`` without
    ``training`` and with a rate above 0, if the module made the same call in train mode before and the full model is
    now in eval mode. The model must be called once per batch of an evaluation loader, with no more values per batch
    than in training. Not checked: evaluation without a DataLoader, compiled models, other functions. The linter reports
    the same, unless the file reads ``training`` elsewhere, and a ``dropout_p`` above 0 of
    ``scaled_dot_product_attention`` in a method that does not. If no evaluation over a DataLoader is found, the finding
    is a note, unless the program makes its batches by hand, calls ``eval()``, and has no word of Monte Carlo dropout.
    It also finds ``F.batch_norm`` with the constant ``training=True`` and running statistics that a module stores, in
    a program that calls ``eval()``.

References
    torch.nn.functional.dropout, https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.dropout.html
    Gal and Ghahramani, "Dropout as a Bayesian Approximation", 2016, https://arxiv.org/abs/1506.02142
    Shen et al., "Natural TTS Synthesis by Conditioning WaveNet on Mel Spectrogram Predictions", 2018,
    https://arxiv.org/abs/1712.05884
    Isola et al., "Image-to-Image Translation with Conditional Adversarial Networks", 2017,
    https://arxiv.org/abs/1611.07004
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, NamedTuple

from trueloop.analysis.abstract_value import ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.evaluation_loops import evaluation_calls, find_training_step
from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.loops import is_inside
from trueloop.analysis.queries.modes import is_in_eval_mode
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import format_count
from trueloop.core.source_text import Edit, Fix, nodes_in, walk
from trueloop.failures.evaluation.dropout_always_on.batch_norm_in_train_mode import batch_norms_in_train_mode
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import BatchLoaded, Event, ModelCalled, Ref, TracingGap
from trueloop.tracing.trackers.evaluation_passes import EvaluationPass, EvaluationPassesEnded

_MONTE_CARLO: Final = re.compile(r"(?i)monte|\bmc_?|mc_?drop|uncertain|bayes|stochastic_pass|n_samples")
FUNCTIONS: Final = frozenset(f"torch.nn.functional.dropout{suffix}" for suffix in ("", "1d", "2d", "3d"))


def unflagged_dropouts(source: SourceFile) -> Iterator[tuple[Op, Any]]:
    """Yield each unconditional call of functional dropout without ``training`` in a method, with the method."""
    for each in source.ops(OpKind.TORCH_CALL):
        if each.name not in FUNCTIONS or not isinstance(each.node, ast.Call):
            continue
        rate = each.arguments.get("p") or each.arguments.get("1")
        has_flag = {"training", "2", "**"} & each.arguments.keys() or any(
            isinstance(argument, ast.Starred) for argument in each.node.args
        )
        method = each.function
        if has_flag or (rate is not None and rate.constant() == 0) or not isinstance(method, ast.FunctionDef):
            continue
        is_plain = method.args.args and not method.decorator_list and _is_method(source, method)
        if is_plain and not _is_conditional(method, each.node):
            yield each, method


def _is_method(source: SourceFile, method: ast.FunctionDef) -> bool:
    return any(
        each.bases and any(method is statement for statement in each.body) for each in source.nodes_of(ast.ClassDef)
    )


def _is_conditional(method: ast.FunctionDef, node: ast.Call) -> bool:
    """Return True if a call in a method may be skipped or repeated."""
    tests = ast.If | ast.IfExp | ast.While | ast.BoolOp | ast.comprehension | ast.Lambda
    conditional_nodes = [each for each in walk(method) if isinstance(each, tests | ast.ListComp | ast.GeneratorExp)]
    may_return_before = any(each.lineno < node.lineno for each in nodes_in(method, ast.Return))
    return may_return_before or any(is_inside(node, each) for each in conditional_nodes)


def find_evaluation(source: SourceFile, dropout: Op) -> Op | None:
    """Return the call that evaluates a trained model with this dropout in eval mode on a loader."""
    if _reads_training_flag(source):
        return None
    for call in evaluation_calls(source, grad=None):
        path = (*call.calls, call.node)
        if (
            dropout.entry_point != call.entry_point
            or dropout.calls[: len(path)] != path
            or dropout.branches != call.branches
        ):
            continue
        in_layers = all(
            each.iterable is not None and each.iterable.kind is ValueKind.MODEL
            for each in dropout.loops[len(call.loops) :]
        )
        gets_batch = bool(call.inputs) and call.inputs[0].name == "batch"
        if in_layers and gets_batch and is_in_eval_mode(source, call) and find_training_step(source, call) is not None:
            return call
    return None


def _reads_training_flag(source: SourceFile) -> bool:
    """Return True if code outside the arguments of dropout reads ``training``: it may turn the dropout off."""
    arguments = {id(inner) for call in source.calls_of(*FUNCTIONS) for inner in walk(call)}
    return any(each.attr == "training" and id(each) not in arguments for each in source.nodes_of(ast.Attribute))


def pass_training_flag(source: SourceFile, node: ast.Call, method: ast.FunctionDef, *, safe: bool) -> Fix | None:
    """Return the fix that adds ``training=self.training`` as the last argument."""
    last = max([*node.args, *(each.value for each in node.keywords)], key=lambda each: (each.lineno, each.col_offset))
    end, close = source.text.span(last)[1], source.text.span(node)[1]
    if not re.fullmatch(rb"\s*,?\s*(#[^\n]*\s*)*\)", source.text.content[end:close]):
        return None
    edit = Edit(end, end, f", training={method.args.args[0].arg}.training")
    return Fix((edit,), safe=safe, description="Pass training=self.training")


@dataclass(slots=True, kw_only=True, eq=False)
class DropoutWithoutTrainingFlag(Event):
    """The forward of a module called functional dropout without a ``training`` argument.

    Emitted at each such call, before the `ModelCalled` of the model. Calls under a condition are left out.
    """

    module: Ref
    training: bool
    """Whether the module is in train mode."""
    function: str
    """Name of the function: "dropout", "dropout1d", "dropout2d", "dropout3d"."""
    probability: float
    input_elements: int
    """Number of elements in the input of the dropout."""
    input_repeated: bool
    """Whether the same line got the same tensor in its previous call, as in Monte Carlo sampling."""


Call = tuple[Ref, CodePosition | None]
"""A module and a line in its forward."""


class _ActiveDropout(NamedTuple):
    """A dropout call in a model in eval mode."""

    event: DropoutWithoutTrainingFlag
    several: bool
    """The call got more values than in train mode: the program predicts several times on purpose."""


class Detector(BaseDetector):
    """Finds active dropout in every evaluation pass of a model in eval mode."""

    def __init__(self) -> None:
        self._current: list[DropoutWithoutTrainingFlag] = []
        """Dropout calls in the current forward pass."""
        self._has_dropout = False
        """The program calls dropout without ``training``, so the values of each batch have to be counted."""
        self._batch = 0
        """Number of values in the largest tensor of the latest batch."""
        self._trained: dict[Call, Fraction] = {}
        """Dropout call -> largest ratio of its number of values to the batch's number of values, in train mode."""
        self._active_in_eval: dict[tuple[Ref, Ref], dict[Call, _ActiveDropout]] = {}  # by loader and model
        self._passes = 0

    def on_batch_loaded(self, event: BatchLoaded) -> None:
        """Record the batch."""
        if self._has_dropout:
            self._batch = _max_elements(event.batch, sys.modules["torch"].Tensor)

    def on_dropout_without_training_flag(self, event: DropoutWithoutTrainingFlag) -> None:
        """Record the dropout call."""
        self._has_dropout = True
        self._current.append(event)

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Discard incomplete observations."""
        self._current = []

    def on_evaluation_passes_ended(self, event: EvaluationPassesEnded) -> list[Evidence] | None:
        """Return evidence at the start of the next update or the end of the run."""
        return self._check_passes([*event.passes, *event.left_early])

    def _check_passes(self, passes: Sequence[EvaluationPass]) -> list[Evidence]:
        self._passes += len(passes)
        found = [evidence for eval_pass in passes if not eval_pass.repeated for evidence in self._check_pass(eval_pass)]
        loaders = {eval_pass.loader for eval_pass in passes}
        self._active_in_eval = {key: calls for key, calls in self._active_in_eval.items() if key[0] not in loaders}
        return found

    def on_model_called(self, event: ModelCalled) -> None:
        """Record the call of the model."""
        if not self._current:  # the usual case
            return
        current, self._current = self._current, []
        calls: dict[Call, list[DropoutWithoutTrainingFlag]] = {}
        for each in current:
            calls.setdefault((each.module, each.location), []).append(each)
        if not self._batch:
            return
        for call, events in calls.items():
            ratio = Fraction(sum(each.input_elements for each in events), self._batch)
            if all(each.training for each in events):
                self._trained[call] = max(ratio, self._trained.get(call, ratio))
            elif event.all_eval and event.loader is not None and call in self._trained:
                several = ratio > self._trained[call] or any(each.input_repeated for each in events)
                active = self._active_in_eval.setdefault((event.loader, event.model), {})
                active[call] = _ActiveDropout(events[0], several or (call in active and active[call].several))

    def _check_pass(self, eval_pass: EvaluationPass) -> list[Evidence]:
        return [
            Evidence(
                message=f"{event.function} with p={event.probability:g} was active in {event.module.name}, although it "
                f"was in eval mode: {model.name} was evaluated on "
                f"{format_count(eval_pass.batches, 'held-out batch')} with dropout.",
                location=event.location,
                first_update=eval_pass.update,
            )
            for model in eval_pass.models
            if all(call.all_eval for call in eval_pass.calls if call.model is model)
            for event, several in self._active_in_eval.get((eval_pass.loader, model), {}).values()
            if not several
        ]

    def inconclusive(self) -> str:
        """Return the reason if there was no evaluation pass."""
        return "" if self._passes else "no evaluation pass over a DataLoader was traced"


def _max_elements(batch: Any, tensor: type[Any], depth: int = 3) -> int:
    """Return the number of values in the largest tensor of a batch; evaluation batches may have no targets."""
    if isinstance(batch, tensor):
        return batch.numel()
    if not depth:
        return 0
    parts: Any = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return max([_max_elements(each, tensor, depth - 1) for each in parts], default=0)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield functional dropout without ``training``, and attention with a dropout that does not depend on it."""
    yield from batch_norms_in_train_mode(source)
    dropouts = [(each, method, find_evaluation(source, each)) for each, method in unflagged_dropouts(source)]
    is_evaluated = _is_evaluated(source)
    by_hand = is_evaluated and not any("DataLoader" in each.text.source for each in source.modules)
    for each, method, call in sorted(dropouts, key=lambda dropout: dropout[2] is None):
        yield Hit(
            message=f"`{source.text.segment(each.node.func)}()` is active in eval mode too: it does not get "
            "`training=self.training`.",
            node=each.node,
            related=((call.node, "evaluated here in eval mode"),) if call else (),
            fix=pass_training_flag(source, each.node, method, safe=call is not None),
            severity=None if call or by_hand else Severity.NOTE,
        )
    for each in source.all_calls if is_evaluated else ():
        if last_name(each.func) == "scaled_dot_product_attention":
            yield from _attention_dropout(source, each)


def _is_evaluated(source: SourceFile) -> bool:
    """Return True if the program puts a model into eval mode, and nothing hints at Monte Carlo dropout."""
    if _reads_training_flag(source) or any(_MONTE_CARLO.search(each.text.source) for each in source.modules):
        return False
    calls = (call.func for each in source.modules for call in nodes_in(each.tree, ast.Call) if not call.args)
    return any(isinstance(each, ast.Attribute) and each.attr == "eval" for each in calls)


def _attention_dropout(source: SourceFile, call: ast.Call) -> Iterator[Hit]:
    """Yield the dropout of an attention in a method that does not read ``self.training``."""
    rate = argument_node(call, "dropout_p", 4)
    method: Any = function_of(source, call)
    if not isinstance(rate, ast.Constant | ast.Attribute) or not isinstance(method, ast.FunctionDef):
        return
    values = [each.value for each in origins(source, rate) if isinstance(each, ast.Constant)]
    if not _is_method(source, method) or "training" in ast.unparse(method) or 0 in values:
        return
    name = method.args.args[0].arg if method.args.args else "self"
    edit = source.text.replace(rate, f"{ast.unparse(rate)} if {name}.training else 0.0")
    yield Hit(
        message=f"`dropout_p={ast.unparse(rate)}` is active in eval mode too: a function does not know the mode of its "
        "module.",
        node=rate,
        fix=Fix((edit,), safe=False, description="Drop nothing in eval mode"),
    )


RULE = Rule(required_words=("functional|scaled_dot|batch_norm(", "ropout|dropout_p|batch_norm(", "forward"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    loop.require(bool(loop.settings["dropout"] and loop.settings["hidden"]), "There is no dropout.", dropout=0.2)
    loop.replace(Piece.MODEL, "self.dropout(x)", f"nn.functional.dropout(x, {loop.settings['dropout']!r})")


SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        x = torch.relu(self.inner(x))
        return self.head(nn.functional.dropout(x, 0.3{training}))


x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
train = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(x[128:], y[128:]), batch_size=16)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    model.train()
    for inputs, targets in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        losses = [nn.functional.mse_loss(model(a), b).item() for a, b in held_out]
    print(sum(losses) / len(losses))
"""

FAILURE = Failure(
    code="EVL004",
    title="Functional dropout ignores eval mode",
    severity=Severity.WARNING,
    bad=SCRIPT.replace("{training}", ""),
    good=SCRIPT.replace("{training}", ", training=self.training"),
    fix="Pass training=self.training, or use nn.Dropout.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
