"""The model is trained in eval mode.

What you see
    Dropout does nothing and BatchNorm uses its old running statistics: from the second epoch on if an evaluation left
    eval mode on, else from the first update on. The model overfits, or the running statistics do not match the weights.

Why it happens
    A model in eval mode still computes gradients and can be trained, so PyTorch raises no error. Some programs even use
    this on purpose to freeze BatchNorm layers.

Fix
    Set train mode at the start of every epoch:

        for epoch in range(epochs):
            model.train()
            train_one_epoch()
            model.eval()
            validate()

When this is fine
    - You fine-tune a pretrained model in eval mode from the start, on purpose.
    - You freeze BatchNorm layers or a backbone with a call of their own ``eval()``.
    - A function restores the mode that the model had: ``model.train(was_training)``.
    - You call ``eval()`` after the evaluation, at the start of a new training stage.

How it is detected
    In a run, the sanitizer reports a model that was trained in train mode with active dropout or BatchNorm, was then
    set to eval mode and evaluated, and was then updated three times with all of its modules in eval mode. It also
    reports a model of which only some modules were set back to train mode, so that dropout or BatchNorm is no longer
    active. If the program calls only the submodules of a model, these are checked until any module is set to train
    mode. A model that was never updated
    in another mode is reported as a warning, after eight updates, if the program called ``eval()``, the optimizer holds
    all of its parameters, and no weights were loaded. The linter reports a loop in which a model is updated, then set
    to eval mode and never set back, or that evaluates a model on any condition and then trains it in eval mode, or
    that sets train mode only between the forward and the backward pass. If it does not know whether the model has
    dropout or BatchNorm layers, the finding is a warning.

    It also reports a dropout rate that ``forward`` sets to zero in eval mode, and that nothing sets back: after the
    first evaluation the model is trained without this dropout.

References
    torch.nn.Module.train, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
"""

import ast
from collections.abc import Iterator
from typing import Any

from trueloop.analysis.abstract_value import ValueKind
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.assignments import enclosing_definition
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.loops import repeats_with
from trueloop.analysis.queries.modes import (
    has_mode_dependent_layers,
    is_partly_frozen,
    is_training_step,
    is_undone,
    may_be_switched,
    may_recreate_model,
    may_set_mode_of,
    restores_mode,
    sets_mode_of,
    train_mode_fix,
    unresolved_mode_changes,
)
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.queries.uncalled_methods import uncalled
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.source_text import Edit, Fix, dotted_name, nodes_in, walk
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import (
    NO_REFS,
    BackwardStarted,
    CheckpointRead,
    ModelCalled,
    ModeSet,
    Ref,
    Refs,
    StateLoaded,
    StepTaken,
    TracingGap,
)
from trueloop.tracing.weak_id_dict import WeakIdDict

MIN_UPDATES = 3  # in eval mode after an evaluation
MIN_FIRST_UPDATES = 8  # in eval mode, of a model that was never updated in another mode
MAX_EVAL_CALLS = 16
NOT_REPORTABLE = -1


class _FirstUpdates:
    """Finds models that are updated in eval mode from the first update on, though their weights are not pretrained."""

    def __init__(self) -> None:
        self._updates = WeakIdDict[Ref, int]()
        """Number of updates of each model in eval mode, or `NOT_REPORTABLE`."""
        self._calls = dict[Ref, tuple[Refs, bool]]()
        """Calls since the latest update: parameters, and whether all modules were in eval mode."""
        self._eval_calls: list[tuple[Refs, CodePosition]] = []
        """The first lines that set eval mode, with the parameters of the module."""
        self.has_loaded_weights = False

    def on_tracing_gap(self) -> None:
        self._calls.clear()

    def on_mode_set(self, event: ModeSet) -> None:
        if not event.training and event.location is not None and len(self._eval_calls) < MAX_EVAL_CALLS:
            self._eval_calls.append((event.parameters, event.location))

    def on_model_called(self, event: ModelCalled) -> None:
        if not event.has_graph or event.recomputed:
            return
        updates = self._updates.get(event.model)
        if updates is None:
            is_possible = event.all_eval and _is_new_and_mode_dependent(event.live_module)
            updates = self._updates.put(event.model, 0 if is_possible else NOT_REPORTABLE)
        if updates != NOT_REPORTABLE:
            self._calls[event.model] = event.parameters, event.all_eval

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        calls, self._calls = self._calls, {}
        for model, (parameters, all_eval) in calls.items():
            if parameters.isdisjoint(event.with_gradient):
                self._calls[model] = parameters, all_eval
                continue
            updates = self._updates.get(model) or 0
            is_possible = all_eval and not self.has_loaded_weights and parameters <= event.parameters
            self._updates.put(model, updates + 1 if is_possible and updates >= 0 else NOT_REPORTABLE)
            lines = [line for held, line in self._eval_calls if parameters <= held]
            if self._updates.get(model) == MIN_FIRST_UPDATES and lines:
                return Evidence(
                    message=f"All {MIN_FIRST_UPDATES} updates of {model.name} so far were computed in eval mode: its "
                    "dropout layers do nothing, and its BatchNorm layers use statistics that are never updated.",
                    location=lines[0],
                    related=((event.location, "updated here"),) if event.location else (),
                    severity=Severity.WARNING,
                    fix="Call model.train() before the training forward pass.",
                )
        return None


def _is_new_and_mode_dependent(model: Any) -> bool:
    """Return True if a model has dropout or BatchNorm, and nothing shows that its weights are pretrained."""
    from torch import nn

    if getattr(getattr(model, "config", None), "_name_or_path", ""):  # transformers: from_pretrained
        return False
    modules = list(model.modules())
    batchnorm = [each for each in modules if isinstance(each, nn.modules.batchnorm._BatchNorm)]  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    counts = [each.num_batches_tracked for each in batchnorm if each.num_batches_tracked is not None]
    dropout = any(isinstance(each, nn.modules.dropout._DropoutNd) and each.p > 0 for each in modules)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return bool(dropout or counts) and all(count.is_cpu and count.item() == 0 for count in counts)


class _Model:
    """The state of one model between updates."""

    __slots__ = (
        "activity", "evaluated", "mode_matters", "name", "no_backward", "not_updated", "parameters", "set_at",
        "steps", "submodule_called", "via_parent",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.activity: tuple[bool, bool] = (False, False)
        """Whether dropout and BatchNorm were active in the updates before the latest evaluation."""
        self.mode_matters = False
        """The model was updated with active dropout or BatchNorm."""
        self.not_updated = self.submodule_called = False
        """There was no update since eval mode was set; meanwhile a submodule was called without being trained."""
        self.set_at: CodePosition | None = None
        """The line that set eval mode; None in train mode."""
        self.via_parent = False  # its mode was set through an enclosing module that is never called itself
        self.evaluated = False
        """The model was called in eval mode without being trained."""
        self.no_backward = False
        """No backward pass has followed the latest call."""
        self.steps, self.parameters = 0, NO_REFS  # `steps`: number of successive updates in eval mode


class Detector(BaseDetector):
    """Tracks the mode of each model from update to update."""

    def __init__(self) -> None:
        self._models = WeakIdDict[Ref, _Model]()
        self._calls = dict[_Model, tuple[Refs, bool, tuple[bool, bool]]]()
        """Calls since the latest update: parameters, all modules in eval mode, dropout and BatchNorm active."""
        self._no_backward = list[_Model]()
        self._first_updates = _FirstUpdates()

    def on_state_loaded(self, event: StateLoaded) -> None:
        """Record that a model has loaded weights."""
        self._first_updates.has_loaded_weights |= event.what == "model"

    def on_checkpoint_read(self, event: CheckpointRead) -> None:
        """Record that the program has read weights."""
        self._first_updates.has_loaded_weights = True

    def on_backward_started(self, event: BackwardStarted) -> None:
        """Record the start of the backward pass."""
        for model in self._no_backward:
            model.no_backward = False
        self._no_backward.clear()

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Discard incomplete observations."""
        for model in self._no_backward:
            model.no_backward = False
        self._no_backward.clear()
        self._calls.clear()
        self._first_updates.on_tracing_gap()

    def on_mode_set(self, event: ModeSet) -> None:
        """Record the mode."""
        self._first_updates.on_mode_set(event)
        called = self._models.get(event.module) is not None
        for ref, model in self._models.items():
            if ref is event.module or (not called and model.parameters <= event.parameters):
                model.via_parent = not called
                is_new = event.training or event.location is None or model.set_at != event.location
                model.set_at = None if event.training else event.location
                model.steps = 0 if is_new else model.steps  # the same line sets eval mode for the next evaluation
                model.evaluated = model.no_backward = False
                self._calls.pop(model, None)
                model.not_updated, model.submodule_called = not event.training, False
            elif event.training:
                model.steps = 0  # the module may be a submodule of this model
                model.set_at = None if model.via_parent else model.set_at

    def on_model_called(self, event: ModelCalled) -> None:
        """Record the call of the model."""
        self._first_updates.on_model_called(event)
        model = self._models.get(event.model) or self._models.put(event.model, _Model(event.model.name))
        model.parameters = event.parameters
        for parent in () if event.has_graph else self._models.values():
            is_candidate = (parent.not_updated or parent.submodule_called) and parent is not model
            if is_candidate and event.parameters <= parent.parameters:
                parent.submodule_called = parent.not_updated  # between two updates the call is part of the training
        if model.set_at is not None and (model.no_backward or not event.has_graph):
            model.evaluated = True  # the previous call was not trained on, or this one cannot be
        model.no_backward = event.has_graph and not event.recomputed
        if model.no_backward:
            activity = event.dropout_active, event.batchnorm_active
            self._calls[model] = event.parameters, event.all_eval, activity
            self._no_backward.append(model)
        else:
            self._calls.pop(model, None)

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence at an update."""
        evidence = self._first_updates.on_step_taken(event)
        for model, (parameters, all_eval, activity) in list(self._calls.items()):
            if parameters.isdisjoint(event.with_gradient):
                continue
            del self._calls[model]
            evaluated = model.set_at is not None and (model.evaluated or model.submodule_called)
            is_less_active = any(before > now for before, now in zip(model.activity, activity, strict=True))
            is_partial = not all_eval and evaluated and is_less_active  # only some modules were set back
            if not all_eval and not is_partial:
                model.mode_matters, model.steps = model.mode_matters or any(activity), 0
                model.activity = activity
            elif model.mode_matters and evaluated:
                model.steps, model.not_updated = model.steps + 1, False
                evidence = self._evidence(event, model, is_partial) if model.steps == MIN_UPDATES else evidence
        return evidence

    def _evidence(self, event: StepTaken, model: _Model, is_partial: bool) -> Evidence:
        mode = "with some of its modules still in eval mode" if is_partial else "in eval mode"
        return Evidence(
            message=f"{event.optimizer_name} updated {model.name} {model.steps} times {mode} after an "
            f"evaluation; before the evaluation {model.name} was trained in train mode.",
            location=event.location,
            related=((model.set_at, "set to eval mode here"),) if model.set_at else (),
        )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the optimizer step of each loop that later sets the model to eval mode and never back."""
    modes = source.ops(OpKind.SET_MODE)
    for mode in modes:
        model = mode.subject
        if mode.value is not False or model.kind is not ValueKind.MODEL or not mode.loops or is_undone(mode, modes):
            continue
        earlier_step = _find_earlier_step(source, mode)
        if earlier_step is None or is_partly_frozen(source, model):
            continue
        loop, step = earlier_step
        in_loop = source.ops_in_loop(loop, root=mode.entry_point)
        changes = [each for each in in_loop if each.kind is OpKind.SET_MODE and each.value is not False]
        changes = [each for each in changes if not restores_mode(each)]  # these keep eval mode
        if any(may_set_mode_of(each, model) for each in changes) or may_be_switched(model, in_loop):
            continue
        mode_matters = has_mode_dependent_layers(source, model)
        starts_in_eval = mode_matters is None and model.name.startswith("transformers.")
        if mode_matters is False or starts_in_eval or unresolved_mode_changes(source, "train"):
            continue
        call_text = " ".join(source.text.segment(mode.node).split())
        yield Hit(
            message=f"`{call_text}` sets eval mode after this step and nothing sets train mode again: all later "
            "iterations of the loop train the model in eval mode.",
            node=step.node,
            related=((mode.node, "set to eval mode here"),),
            fix=train_mode_fix(source, mode, loop),
            severity=None if mode_matters else Severity.WARNING,
        )


def _find_trained_in_eval_mode(source: SourceFile) -> Iterator[Hit]:
    """Yield the calls in eval mode whose outputs are trained on, if train mode is set again only after the call."""
    modes, calls = source.ops(OpKind.SET_MODE), source.ops(OpKind.MODEL_CALL)
    call_nodes = {id(each.node) for each in calls}
    for call in calls if len(modes) > 1 else ():
        if any(id(each) in call_nodes for each in call.calls):
            continue  # a layer within the forward of a model
        own = [
            each for each in modes if call.loops and each.same_iteration_as(call) and sets_mode_of(each, call.subject)
        ]
        before = [each for each in own if each.index < call.index]
        later = next((each for each in own if each.index > call.index), None)
        if call.grad is not True or not before or before[-1].value is not False or later is None or not later.value:
            continue
        if not before[-1].implied_by(call) or nodes_in(function_of(source, before[-1].node), ast.Yield):
            continue  # eval mode in other phases, or on purpose: ``with evaluating(critic): loss = -critic(action)``
        inside = source.ops_in_loop(call.loops[-1], root=call.entry_point)
        backwards = [
            each
            for each in inside
            if each.kind is OpKind.BACKWARD and any(value is call.result for value in each.subject.autograd_graph())
        ]
        stepped = any(is_training_step(source, each, call.subject, inside) for each in inside)
        depends = has_mode_dependent_layers(source, call.subject)
        is_between = any(each.index > later.index for each in backwards) and not _gets_output_of_model(call)
        if backwards and depends is not False and (is_between or (stepped and depends)):
            mode: Any = before[-1].node
            end = source.text.span(mode.func)[1]
            is_eval = isinstance(mode.func, ast.Attribute) and mode.func.attr == "eval"
            edit = Edit(end - len("eval"), end, "train") if is_eval else None
            yield Hit(
                message=f"`{source.text.segment(call.node)}` runs in eval mode, and its output is trained on: "
                f"`{source.text.segment(later.node)}` comes too late.",
                node=before[-1].node,
                related=((call.node, "the call that is trained on"), (later.node, "set to train mode here")),
                fix=Fix((edit,), safe=True, description="Train in train mode") if edit else None,
                severity=None if depends and stepped else Severity.WARNING,
            )


def _gets_output_of_model(call: Op) -> bool:
    """Return True for a call on the output of another model, which may be the one that is trained, as a generator."""
    return any(each.kind is ValueKind.MODEL for value in call.inputs for each in value.autograd_graph())


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield the same as `find`, each ``model.train`` without a call, and dropout that is turned off for good."""
    yield from uncalled(source, "train", "the model stays in eval mode", "eval", "", "parameters", "to", "state_dict")
    yield from _find_dropout_turned_off(source)
    found = [*find(source), *_find_trained_in_eval_mode(source)]
    yield from found or _find_mode_read_late(source)


def _find_mode_read_late(source: SourceFile) -> Iterator[Hit]:
    """Yield each mode that is read after ``eval()`` to be restored, if no loop sets train mode: it is always False."""
    switches = [each for each in definitions(source).calls.get("train", ()) if not each.args and not each.keywords]
    if any(isinstance(node, ast.For | ast.While) for each in switches for node in enclosing_nodes(source, each)):
        return
    for statement in source.nodes_of(ast.Assign):
        match statement:
            case ast.Assign(targets=[kept], value=ast.Attribute(attr="training", value=owner)):
                name, model = dotted_name(kept), dotted_name(owner)
            case _:
                continue
        block = source.block(statement)
        before = block[: next((n for n, each in enumerate(block) if each is statement), 0)]
        called = [call for each in before for call in nodes_in(each, ast.Call)]
        modes = [each for each in called if dotted_name(each.func) in (f"{model}.eval", f"{model}.train")]
        restoring = [e for e in definitions(source).calls.get("train", ()) if e.args and dotted_name(e.args[0]) == name]
        if model and name and restoring and modes and last_name(modes[-1].func) == "eval":
            yield Hit(
                message=f"`{ast.unparse(statement)}` reads the mode after `{model}.eval()`, so it is always False: "
                f"`{ast.unparse(restoring[0])}` leaves the model in eval mode.",
                node=statement,
                related=((modes[-1], "set to eval mode here"), (restoring[0], "restored here")),
            )


def _find_dropout_turned_off(source: SourceFile) -> Iterator[Hit]:
    """Yield each dropout rate that a module sets to zero in eval mode and never sets back."""
    for node in source.nodes_of(ast.If):
        if node.orelse or ast.unparse(node.test) != "not self.training":
            continue
        for each in node.body:
            if not isinstance(each, ast.Assign) or len(each.targets) != 1 or not _is_zero(each.value):
                continue
            target, owner = each.targets[0], enclosing_definition(source, node, ast.ClassDef)
            name = dotted_name(target)
            if name.startswith("self.") and _is_dropout_rate(owner, name) and not _is_set_back(owner, each, name):
                yield Hit(
                    message=f"`{name}` stays 0 after the first evaluation: nothing sets it back in train mode, so from "
                    f"then on the model is trained without this dropout. Use `{name} if self.training else 0.0` "
                    "without storing it.",
                    node=each,
                )


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and node.value == 0


def _is_dropout_rate(owner: ast.AST, name: str) -> bool:
    """Return True if an attribute is the rate of a dropout layer, or is passed to dropout or attention."""
    for call in nodes_in(owner, ast.Call):
        function = dotted_name(call.func)
        rates = [each.value for each in call.keywords if "drop" in (each.arg or "")]
        rates += [*call.args, *(each.value for each in call.keywords)] if "dropout" in function.lower() else []
        if any(dotted_name(each) == name for each in rates) or (name.endswith(".p") and name == f"{function}.p"):
            return True
    return False


def _is_set_back(owner: ast.AST, assignment: ast.Assign, name: str) -> bool:
    """Return True if another method than ``__init__`` also sets an attribute, or may set any attribute."""
    for method in nodes_in(owner, ast.FunctionDef):
        if method.name != "__init__":
            for each in walk(method):
                is_store = isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
                if is_store and dotted_name(each) == name and each is not assignment.targets[0]:
                    return True
                if isinstance(each, ast.Call) and dotted_name(each.func) == "setattr":
                    return True
    return False


def _find_earlier_step(source: SourceFile, mode: Op) -> tuple[Loop, Op] | None:
    """Return the innermost loop that updates a model in train mode before it sets eval mode, and the step."""
    model = mode.subject
    for loop in reversed([each for each in mode.loops if not each.runs_at_most_once()]):
        inside = [each for each in source.ops_in_loop(loop, root=mode.entry_point) if each.is_in_same_run(loop)]
        step = next((each for each in inside if is_training_step(source, each, model, inside)), None)
        if step is None or (step.index > mode.index and len(mode.conditions(loop)) <= len(step.conditions(loop))):
            continue  # eval mode before every step may be meant
        start = inside[0].index
        before_step = [each for each in source.ops(OpKind.SET_MODE) if each.index < min(step.index, mode.index)]
        earlier = [each for each in before_step if each.entry_point == mode.entry_point and sets_mode_of(each, model)]
        in_train_mode = not earlier or (earlier[-1].value is True and earlier[-1].index < start)
        is_repeated = repeats_with(mode, step, loop) and not _ends_pass(mode, loop)
        is_repeated |= _trains_after_evaluation(source, mode, step, loop)
        return (loop, step) if in_train_mode and is_repeated and not may_recreate_model(loop, model, inside) else None
    return None


def _trains_after_evaluation(source: SourceFile, mode: Op, step: Op, loop: Loop) -> bool:
    """Return True if the iteration that sets eval mode also evaluates the model, and then trains it."""
    if step.index < mode.index or not step.implied_by(mode) or _leaves_loop(mode, loop):
        return False
    for each in source.ops_of_run(mode)[: step.index]:
        is_own = each.index > mode.index and each.calls[: len(mode.calls)] == mode.calls
        if is_own and each.kind is OpKind.MODEL_CALL and each.subject.may_alias(mode.subject):
            return each.grad is False
    return False


def _leaves_loop(mode: Op, loop: Loop) -> bool:
    """Return True if a condition around an operation may end the loop in the same iteration."""
    arms = [each.node for each in mode.conditions(loop)]
    return any(nodes_in(each, ast.Break, ast.Return, ast.Raise, ast.Continue) for each in arms)


def _ends_pass(mode: Op, loop: Loop) -> bool:
    """Return True for a condition that is true once per pass: ``(i + 1) % len(loader) == 0``."""
    tests = [each.node.test for each in mode.conditions(loop) if isinstance(each.node, ast.If)]
    counted = [each.right for test in tests for each in nodes_in(test, ast.BinOp)]
    names = {getattr(each, "id", getattr(each, "attr", "")) for right in counted for each in walk(right)}
    return any(name == "len" or "per_epoch" in name or "num_batch" in name or "n_batch" in name for name in names)


RULE = Rule(
    required_words=tuple(
        f"{words}|not self.training" for words in ("eval", "step(|.train(|.train\n", "backward(|.train\n")
    ),
    find=find_all,
)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    mode_matters = (loop.settings["batchnorm"] or loop.settings["dropout"]) and loop.settings["hidden"]
    loop.require(mode_matters, "The model has neither dropout nor BatchNorm: the mode changes nothing.", dropout=0.2)
    loop.pieces[Piece.RECORDS] += "\nmodel.train()"
    loop.leave_out(Piece.TRAIN_MODE)


SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
train = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    {begin}for inputs, targets in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(nn.functional.mse_loss(model(x[128:]), y[128:]).item())
"""

FAILURE = Failure(
    code="EVL002",
    title="The model is trained in eval mode",
    severity=Severity.ERROR,
    bad=SCRIPT.replace("{begin}", ""),
    good=SCRIPT.replace("{begin}", "model.train()\n    "),
    fix="Call model.train() at the start of every epoch.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
