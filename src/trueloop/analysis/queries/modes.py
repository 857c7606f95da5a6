"""Finds the models that depend on train or eval mode, and the operations that set the mode."""

import ast
import re
from collections.abc import Iterable
from typing import Any, Final

from trueloop.analysis.abstract_value import SUBMODULE, WRAPPER, AbstractValue, ValueKind
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.loops import assigned_names, is_inside, is_statement
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.queries.shuffled_loaders import argument_of
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import Fix, dotted_name, encloses, nodes_in

_DROPOUT: Final = ("Dropout", "AlphaDropout", "FeatureAlphaDropout")
_BATCH_NORMS: Final = ("BatchNorm", "SyncBatchNorm", "LazyBatchNorm")
_WITH_DROPOUT: Final = ("LSTM", "GRU", "RNN", "MultiheadAttention")
_NETWORKS: Final = (
    "resnet", "densenet", "mobilenet", "efficientnet", "inception", "googlenet", "resnext", "wide_resnet", "shufflenet",
    "mnasnet", "regnet", "vgg", "alexnet", "squeezenet",
)  # fmt: skip
"""Torchvision models with dropout or BatchNorm layers."""
MODE_DEPENDENT: Final = "ropout|BatchNorm|Transformer|LSTM|GRU|RNN|MultiheadAttention|torchvision"
"""Pattern that occurs in every file with a model that certainly has mode-dependent layers."""
_KEEPS_MODE: Final = re.compile(
    r"(^|_)(build|create|make|get|optim|optimizers?|ema|summary|count|num|params?|save|checkpoint|ckpt|early|stopp?(er|ing)?|"
    r"log|logger|watch|flops|profile|print|wrap|parallel|init|initialize|schedulers?|device|clip|step|dump|add_graph)"
    r"(_|$)|Optim|Stop|EMA|Ema|Meter|Scheduler|Saver|Logger"
)
"""Names of functions that get a model and do not change its mode."""
_MODULE_HOLDERS: Final = (
    ValueKind.MODEL, ValueKind.SEQUENCE, ValueKind.INSTANCE, ValueKind.FUNCTION, ValueKind.UNKNOWN,
)  # fmt: skip
_TORCH_NN: Final = "torch.nn."
_FUNCTIONS: Final = tuple(f"torch.nn.functional.dropout{kind}" for kind in ("", "1d", "2d", "3d"))


def sets_mode_of(mode: Op, model: AbstractValue) -> bool:
    """Return True if an operation sets the mode of a complete model."""
    return any(mode.subject.may_alias(each) for each in model.with_enclosing_modules())


def restores_mode(mode: Op) -> bool:
    """Return True for an operation that restores the mode a model had: ``model.train(was_training)``."""
    given = mode.arguments.get("mode") or mode.arguments.get("0")
    return mode.value is None and given is not None and getattr(given.node, "attr", "") == "training"


def _was_read_after(mode: Op, restored: Op) -> bool:
    """Return True if the mode that an operation restores was read after another operation had changed it.

    ``model.eval(); was_training = model.training; ...; model.train(was_training)`` restores eval mode.
    """
    given = restored.arguments.get("mode") or restored.arguments.get("0")
    read: Any = None if given is None else given.node
    return mode.function is not None and encloses(mode.function, read) and mode.node.lineno < read.lineno


def is_undone(mode: Op, operations: Iterable[Op]) -> bool:
    """Return True if a later operation of the same function call restores the mode that an operation changes."""
    return any(
        restores_mode(each)
        and not _was_read_after(mode, each)
        and each.index > mode.index
        and each.calls == mode.calls
        and each.subject.may_alias(mode.subject)
        and not each.excludes(mode)
        for each in operations
        if each.kind is OpKind.SET_MODE
    )


def may_be_switched(model: AbstractValue, operations: Iterable[Op]) -> bool:
    """Return True if code outside the file gets a model and may set its mode.

    Building an optimizer, counting parameters and saving do not change the mode.
    """
    for each in operations:
        if each.kind is not OpKind.ESCAPE or _KEEPS_MODE.search(_last_called(each.node)):
            continue
        if any(
            passed.kind in _MODULE_HOLDERS and (passed.may_alias(model) or passed.covers(model))
            for passed in each.inputs
        ):
            return True
    return False


def _last_called(node: Any) -> str:
    function = getattr(node, "func", None)
    return dotted_name(function).rpartition(".")[2] if function is not None else ""


def may_set_mode_of(mode: Op, model: AbstractValue) -> bool:
    """Return True if an operation may set the mode of a model or a submodule."""
    return not mode.subject.models() or mode.subject.covers(model) or model.covers(mode.subject)


def unresolved_mode_changes(source: SourceFile, method: str) -> list[ast.expr]:
    """Return the mode changes of unknown models: calls of a method, and assignments ``module.training = ...``."""
    assigned: list[ast.expr] = [
        each
        for each in (source.nodes if ".training" in source.text.source else ())
        if isinstance(each, ast.Attribute) and each.attr == "training" and isinstance(each.ctx, ast.Store)
    ]
    called = [call for call in source.all_calls if isinstance(call.func, ast.Attribute) and call.func.attr == method]
    if not called:
        return assigned
    resolved = {id(each.node) for each in source.ops(OpKind.SET_MODE)}
    resolved |= {id(call) for each in source.operations for call in each.calls}
    kept = {  # was_training = model.training
        target.id
        for each in source.nodes_of(ast.Assign)
        if getattr(each.value, "attr", "") == "training"
        for target in each.targets
        if isinstance(target, ast.Name)
    }
    unresolved = [call for call in called if id(call) not in resolved]
    return assigned + [call for call in unresolved if not (call.args and getattr(call.args[0], "id", "") in kept)]


def is_in_unused_function(source: SourceFile, node: Any) -> bool:
    """Return True for a node in a function whose name does not occur anywhere else in the file."""
    for each in source.tree.body:
        if isinstance(each, ast.FunctionDef) and is_inside(node, each):
            names_and_strings = (getattr(other, "id", getattr(other, "value", None)) for other in source.nodes)
            return not each.decorator_list and each.name not in names_and_strings
    return False


def is_in_method_of_module(source: SourceFile, call: Op) -> bool:
    """Return True in a method of a module that only other files call: they may set the mode of the module before.

    A class with a base class of a library may be a module, or may set the mode.
    """
    if any(isinstance(each.node, ast.FunctionDef) for each in call.subject.with_enclosing_modules()):
        return True  # an instance that no call in the file creates
    method = call.calls[0] if call.calls else None
    owner = source.parents.get(id(method)) if isinstance(method, ast.FunctionDef) else None
    return isinstance(owner, ast.ClassDef) and _is_derived_from_library(source, owner, 0)


def _is_derived_from_library(source: SourceFile, owner: ast.ClassDef, depth: int) -> bool:
    for base in owner.bases:
        known = next((each for each in source.nodes_of(ast.ClassDef) if each.name == dotted_name(base)), None)
        if known is None and dotted_name(base).rpartition(".")[2] not in ("object", "ABC", "Protocol", "Generic"):
            return True
        if known is not None and depth < 5 and _is_derived_from_library(source, known, depth + 1):
            return True
    return False


def is_left_in_train_mode(source: SourceFile, call: Op) -> bool:
    """Return True if a model that was trained is certainly still in train mode when it is called.

    False if every iteration sets eval mode later: the call may then need train mode, for example to estimate BatchNorm
    statistics again.
    """
    run = source.ops_of_run(call)
    modes = [each for each in run if each.kind is OpKind.SET_MODE and may_set_mode_of(each, call.subject)]
    if _is_put_back(call, modes):
        return True
    for mode in (each for each in modes if each.value is True and sets_mode_of(each, call.subject)):
        loops = zip(mode.loops, (*call.loops, *mode.loops), strict=False)
        if mode.index > call.index or not mode.implied_by(call) or any(a is not b for a, b in loops):
            continue
        iteration = [each for each in run if all(each.is_inside(loop) for loop in mode.loops)]
        trained = any(
            is_training_step(source, each, call.subject, run)
            for each in iteration
            if mode.index < each.index < call.index
        )
        changed = (each for each in modes if each.value is not True and each.index > mode.index)
        if trained and not any(each in iteration or each.index < call.index for each in changed):
            return True
    return False


def _is_put_back(call: Op, modes: list[Op]) -> bool:
    """Return True if each function that sets eval mode before a call sets train mode again and returns.

    Code that sets train mode and then calls the model may want active dropout.
    """
    changed = [each for each in modes if each.value is not True]
    restored = [
        each
        for each in modes
        if each.value is True and sets_mode_of(each, call.subject) and call.calls[: len(each.calls)] != each.calls
    ]
    return all(
        any(
            mode.index < each.index < call.index
            and each.calls == mode.calls
            and each.implied_by(mode)
            and [id(loop) for loop in each.loops] == [id(loop) for loop in mode.loops[: len(each.loops)]]
            for each in restored
        )
        for mode in changed
    )


def is_in_eval_mode(source: SourceFile, call: Op) -> bool:
    """Return True if the complete model is in eval mode when it is called."""
    model = call.subject
    modes = [
        each
        for each in source.ops(OpKind.SET_MODE)
        if each.entry_point == call.entry_point and may_set_mode_of(each, model)
    ]
    if any(each.value is not False and not sets_mode_of(each, model) for each in modes):
        return False  # the mode of a submodule is set separately
    before = [each for each in modes if each.index < call.index and sets_mode_of(each, model)]
    return bool(before) and before[-1].value is False and before[-1].branches == call.branches


def is_training_step(source: SourceFile, step: Op, model: AbstractValue, operations: Iterable[Op]) -> bool:
    """Return True for a step that updates a model, if a backward pass among the operations goes through the model."""
    if step.kind is not OpKind.STEP or step.subject.kind is not ValueKind.OPTIMIZER:
        return False
    if step.subject.models() and not step.subject.covers(model):
        return False
    return any(each.kind is OpKind.BACKWARD and source.reaches(each, model) for each in operations)


def is_partly_frozen(source: SourceFile, model: AbstractValue) -> bool:
    """Return True if the file disables gradients of a model or a submodule anywhere."""
    return any(
        each.value is not True and (model.covers(each.subject) or each.subject.covers(model))
        for each in source.ops(OpKind.SET_REQUIRES_GRAD)
    )


def may_recreate_model(loop: Loop, model: AbstractValue, inside: Iterable[Op]) -> bool:
    """Return True if each iteration of a loop may create another model."""
    functions = {id(each.function): each.function for each in inside if each.function is not None}
    called = [each for each in functions.values() if not encloses(each, loop.node)]
    scopes, nodes = (loop.node, *called), [each.node for each in model.alternatives()]
    if any(scope is not node and encloses(scope, node) for node in nodes for scope in scopes):
        return True
    return any(
        (each.kind is OpKind.CREATE and each.subject.may_alias(model))
        or (each.kind is OpKind.SET_ATTRIBUTE and any(value.may_alias(model) for value in each.inputs))
        for each in inside
    )


def train_mode_fix(source: SourceFile, mode: Op, loop: Loop) -> Fix | None:
    """Return the fix that sets train mode at the start of each iteration, or before the inner loop over batches."""
    call = next(
        (
            each
            for each in source.ops_in_loop(loop, OpKind.MODEL_CALL, root=mode.entry_point)
            if each.subject.may_alias(mode.subject)
        ),
        None,
    )
    nearest: Any = call.loops[-1].node if call and call.loops else None
    text = dotted_name(call.node.func) if call else ""
    if call is None or nearest is None or not is_statement(nearest) or not is_inside(call.node, nearest):
        return None
    if not text or text.partition(".")[0] in assigned_names(nearest):
        return None
    edit = source.text.insert_before(nearest.body[0] if nearest is loop.node else nearest, f"{text}.train()")
    return Fix((edit,), safe=True, description=f"Insert {text}.train()") if edit else None


def eval_mode_fix(source: SourceFile, call: Op) -> Fix | None:
    """Return the fix that sets eval mode before the loop or statement of an evaluation, and train mode after it."""
    loop, text = call.loops[-1].node, dotted_name(call.node.func)
    if is_statement(loop) and is_inside(call.node, loop):
        statement = loop
    elif isinstance(call.statement, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr):
        statement = call.statement
    else:
        return None
    if not text or text.partition(".")[0] in assigned_names(loop) or not is_inside(call.node, statement):
        return None
    before, after = (
        source.text.insert_before(statement, f"{text}.eval()"),
        source.text.insert_after(statement, f"{text}.train()"),
    )
    description = f"Insert {text}.eval() and {text}.train()"
    return Fix((before, after), safe=True, description=description) if before and after else None


def has_mode_dependent_layers(source: SourceFile, model: AbstractValue) -> bool | None:
    """Return whether a model has dropout or BatchNorm layers; None if unknown."""
    return _depends_on_mode(source, model, set())


def _depends_on_mode(source: SourceFile, model: AbstractValue, seen: set[int]) -> bool | None:
    if id(model) in seen:
        return False
    seen.add(id(model))
    alternatives = list(model.alternatives())
    if len(alternatives) > 1:
        answers = {_depends_on_mode(source, each, seen) for each in alternatives}
        return True if answers <= {True, None} and True in answers else answers.pop() if len(answers) == 1 else None
    model = alternatives[0]
    if model.facts & {WRAPPER, SUBMODULE} and model.sources:
        owner = _depends_on_mode(source, model.sources[0], seen)
        return owner if WRAPPER in model.facts or owner is False else None  # an unknown part, or a method
    if isinstance(model.scope, AbstractValue):
        return _class_depends(source, model, model.scope, seen)
    if model.name.startswith(_TORCH_NN):
        return _torch_layer_depends(source, model, model.name.removeprefix(_TORCH_NN), seen)
    return True if is_network_of_torchvision(model.name) else None


def is_network_of_torchvision(name: str) -> bool:
    """Return True for the full name of a function of torchvision that creates a network which depends on the mode."""
    package, _, last = name.rpartition(".")
    return package.startswith("torchvision.models") and last.startswith(_NETWORKS)


def _torch_layer_depends(source: SourceFile, model: AbstractValue, name: str, seen: set[int]) -> bool | None:
    if name == "Module" or name.startswith(_BATCH_NORMS):
        return None if name == "Module" else True  # None = one of several classes
    if name.startswith(_DROPOUT):
        return _has_dropout(model, "p", "0", default=0.5)
    if name.startswith("Transformer"):
        return _has_dropout(model, "dropout", "", default=0.1)
    if name in _WITH_DROPOUT:
        return _has_dropout(model, "dropout", "", default=0.0)
    argument_count = len(getattr(model.node, "args", ())) + len(getattr(model.node, "keywords", ()))
    is_container = name in ("Sequential", "ModuleList", "ModuleDict")
    if is_container and argument_count:
        written_out = _gets_layers_of_functions(source, model.node) or _creates_layers(source, model.node)
        if written_out or not model.sources:
            return written_out or None  # its layers are unknown
    return is_container and _any_true(_depends_on_mode(source, each, seen) for each in model.sources)


def _gets_layers_of_functions(source: SourceFile, container: ast.Call) -> bool:
    """Return True for ``Sequential(*block(8, 16))`` if the function ``block`` certainly returns such layers."""
    calls = [each.value for each in container.args if isinstance(each, ast.Starred)]
    for call in calls:
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            named = [each for each in source.nodes_of(ast.FunctionDef) if each.name == call.func.id]
            around = [each for each in named if encloses(source.parents.get(id(each)), call)]
            if any(_creates_layers(source, each, call) for each in around[-1:]):
                return True
    return False


def _creates_layers(source: SourceFile, where: ast.FunctionDef | ast.Call, call: ast.Call | None = None) -> bool:
    """Return True if a layer that depends on the mode is created in a function, for the arguments of a call.

    Or without a condition in the arguments of a container: ``Sequential(OrderedDict([("norm", BatchNorm2d(8))]))``.
    """
    for layer in nodes_in(where, ast.Call):
        name = source.qualified_name(layer.func).removeprefix(_TORCH_NN) or last_name(layer.func)
        rates = [*layer.args[:1], *(each.value for each in layer.keywords if each.arg == "p")]
        is_off = any(isinstance(each, ast.Constant) and each.value == 0 for each in rates)
        if not name.startswith(_BATCH_NORMS) and (is_off or not name.startswith(_DROPOUT)):
            continue
        around = [e for e in enclosing_nodes(source, layer) if isinstance(e, ast.If | ast.IfExp) and encloses(where, e)]
        if not around or (call is not None and all(_is_on(source, where, call, each.test) for each in around)):
            return True
    return False


def _is_on(source: SourceFile, function: Any, call: ast.Call, test: ast.expr) -> bool:
    """Return True for a parameter that is True in a call."""
    given = argument_of(source, function, call, test.id) if isinstance(test, ast.Name) else None
    return isinstance(given, ast.Constant) and given.value is True


def _has_dropout(model: AbstractValue, name: str, position: str, *, default: float) -> bool:
    argument = model.arguments.get(name) or model.arguments.get(position)
    rate = default if argument is None else argument.constant(default or 0.1)
    return rate != 0


def _class_depends(source: SourceFile, model: AbstractValue, kind: AbstractValue, seen: set[int]) -> bool | None:
    answers: list[bool | None] = []
    called = set[str]()
    for each in _class_hierarchy(kind):
        if each.kind is not ValueKind.CLASS:
            answers.append(False if each.name in ("torch.nn.Module", "builtins.object") else None)
            continue
        first, last = each.node.lineno, each.node.end_lineno
        calls = [call for call in source.all_calls if first <= call.lineno <= last]
        answers += [
            True for call in calls if source.qualified_name(call.func) in _FUNCTIONS and _has_nonzero_rate(call)
        ]
        called |= {call.func.attr for call in calls if isinstance(call.func, ast.Attribute)}
    for name, part in model.attributes.items():
        if part.kind is ValueKind.MODEL:
            answers.append(_depends_on_mode(source, part, seen))
        elif part.kind is ValueKind.UNKNOWN and name in called:
            answers.append(None)  # it is called, so it may be a module
    return _any_true(answers)


def _has_nonzero_rate(call: ast.Call) -> bool:
    """Return True for a call of functional dropout, unless its rate is 0."""
    rate = next((word.value for word in call.keywords if word.arg == "p"), call.args[1] if len(call.args) > 1 else None)
    return not (isinstance(rate, ast.Constant) and rate.value == 0)


def _class_hierarchy(kind: AbstractValue) -> list[AbstractValue]:
    found = [kind]
    for each in found:
        found += [base for base in (each.sources if each.kind is ValueKind.CLASS else ()) if base not in found]
    return found


def _any_true(answers: Iterable[bool | None]) -> bool | None:
    known = set(answers)
    return True if True in known else None if None in known else False
