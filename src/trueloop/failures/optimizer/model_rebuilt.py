"""The model is built or initialised again in every epoch, so each epoch starts from random weights.

What you see
    The loss falls within an epoch and is back at its first value at the start of the next one. More epochs do not help,
    and the final model is as good as one trained for a single epoch.

Why it happens
    The line that builds the model, and mostly the optimizer, is inside the loop over epochs. A new model has new random
    weights, and nothing warns that the trained one is discarded. ``model.apply(init_weights)`` in the loop does the
    same.

Fix
    Build model and optimizer once, before the loop.

        model = Net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
        for epoch in range(epochs):
            train_one_epoch(model, optimizer, loader)

When this is fine
    - The loop is over seeds, folds, trials, settings or members of an ensemble, and its body trains for several epochs.
    - The new model loads the weights of the previous epoch, or is built only in the first one.
    - The new model grows with the epoch.

How it is detected
    Only the linter finds it, from the source code: a loop over epochs, by the name of its variable or of the limit of
    its ``range``, builds a model with the same arguments in every iteration, and an inner loop over batches trains it.
    No weights are loaded or copied in the loop, and the model is not stored in a list. Or the body of such a loop
    calls ``model.apply`` with a function that initialises layers, or ``reset_parameters()`` of all layers.

References
    Optimizing Model Parameters, https://docs.pytorch.org/tutorials/beginner/basics/optimization_tutorial.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.abstract_value import COPY, AbstractValue, ValueKind
from trueloop.analysis.loop_invariance import names_in, varying_names
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.loop_variables import stored_names
from trueloop.analysis.queries.loops import is_batch_loop
from trueloop.analysis.queries.statement_moves import move_out_of_loop_fix
from trueloop.analysis.queries.unregistered_modules import has_weights
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_RESETS: Final = re.compile(r"reset_parameters\(|init\.\w+_\(|\.(normal|uniform|fill|zero)_\(")
_EPOCH_LOOP: Final = re.compile(r"for \w*epoch\w* in", re.IGNORECASE)
_EPOCH: Final = re.compile(r"epoch|(^|_)ep($|_)", re.IGNORECASE)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each model that every iteration of a loop over epochs builds, or initialises, and trains."""
    yield from _initialised_again(source)
    seen = set[int]()
    for creation in source.ops(OpKind.CREATE):
        model, loop = creation.subject, creation.loops[-1] if creation.loops else None
        if model.kind is not ValueKind.MODEL or loop is None or not _is_over_epochs(loop) or id(creation.node) in seen:
            continue
        if not _is_same_each_time(creation, loop) or not has_weights(model) or model.owners or COPY in model.facts:
            continue
        if _is_trained_from_new(source, model, creation, loop):
            seen.add(id(creation.node))
            yield Hit(
                message=f"Every iteration of the loop over epochs builds a new model, `{ast.unparse(creation.node)}`: "
                "the weights of the previous epoch are discarded.",
                node=creation.node,
                fix=move_out_of_loop_fix(source, creation, loop, "Build the model once, before the loop"),
            )


def _initialised_again(source: SourceFile) -> Iterator[Hit]:
    """Yield each statement in a loop over epochs that gives all layers of the trained model new weights."""
    for node in source.nodes_of(ast.For):
        loop = Loop(node, None)
        if not _is_over_epochs(loop) or _EPOCH_LOOP.search(ast.unparse(node).partition("\n")[2]):
            continue
        for statement in node.body:
            model = _initialised_model(source, statement)
            calls = [each for each in nodes_in(node, ast.Call) if model and dotted_name(each.func) == model]
            steps = [each for each in nodes_in(node, ast.Call) if last_name(each.func) == "step"]
            if calls and steps and model not in stored_names(node):
                yield Hit(
                    message=f"Every iteration of the loop over epochs initialises `{model}` again: the weights of the "
                    "previous epoch are discarded.",
                    node=statement,
                )


def _initialised_model(source: SourceFile, statement: ast.stmt) -> str:
    """Return the model whose layers all get new weights: ``model.apply(init)``; "" for other statements."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="apply", value=model), args=[ast.Name(id=name)])):
            functions = [each for each in source.nodes_of(ast.FunctionDef) if each.name == name]
            return dotted_name(model) if any(_RESETS.search(ast.unparse(each)) for each in functions) else ""
        case ast.For(iter=ast.Call(func=ast.Attribute(attr="children" | "modules", value=model))):
            return dotted_name(model) if "reset_parameters" in ast.unparse(statement) else ""
        case _:
            return ""


def _is_over_epochs(loop: Loop) -> bool:
    """Return True for a loop over a range whose variable or limit is named after epochs."""
    if not isinstance(loop.node, ast.For) or (loop.trip_count() or 2) < 2:
        return False
    if isinstance(loop.node.target, ast.Name) and _EPOCH.search(loop.node.target.id):
        return True
    limits = loop.node.iter.args if isinstance(loop.node.iter, ast.Call) else []
    return any(_EPOCH.search(name) for each in limits for name in names_in(each))


def _is_same_each_time(creation: Op, loop: Loop) -> bool:
    """Return True if every iteration builds the model, with the same arguments."""
    names = {name for each in nodes_in(creation.node, ast.expr) for name in names_in(each)}
    return creation.is_unconditional_in(loop) and not names & varying_names(creation, loop)


def _is_trained_from_new(source: SourceFile, model: AbstractValue, creation: Op, loop: Loop) -> bool:
    """Return True if a loop over batches within one iteration trains the model, whose weights nothing else sets."""
    inside = source.ops_in_loop(loop, root=creation.entry_point)
    depth = [each.node for each in creation.loops].index(loop.node) + 1
    steps = [each for each in inside if each.kind is OpKind.STEP and each.index > creation.index]
    steps = [each for each in steps if each.subject.covers(model) or model.covers(each.subject)]
    if not steps or not all(len(each.loops) == depth + 1 and is_batch_loop(each.loops[-1]) for each in steps):
        return False
    for each in inside:
        is_loaded = each.kind is OpKind.LOAD_STATE_DICT and (each.subject.covers(model) or model.covers(each.subject))
        is_kept = each.kind is OpKind.STORE_ITEM and any(value.may_alias(model) for value in each.inputs)
        if is_loaded or is_kept:
            return False
    return not source.escapes(model, inside)


RULE = Rule(required_words=("torch", "poch|ep in", "backward(", ".step("), find=find)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(160, 8)
loader = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=16, shuffle=True)
for epoch in range(5):
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
"""

FAILURE = Failure(
    code="OPT012",
    title="The model is built or initialised again in every epoch",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "for epoch in range(5):": (
                "model = nn.Linear(8, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
                "for epoch in range(5):"
            ),
            "    model = nn.Linear(8, 1)\n    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n": "",
        },
    ),
    fix="Build the model and the optimizer once, before the loop over epochs.",
    rule=RULE,
)
