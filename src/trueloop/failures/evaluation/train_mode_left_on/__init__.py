"""Held-out data is evaluated while the model is in train mode.

What you see
    The validation loss is noisy and too high, and two evaluations of the same weights give different values. With
    BatchNorm layers the loss depends on the batch size, and the running statistics also include the validation samples.

Why it happens
    Train mode is the default and raises no error: dropout stays active, and BatchNorm uses each batch's statistics.

Fix
    Set eval mode before the evaluation and train mode after it:

        model.eval()
        with torch.no_grad():
            losses = [criterion(model(a), b).item() for a, b in held_out]
        model.train()

When this is fine
    - You use Monte Carlo dropout: dropout stays active on purpose, and you predict each sample several times.
    - You iterate over a loader to compute the BatchNorm statistics again, or you iterate over the training loader.
    - The model is a teacher or an average of weights that no optimizer updates.
    - A module with loaded layers is only defined: the program that calls ``predict`` or ``forward`` sets its mode.

How it is detected
    In a run, the sanitizer reports a trained model with dropout that was called once per batch of an evaluation loader,
    up to the end of the loader, with all of its modules in train mode. ``model.training = False`` does not reach the
    layers. It does not report a loader that is read again, or a model that is also called in eval mode, before the next
    update. If the model has only BatchNorm layers, two such passes are needed. Without a DataLoader it reports, as a
    warning, occasional calls without gradients, on samples that the model is not trained on, or after the training; and
    a model with loaded weights that is not trained and is never called in eval mode. The linter reports a model with
    dropout or BatchNorm layers that is trained and then evaluated on another loader without gradients, in a program
    that never sets eval mode, or sets it only before or after a loop that sets train mode, trains and evaluates. It
    also reports a loop that judges a model on held-out batches in a program that trains and sets eval mode in none of
    its files, however it gets the model; ``model.train()`` in a function that only evaluates; ``model.eval`` without
    parentheses; and a method ``train(self, mode=True)`` that calls ``super().train()`` without ``mode``. Calls of a
    model with loaded weights in a method of a module are judged only where the program calls the method. Loaded is also
    what ``load_from_checkpoint`` of Lightning returns, and a pretrained network of torchvision that is called without
    gradients. In a fragment without imports that sets no mode, an evaluation is a note.

References
    torch.nn.Module.eval, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
    PyTorch documentation "Autograd mechanics", section on evaluation mode,
    https://docs.pytorch.org/docs/stable/notes/autograd.html
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.abstract_value import ValueKind
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.evaluation_loops import (
    evaluation_calls,
    find_loader,
    find_training_step,
    has_unused_graph,
    repeats_loader,
)
from trueloop.analysis.queries.modes import (
    eval_mode_fix,
    has_mode_dependent_layers,
    is_in_method_of_module,
    is_in_unused_function,
    is_left_in_train_mode,
    is_network_of_torchvision,
    is_training_step,
    may_be_switched,
    may_set_mode_of,
    sets_mode_of,
    unresolved_mode_changes,
)
from trueloop.analysis.queries.uncalled_methods import uncalled
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Evidence
from trueloop.core.formatting import format_count
from trueloop.core.source_text import Edit, Fix, nodes_in
from trueloop.failures.evaluation.train_mode_left_on.fragments import judged_without_mode
from trueloop.failures.evaluation.train_mode_left_on.judged_outputs import judged_calls
from trueloop.failures.evaluation.train_mode_left_on.never_switched import (
    may_depend_on_mode,
    never_switched,
    train_mode_in_evaluation,
)
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import Ref
from trueloop.tracing.trackers.evaluation_passes import NO_LOADER, EvaluationPass, EvaluationPassesEnded


class Detector(BaseDetector):
    """Checks the mode of the model in every evaluation pass."""

    def __init__(self) -> None:
        self._normalised: Counter[Ref] = Counter()
        """Number of evaluation passes of each model in which BatchNorm was in train mode."""
        self._passes = 0

    def on_evaluation_passes_ended(self, event: EvaluationPassesEnded) -> list[Evidence]:
        """Return evidence at the start of the next update or the end of the run."""
        passes = event.passes
        self._passes += len(passes)
        calls = [call for eval_pass in passes for call in eval_pass.calls]
        in_eval = {call.model for call in calls if not call.training and not call.root_only_eval}
        to_check = [
            eval_pass for eval_pass in passes if not eval_pass.repeated and eval_pass.calls[0].model not in in_eval
        ]
        return [evidence for eval_pass in to_check if (evidence := self._check(eval_pass)) is not None]

    def _check(self, eval_pass: EvaluationPass) -> Evidence | None:
        calls = [call for call in eval_pass.calls if call.model is eval_pass.calls[0].model]
        first = calls[0]
        dropout = all(call.dropout_active for call in calls)
        normalised = all(call.batchnorm_active for call in calls)
        self._normalised[first.model] += normalised
        if not dropout and self._normalised[first.model] < 2:
            return None
        active = " and ".join(name for name, on in (("dropout", dropout), ("BatchNorm", normalised)) if on)
        has_loader = eval_pass.loader is not NO_LOADER
        batch = "held-out batch" if has_loader else "batch"
        reason = ": `training` was set to False on the model alone, not on its layers" if first.root_only_eval else ""
        return Evidence(
            message=f"{first.model.name} was evaluated on {format_count(eval_pass.batches, batch)} in train mode, with "
            f"active {active}{reason}.",
            location=first.location,
            first_update=eval_pass.update,
            severity=None if has_loader else Severity.WARNING,
        )

    def inconclusive(self) -> str:
        """Return the reason if there was no evaluation pass."""
        return "" if self._passes else "no evaluation was traced"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the calls that evaluate a model in train mode on a loader that it is not trained on."""
    reported = set[int]()
    for call in evaluation_calls(source, grad=None):
        if call.grad is not False and not (call.grad is True and has_unused_graph(source, call)):
            continue
        trained = find_training_step(source, call)
        if trained is None or _may_be_in_eval_mode(source, call) or not has_mode_dependent_layers(source, call.subject):
            continue
        reported.add(id(call.node))
        yield _hit(source, call, (trained.node, "trained here"), Severity.WARNING if call.grad else None)
    for call, trained in _judged_after_training(source):
        if id(call.node) not in reported:
            reported.add(id(call.node))
            yield _hit(source, call, (trained.node, "trained here"), Severity.WARNING)
    for call, load in _loaded_only(source):
        if id(call.node) not in reported:
            reported.add(id(call.node))
            yield Hit(
                message=f"`{source.text.segment(call.node.func)}()` runs with active dropout or BatchNorm: a new model "
                "is in train mode, and loading weights does not change that.",
                node=call.node,
                related=((load.node, "the weights are loaded here"),),
                severity=Severity.WARNING,
            )


def _hit(source: SourceFile, call: Op, related: tuple[Any, str], severity: Severity | None = None) -> Hit:
    return Hit(
        message=f"`{source.text.segment(call.node.func)}()` evaluates the model in train mode, with active "
        "dropout or BatchNorm.",
        node=call.node,
        related=(related,),
        fix=eval_mode_fix(source, call) if call.loops and not _trains(source, call) else None,
        severity=severity,
    )


def _trains(source: SourceFile, call: Op) -> bool:
    """Return True if the innermost loop around a call, at any time, also trains, so that it needs train mode then."""
    same = [each for each in source.ops(OpKind.MODEL_CALL) if each.node is call.node and each.loops]
    kinds = OpKind.BACKWARD, OpKind.STEP
    return any(source.ops_in_loop(each.loops[-1], *kinds, root=each.entry_point) for each in same)


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield the same as `find`, and each ``model.eval`` without a call."""
    consequence = "the model stays in train mode"
    hits = list(uncalled(source, "eval", consequence, "train", "", "parameters", "to", "state_dict"))
    hits = hits or list(find(source))
    yield from hits
    yield from _modes_ignored(source)
    for mode, call in () if hits else train_mode_in_evaluation(source):
        hits.append(
            Hit(
                message=f"`{ast.unparse(mode)}` puts the model that `{ast.unparse(call)}` judges into train mode, with "
                "active dropout or BatchNorm.",
                node=mode,
                related=((call, "judged here"),),
                severity=Severity.WARNING,
            )
        )
        yield hits[-1]
    for call in () if hits else never_switched(source):
        yield Hit(
            message=f"`{ast.unparse(call)}` judges the model in train mode, with active dropout or BatchNorm: no file "
            "of the program calls `eval()`.",
            node=call,
            severity=Severity.WARNING,
        )
    for call in () if hits else judged_without_mode(source):
        yield Hit(
            message=f"`{ast.unparse(call)}` judges a model without `eval()`: with dropout or BatchNorm layers, train "
            "mode, which is the default, gives other results.",
            node=call,
            severity=Severity.NOTE,
        )


def _modes_ignored(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``super().train()`` in a method ``train(self, mode=True)`` that never reads ``mode``."""
    for method in source.nodes_of(ast.FunctionDef):
        names = [each.arg for each in (*method.args.posonlyargs, *method.args.args)]
        if method.name != "train" or len(names) != 2 or not isinstance(source.parents.get(id(method)), ast.ClassDef):
            continue
        if any(each.id == names[1] for each in nodes_in(method, ast.Name)):
            continue
        for call in nodes_in(method, ast.Call):
            match call:
                case ast.Call(
                    func=ast.Attribute(attr="train", value=ast.Call(func=ast.Name(id="super"))),
                    args=[] | [ast.Constant(value=True)],
                    keywords=[],
                ):
                    end = source.text.span(call)[1] - 1
                    edits = (Edit(end, end, names[1]),) if not call.args else ()
                    yield Hit(
                        message=f"`{source.text.segment(call)}` ignores `{names[1]}`, so `eval()`, which calls "
                        "`train(False)`, leaves the model in train mode, with active dropout.",
                        node=call,
                        fix=Fix(edits, safe=False, description=f"Pass {names[1]} on") if edits else None,
                        severity=Severity.WARNING,
                    )
                case _:
                    pass


def _judged_after_training(source: SourceFile) -> Iterator[tuple[Op, Op]]:
    """Yield the calls whose outputs are judged in the train mode of the training before, with a step of it."""
    for call in judged_calls(source):
        run = source.ops_of_run(call)
        steps = [each for each in run if is_training_step(source, each, call.subject, run)]
        before = next((each for each in steps if each.index < call.index), None)
        if before is None or _reads_training_data(call, steps) or _may_be_in_eval_mode(source, call):
            continue
        called = [each for each in run if each.kind is OpKind.MODEL_CALL and each.subject.may_alias(call.subject)]
        trained = {id(v) for each in called if each.grad is not False and each is not call for v in each.inputs}
        if any(id(value) in trained for value in call.inputs):
            continue  # the loss of the training batch after its update
        if _repeats_input(source, call) or any(repeats_loader(source, call, each, run) for each in called):
            continue  # Monte Carlo dropout
        depends = has_mode_dependent_layers(source, call.subject)
        is_switched = any(
            each.value is True and sets_mode_of(each, call.subject) for each in run if each.kind is OpKind.SET_MODE
        )
        if depends or (depends is None and is_switched and may_depend_on_mode(source, call.node.func)):
            yield call, before


def _repeats_input(source: SourceFile, call: Op) -> bool:
    """Return True if a loop without training calls a model on the same input in every iteration."""
    parts = [call.node.func, *call.node.args, *(each.value for each in call.node.keywords)]
    return any(
        not source.ops_in_loop(loop, OpKind.STEP, OpKind.BACKWARD, root=call.entry_point)
        and (all(source.is_loop_invariant(each, call, loop) for each in parts) or _ignores_iterations(parts, loop))
        for loop in call.loops
    )


def _ignores_iterations(parts: list[ast.expr], loop: Loop) -> bool:
    """Return True if a comprehension makes an input from the same names each time: ``net(scale(x)) for _ in ...``."""
    if not isinstance(loop.node, ast.comprehension):
        return False
    bound = {each.id for each in nodes_in(loop.node.target, ast.Name)}
    names = [each.id for part in parts for each in nodes_in(part, ast.Name)]
    return bound.isdisjoint(names) and not any(_DRAWS.search(ast.unparse(each)) for each in parts)


def _reads_training_data(call: Op, steps: list[Op]) -> bool:
    """Return True if the loader of an evaluation is the one of the training."""
    loader = find_loader(call.loops[-1]) if call.loops else None
    trained = [found for each in steps for loop in each.loops if (found := find_loader(loop)) is not None]
    return loader is not None and all(any(each.may_alias(t) for t in trained) for each in loader.alternatives())


def _loaded_only(source: SourceFile) -> Iterator[tuple[Op, Op]]:
    """Yield the calls of models that are built, get saved weights and are never set to eval mode, with the loading."""
    pretrained = [each for each in source.ops(OpKind.CREATE) if _is_pretrained(each)]
    loads = [*source.ops(OpKind.LOAD_STATE_DICT), *pretrained]
    if not loads or unresolved_mode_changes(source, "eval"):
        return
    trains = bool(source.ops(OpKind.BACKWARD))
    call_nodes = {id(each.node) for each in source.ops(OpKind.MODEL_CALL)}
    for call in source.ops(OpKind.MODEL_CALL):
        is_layer = any(id(each) in call_nodes for each in call.calls)
        if is_layer or call.subject.kind is not ValueKind.MODEL or (trains and call.grad is not False):
            continue
        before = [each for each in source.operations[: call.index] if each.entry_point in (0, call.entry_point)]
        own = [each for each in before if each in loads and each.subject.may_alias(call.subject)]
        load = next((each for each in own if call.grad is False or each not in pretrained), None)  # or fine-tuned
        if load is not None and trains and _is_copy(load):
            continue  # a teacher, or the target network, of the model in training
        if _is_smoke_test(source, call) or is_in_method_of_module(source, call):
            continue
        if load is not None and _stays_new(source, call, before) and has_mode_dependent_layers(source, call.subject):
            yield call, load


def _is_pretrained(creation: Op) -> bool:
    """Return True for a network of torchvision that is created with the weights of ImageNet."""
    given = creation.arguments.get("weights") or creation.arguments.get("pretrained") or creation.arguments.get("0")
    return given is not None and given.constant(True) not in (None, False) and is_network_of_torchvision(creation.name)


def _is_copy(load: Op) -> bool:
    """Return True for the weights of another model: ``teacher.load_state_dict(student.state_dict())``."""
    return any(last_name(each.func) == "state_dict" for each in nodes_in(load.node, ast.Call))


def _stays_new(source: SourceFile, call: Op, before: list[Op]) -> bool:
    """Return True if a model is built here, and nothing trains it or sets its mode before a call."""
    model = call.subject
    created = any(each.kind is OpKind.CREATE and each.subject.may_alias(model) for each in before)
    changed = any(each.kind is OpKind.SET_MODE and may_set_mode_of(each, model) for each in before)
    run = source.ops_of_run(call)
    trained = any(is_training_step(source, each, model, run) for each in run)
    text = ast.unparse(call.function) if call.function is not None else ""
    samples = _SAMPLING.search(text) is not None or any(not each or "eval" in each for each in call.contexts)
    return created and not changed and not trained and not samples and not may_be_switched(model, before)


def _is_smoke_test(source: SourceFile, call: Op) -> bool:
    """Return True if a program reads nothing but the shape of the output: ``print(model(x).shape)``."""
    parent = source.parents.get(id(call.node))
    if not isinstance(parent, ast.Assign):
        return _is_shape(source, call.node) or isinstance(parent, ast.Expr)
    names = {each.id for target in parent.targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    function = function_of(source, call.node)
    reads = [e for e in nodes_in(function, ast.Name) if e.id in names and function_of(source, e) is function]
    return all(isinstance(each.ctx, ast.Store) or _is_shape(source, each) for each in reads)


def _is_shape(source: SourceFile, node: ast.AST) -> bool:
    """Return True if a program reads only the shape of a value: ``x.shape``, ``x.data.shape``, ``x[0].size()``."""
    parent = source.parents.get(id(node))
    if isinstance(parent, ast.Subscript) and parent.value is node:
        return _is_shape(source, parent)
    if isinstance(parent, ast.Attribute) and parent.attr == "data":
        return _is_shape(source, parent)
    if isinstance(parent, ast.Call) and getattr(parent.func, "id", "") == "enumerate":
        return _is_shape(source, parent)
    if isinstance(parent, ast.For) and parent.iter is node:
        part = parent.target.elts[-1] if isinstance(parent.target, ast.Tuple) else parent.target
        reads = [e for e in nodes_in(parent, ast.Name) if e.id == getattr(part, "id", "") and e is not part]
        return bool(reads) and all(_is_shape(source, each) for each in reads)
    return isinstance(parent, ast.Attribute) and parent.attr in ("shape", "size", "ndim", "dim", "dtype", "device")


_DRAWS: Final = re.compile(r"next|rand|sampl|batch|iter", re.IGNORECASE)
"""Words of calls that may draw another batch each time."""
_SAMPLING: Final = re.compile(r"monte|mc_|uncertain|\.std\(|\.var\(", re.IGNORECASE)
"""Words of code that samples with active dropout."""


def _may_be_in_eval_mode(source: SourceFile, call: Op) -> bool:
    """Return True if the model or a submodule may be in eval mode, or other code may set the mode."""
    elsewhere = unresolved_mode_changes(source, "eval")
    entry_points = (0, call.entry_point)
    modes = [each for each in source.ops(OpKind.SET_MODE) if each.value is not True]
    elsewhere += [each.node for each in modes if each.entry_point not in entry_points]
    if not all(is_in_unused_function(source, node) for node in elsewhere):
        return True
    if may_be_switched(call.subject, [each for each in source.operations if each.entry_point in entry_points]):
        return True
    set_here = any(may_set_mode_of(each, call.subject) for each in modes if each.entry_point in entry_points)
    return set_here and not is_left_in_train_mode(source, call)


_LOADS: Final = "load_state_dict|load_from_checkpoint|pretrained=True|weights="
RULE = Rule(
    required_words=tuple(
        f"{words}|{_LOADS}|.eval\n|.eval  #|super().train(|no_grad&oader|inference_mode&oader"
        for words in (
            "backward",
            "step(",
            "no_grad|inference_mode|set_grad_enabled|DataLoader|.detach()|.data",
        )
    ),
    find=find_all,
)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    loop.replace(Piece.EVALUATION, "    model.eval()\n", "")
    mode_matters = (loop.settings["batchnorm"] or loop.settings["dropout"]) and loop.settings["hidden"]
    loop.require(mode_matters, "The model has neither dropout nor BatchNorm: the mode changes nothing.", dropout=0.2)


SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
train = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(x[128:], y[128:]), batch_size=16)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
{train_mode}    for inputs, targets in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
{eval_mode}    with torch.no_grad():
        losses = [nn.functional.mse_loss(model(a), b).item() for a, b in held_out]
    print(sum(losses) / len(losses))
"""

FAILURE = Failure(
    code="EVL001",
    title="The model is evaluated in train mode",
    severity=Severity.ERROR,
    bad=SCRIPT.replace("{train_mode}", "").replace("{eval_mode}", ""),
    good=SCRIPT.replace("{train_mode}", "    model.train()\n").replace("{eval_mode}", "    model.eval()\n"),
    fix="Call model.eval() before the evaluation and model.train() after it.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
