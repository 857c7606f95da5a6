"""The model that is judged was never trained: it is another one than the model that the optimizer updates.

What you see
    The training loss falls, and the accuracy stays at chance from the first epoch to the last.

Why it happens
    Two models are in the program, and the evaluation calls the wrong one: the other variable, or a network that was
    built for the test and gets no weights. An untrained network gives predictions of the right shape, so nothing fails.

Fix
    Judge the trained model, or load its weights into the new one:

        model = Net()  # wrong: random weights
        model = Net()
        model.load_state_dict(torch.load("best.pt"))  # right

When this is fine
    - The random network is a baseline that the trained one is compared with.
    - A random network computes features or targets, and another part is trained on them.
    - The model gets its weights by code outside the file, as a moving average, or as a copy.

How it is detected
    Only the linter finds it, from the source code: a model with random weights is called without gradients, and its
    output is compared with labels or gives a loss or a metric. It is in no optimizer, nothing loads, copies or changes
    its weights, no backward pass depends on its output, and it is passed to no unknown code. It must be created after
    the training, or the program must judge no trained model. Models named after a baseline are left out. The weights
    that `torch.func.functional_call` gets are no weights of the model: a module that only runs with others while they
    are trained, and without them when it is judged, is reported too.

References
    Saving and loading models, https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html
    torch.nn.Module.load_state_dict, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
"""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Final

from trueloop.analysis.abstract_value import COPY, FROZEN, MANAGED, WRAPPER, AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.batch_loops import compared_sides, function_of
from trueloop.analysis.queries.late_layers import has_trainable_weights
from trueloop.analysis.queries.possible_values import computed_from
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import dotted_name, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_BASELINE: Final = re.compile(r"rand|baseline|untrained|init|scratch|before|dummy|chance|prior|fresh", re.IGNORECASE)
_LOADS: Final = re.compile(r"pretrained|weights\s*=(?!=)|functional_call|load_from_checkpoint|load_weights")
_WRITES: Final = re.compile(
    r"load_state_dict|copy_\(|\.data\b|torch\.optim|_module_state|setattr|_swap|vector_to_parameters"
)
_METRIC: Final = re.compile(r"acc|score|f1|auc|metric|iou|dice|error|loss|crit|precision|recall", re.IGNORECASE)
_HARMLESS: Final = frozenset((
    "train", "eval", "to", "cuda", "cpu", "half", "float", "double", "forward", "training", "bfloat16",
))  # fmt: skip
"""Attributes of a model that do not change its weights."""
_GRADIENT: Final = re.compile(r"(^|\.)(grad|grad_and_value|value_and_grad|jacrev|backward)$")
_TRAINING: Final = (OpKind.ESCAPE, OpKind.TORCH_CALL, OpKind.BACKWARD)
_COPIES: Final = re.compile(r"\.(clone|detach)\(|zeros_like|ones_like|numel")
_HOLDERS: Final = (ValueKind.PARAMETERS, ValueKind.STATE, ValueKind.SEQUENCE)
_MAX_VALUES: Final = 2000


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the calls by which a program judges a model that it did not train."""
    if "functional_call" in source.text.source:
        yield from _without_functional_weights(source)
    if _LOADS.search(source.text.source):
        return
    seen = set[int]()
    for step in {each.entry_point: each for each in source.ops(OpKind.STEP)}.values():
        run = source.ops_of_run(step)
        backwards = [each for each in run if each.kind is OpKind.BACKWARD]
        trained = [each for each in run if each.kind is OpKind.STEP and each.subject.models()]
        judged = [each for each in run if _is_evaluated(source, each, run)] if backwards and trained else []
        is_trained_judged = any(step.subject.covers(each.subject) for step in trained for each in judged)
        for call in judged:
            created = _creation(run, call.subject)
            is_late = created is not None and created.index > trained[-1].index
            is_candidate = created is not None and (is_late or not is_trained_judged) and id(call.subject) not in seen
            if created is not None and is_candidate and _is_untrained(source, call, created, run):
                seen.add(id(call.subject))
                yield _hit(call, created, trained[-1])


def _without_functional_weights(source: SourceFile) -> Iterator[Hit]:
    """Yield the calls that judge a module without the weights that were trained by ``functional_call``."""
    if _WRITES.search(source.text.source):
        return
    calls = [each for each in source.nodes_of(ast.Call) if dotted_name(each.func).endswith("functional_call")]
    trained = {dotted_name(each.args[0]): each for each in calls if len(each.args) > 2}
    for name, functional in trained.items():
        if not name or len(calls) > 1 or not _is_differentiated(source, functional):
            continue
        for call in source.ops(OpKind.MODEL_CALL):
            run = source.ops_of_run(call)
            created = _creation(run, call.subject)
            if created is None or _names_of(source, created) != {name} or not _follows_training(source, call, run):
                continue
            if _is_evaluated(source, call, run) and _keeps_own_weights(source, created, name, functional):
                passing = (each for each in call.calls if name in map(dotted_name, each.args))
                yield Hit(
                    message=f"`{name}` is judged here with the weights that it was created with: "
                    f"`{ast.unparse(functional)}` trains other tensors, and nothing writes them back.",
                    node=next(passing, call.node),
                    related=((functional, "the trained weights are passed here"),),
                )
                break


def _is_differentiated(source: SourceFile, functional: ast.Call) -> bool:
    """Return True if the gradients of a function, or of the code, in which a call stands are computed."""
    function = function_of(source, functional)
    if any(_GRADIENT.search(dotted_name(each.func)) for each in nodes_in(function, ast.Call)):
        return True
    passed = [
        each.args[0] for each in source.nodes_of(ast.Call) if _GRADIENT.search(dotted_name(each.func)) and each.args
    ]
    return isinstance(function, ast.FunctionDef) and any(dotted_name(each) == function.name for each in passed)


def _follows_training(source: SourceFile, call: Op, run: Sequence[Op]) -> bool:
    """Return True if gradients were computed before a call."""
    earlier = (each for each in run if each.index < call.index and each.kind in _TRAINING)
    nodes = (
        node for each in earlier if isinstance(each.node, ast.Call) for node in computed_from(source, each.node.func)
    )
    return any(_GRADIENT.search(dotted_name(each.func if isinstance(each, ast.Call) else each)) for each in nodes)


def _keeps_own_weights(source: SourceFile, created: Op, name: str, functional: ast.Call) -> bool:
    """Return True if a program takes copies of a module's weights, and otherwise only calls or passes it."""
    uses = [
        each for each in source.nodes_of(ast.Attribute) if dotted_name(each.value) == name and each is not created.node
    ]
    copied = [each for each in uses if each.attr in ("named_parameters", "parameters", "state_dict", "named_buffers")]
    if any(each.attr not in _HARMLESS for each in uses if each not in copied):
        return False
    statements = [source.statement_of(each) for each in copied]
    return bool(copied) and all(
        isinstance(each, ast.Assign) and _COPIES.search(ast.unparse(each)) for each in statements if each is not None
    )


def _hit(call: Op, created: Op, step: Op) -> Hit:
    name = ast.unparse(call.node.func)
    return Hit(
        message=f"`{name}` is judged here with random weights: no optimizer updates this model, and nothing loads "
        "weights into it. The program trains another one.",
        node=call.node,
        related=((created.node, "the judged model is created here"), (step.node, "the other model is trained here")),
    )


def _creation(run: Sequence[Op], model: AbstractValue) -> Op | None:
    found = (each for each in run if each.kind is OpKind.CREATE and each.subject is model)
    return next(found, None)


def _is_evaluated(source: SourceFile, call: Op, run: Sequence[Op]) -> bool:
    """Return True for a call of a model without gradients whose output is compared, or gives a loss or a metric."""
    if call.kind is not OpKind.MODEL_CALL or call.grad is not False or call.result is None:
        return False
    if any(each.kind is OpKind.MODEL_CALL and each.node in call.calls for each in run):
        return False  # a layer within the forward of a model
    losses = [each for each in run if each.kind is OpKind.LOSS and each.grad is False and each.inputs]
    if any(value is call.result for each in losses for value in each.inputs[0].ancestors()):
        return True
    return any(_depends(source, side, call) for side in _judged_sides(source, call))


def _judged_sides(source: SourceFile, call: Op) -> Iterator[ast.expr]:
    """Yield what the function of a call, and those that call it, compare with labels or pass to metrics."""
    for node in (call.node, *call.calls):
        for each in nodes_in(function_of(source, node), ast.Compare, ast.Call):
            yield from compared_sides(each)
            if isinstance(each, ast.Call) and len(each.args) > 1 and _METRIC.search(dotted_name(each.func)):
                yield from each.args


def _depends(source: SourceFile, node: ast.expr, call: Op) -> bool:
    return any(each is call.node for each in computed_from(source, node))


def _is_untrained(source: SourceFile, call: Op, created: Op, run: Sequence[Op]) -> bool:
    """Return True if a model has random weights, which nothing changes, and no training depends on it."""
    model = call.subject
    names = _names_of(source, created)
    if len(names) != 1 or any(_BASELINE.search(each) for each in names) or not has_trainable_weights(model):
        return False
    if model.facts & {COPY, FROZEN, MANAGED, WRAPPER} or source.escapes(model, run):
        return False
    if any(_changes(each, model) for each in run) or not _has_harmless_uses(source, created, names):
        return False
    results = {id(each.result) for each in run if each.kind is OpKind.MODEL_CALL and each.subject.may_alias(model)}
    roots = [each.subject for each in run if each.kind is OpKind.BACKWARD]
    return not any(id(value) in results for root in roots for value in root.ancestors(_MAX_VALUES))


def _names_of(source: SourceFile, created: Op) -> set[str]:
    """Return the variables that a new model is assigned to."""
    statement = source.statement_of(created.node)
    for each in reversed(created.calls):
        if isinstance(statement, ast.Return):
            statement = source.statement_of(each)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if len(targets) == 1 and isinstance(targets[0], ast.Tuple):
        return set()
    return {dotted_name(each) for each in targets}


def _changes(operation: Op, model: AbstractValue) -> bool:
    """Return True if an operation trains a model, or gets its parameters or its state."""
    if operation.kind in (OpKind.LOAD_STATE_DICT, OpKind.SET_ATTRIBUTE, OpKind.STORE_ITEM, OpKind.SET_REQUIRES_GRAD):
        inputs = operation.inputs if operation.kind is OpKind.STORE_ITEM else ()
        is_inner = operation.kind is OpKind.SET_ATTRIBUTE and any(isinstance(e, ast.Call) for e in operation.calls)
        values = [operation.subject, *inputs]
        if not is_inner and any(each.covers(model) or model.covers(each) for each in values if each.models()):
            return True
    queue, depth = [operation.subject, *operation.inputs], 0
    while queue and depth < _MAX_VALUES:
        value, depth = queue.pop(), depth + 1
        is_state = value.kind in (ValueKind.PARAMETERS, ValueKind.STATE, ValueKind.OPTIMIZER)
        if is_state and (value.covers(model) or any(model.covers(each) for each in value.models())):
            return True
        if value.kind in _HOLDERS:
            queue += [*value.sources, *value.union]
    return False


def _has_harmless_uses(source: SourceFile, created: Op, names: set[str]) -> bool:
    """Return True if the program reads no attribute of a model that may change its weights."""
    uses = [each for each in source.nodes_of(ast.Attribute, ast.Subscript) if dotted_name(each.value) in names]
    later = [each for each in uses if each.lineno > created.node.lineno]
    return all(isinstance(each, ast.Attribute) and each.attr in _HARMLESS for each in later) and "" not in names


RULE: Final = Rule(
    required_words=("functional_call|backward(&step(", "no_grad|inference_mode", "==|.eq(|oss(|entropy|core("),
    find=find,
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(400, 10)
y = x[:, :3].argmax(1)
student = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
network = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
for epoch in range(4):
    student.train()
    for rows in torch.randperm(320).split(32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(student(x[rows]), y[rows]).backward()
        optimizer.step()
    student.eval()
    with torch.no_grad():
        accuracy = (network(x[320:]).argmax(1) == y[320:]).float().mean().item()
    print(f"epoch {epoch}: accuracy {accuracy:.2f}")
"""

FAILURE = Failure(
    code="EVL033",
    title="The judged model was never trained",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"(network(x[320:])": "(student(x[320:])"}),
    fix="Judge the trained model, or load the trained weights into the model that is judged.",
    rule=RULE,
)
