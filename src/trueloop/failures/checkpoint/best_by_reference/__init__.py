"""Stored weights, such as the best ones, share memory with the model, so training keeps changing them.

What you see
    The "best" model scores like the last one. Early stopping brings no gain, and ``best.pt`` holds the weights of the
    moment when the file was written. Loading a backup of the weights restores nothing. The states of several clients,
    folds or epochs are all equal, and so is their average.

Why it happens
    ``state_dict()`` returns the model's own tensors, not copies. Every update changes these tensors, and so it changes
    the stored "best" weights too. Loading them copies each weight onto itself.

Fix
    Copy the state_dict when you store it, or save it to a file right away.

        best = model.state_dict()                 # wrong: a reference
        best = copy.deepcopy(model.state_dict())  # right

    ``v.detach()``, ``v.cpu()`` and ``v.numpy()`` do not copy a tensor on a CPU: write ``v.detach().cpu().clone()``.

When this is fine
    - The state_dict is a deep copy, or each of its tensors is cloned.
    - The state_dict is saved or loaded before the next update, as in ``target.load_state_dict(net.state_dict())``.
    - The state_dict was read from a file.
    - The state is stored every so many iterations, and only the last one is used.
    - You call ``state_dict()`` once before training, and save this dictionary again and again with the newest weights.

How it is detected
    In a run, the sanitizer checks whether the tensors that are loaded or saved are the model's own tensors and have
    changed since ``state_dict()`` was called. A state_dict from before the first update is reported only when it is
    loaded into its own model. A dictionary that the program built from these tensors, for example with
    ``v.detach().cpu()`` on a CPU, is reported when it is loaded, if every tensor shares memory with its parameter and
    the weights have changed since every call of ``state_dict()``. It also reports a line that creates a third
    state_dict of one model while the first two still exist, if all of them share its memory, were created at different
    updates, and were not saved or loaded. The linter reports a state_dict that is stored where a best value
    is updated, and used after the training loop or in a later iteration, or a list or dictionary of parameters or of
    arrays that share their memory in its place, also from a function or by ``.cpu()`` in a program that uses no other
    device; a state_dict that is loaded into its own model
    after the weights have changed; and states that a loop collects from a model that it trains. It warns of a state
    that one function, such as a callback, keeps where a value improves, and another one loads. It follows a state
    through shallow copies, attributes, variables of closures, containers and dataclasses, also in other files. A
    state_dict that is deep-copied too late is not detected.

References
    PyTorch tutorial "Saving and Loading Models": "best_model_state = model.state_dict() returns a reference to the
    state and not its copy", https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html
    torch.nn.Module.state_dict, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trueloop.analysis.abstract_value import COPY, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.captured_states import contains_state, deepcopy_fix
from trueloop.analysis.queries.modes import is_training_step, may_recreate_model
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.checkpoint.best_by_reference.best_branches import is_best_checkpoint, kept_by_callbacks
from trueloop.failures.checkpoint.best_by_reference.collected_parameters import collected_parameters
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.teaching_script import Piece, replacement_injector
from trueloop.tracing.events import Event

_UPDATES: Final = re.compile(r"\.backward\(|\.step\(")


@dataclass(slots=True, kw_only=True, eq=False)
class StateDictUsed(Event):
    """RARE. A state dictionary of a model was loaded into a module, or saved to a file."""

    how: str
    """What was done with the dictionary: "loaded", "saved", "collected" with others of its line."""
    created_at: CodePosition | None
    """The line that created the dictionary."""
    created_update: int
    """Number of updates before the dictionary was created."""
    was_trained: bool
    """Whether an optimizer had updated the model before the dictionary was created."""
    aliased: bool
    """Whether its tensors share memory with the model's, so that every later update has changed them."""
    weights_changed: bool
    """Whether the model's weights have changed since the dictionary was created."""
    into_itself: bool
    """Whether it was loaded into the model that it was created from."""
    into_alias: bool = False
    """Whether it was loaded into another module whose parameters are the same tensors, as after ``copy.copy``."""
    count: int = 1
    """Number of dictionaries that the line has created and that still exist."""


class Detector(BaseDetector):
    """Checks at each use of a state_dict whether it shares memory with weights that have changed since."""

    def on_state_dict_used(self, event: StateDictUsed) -> Evidence | None:
        """Return evidence if a state_dict shares memory with weights that have changed since it was captured."""
        if not event.aliased or not event.weights_changed:
            return None
        if event.how == "collected":
            return Evidence(
                message=f"The program keeps {event.count} state_dicts that this line created at different updates, but "
                "none is a copy: all of them share memory with the model, so all contain the latest weights.",
                location=event.location,
                first_update=event.created_update,
            )
        if not event.into_itself and not event.was_trained:
            return None  # captured once before training and saved again and again with the newest weights
        updates = event.update - event.created_update
        since = f"{updates} updates have" if updates > 1 else "an update has" if updates else "the program has"
        effect = "loading it back changes nothing" if event.into_itself else f"the newest weights were {event.how}"
        return Evidence(
            message=f"The state_dict stored at update {event.created_update} is not a copy: it shares memory with the "
            f"weights, which {since} changed by update {event.update}, so {effect}.",
            location=event.created_at or event.location,
            related=((event.location, f"{event.how} here"),) if event.location else (),
            first_update=event.created_update,
        )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield captures of a model's state_dict that are used after its weights have changed."""
    uses = [(each, value) for each in source.ops(OpKind.LOAD_STATE_DICT, OpKind.SAVE) for value in each.inputs]
    reported = set[int]()
    for capture in source.ops(OpKind.STATE_DICT):
        state = capture.result
        if capture.subject.kind is not ValueKind.MODEL or state is None:
            continue
        for use, value in uses:
            if use.entry_point != capture.entry_point or use.index < capture.index or not contains_state(value, state):
                continue
            if change := _find_change(source, capture, use):
                reported.add(id(capture.node))
                yield Hit(
                    message=f"`{source.text.segment(capture.node)}` is not a copy: it shares memory with the weights, "
                    "which change before it is used.",
                    node=capture.node,
                    related=((change.node, "changed here"), (use.node, "used here")),
                    fix=deepcopy_fix(source, capture.node),
                )
                break
        else:
            yield from _collected(source, capture)
    yield from collected_parameters(source)
    for state, load in kept_by_callbacks(source) if source.mentions(_UPDATES) else ():
        if id(state) not in reported:
            yield Hit(
                message=f"`{source.text.segment(state)}` is not a copy: it shares memory with the weights, which the "
                "following updates change before it is loaded.",
                node=state,
                related=((load, "loaded here"),),
                fix=deepcopy_fix(source, state),
                severity=Severity.WARNING,
            )


def _collected(source: SourceFile, capture: Op) -> Iterator[Hit]:
    """Yield a state that a loop appends to a list, if the loop goes on to train the same model."""
    state, model = capture.result, capture.subject
    run = source.ops_of_run(capture) if capture.loops and state is not None else []
    for stored in run:
        is_new_item = stored.name == "append" or isinstance(getattr(stored.node, "slice", None), ast.Name)
        is_appended = stored.kind is OpKind.STORE_ITEM and is_new_item and stored.index > capture.index
        loop = stored.loops[-1] if stored.loops else None
        if not is_appended or loop is None or not any(contains_state(value, state) for value in stored.inputs if state):
            continue
        inside = source.ops_in_loop(loop, root=capture.entry_point)
        trains = any(is_training_step(source, each, model, inside) for each in inside)
        trains &= not any(each.kind is OpKind.SAVE for each in inside)
        if (
            trains
            and capture.is_inside(loop)
            and not may_recreate_model(loop, model, inside)
            and COPY not in model.facts
        ):
            yield Hit(
                message=f"`{source.text.segment(capture.node)}` is not a copy: all states that are collected share "
                "memory with the model, so all are its latest weights.",
                node=capture.node,
                related=((stored.node, "collected here"),),
                fix=deepcopy_fix(source, capture.node),
            )
            return


def _find_change(source: SourceFile, capture: Op, use: Op) -> Op | None:
    """Return the operation that changes the weights between a capture and a use that needs the old ones, or None."""
    model = capture.subject
    into_itself = use.kind is OpKind.LOAD_STATE_DICT and use.subject.may_alias(model)
    between = [
        each
        for each in source.operations[capture.index + 1 : use.index]
        if each.entry_point == capture.entry_point and each.branches == capture.branches[: len(each.branches)]
    ]
    if into_itself and capture.branches == use.branches and capture.loops == use.loops:
        state = capture.result or model
        if any(each.kind is OpKind.STORE_ITEM and each.subject.may_alias(state) for each in between):
            return None  # another value was stored in the state_dict
        loaded = [
            each
            for each in between
            if each.kind is OpKind.LOAD_STATE_DICT
            and each.subject.may_alias(model)
            and not any(contains_state(value, state) for value in each.inputs)
        ]
        changes = [*loaded, *(each for each in between if is_training_step(source, each, model, between))]
        return changes[0] if changes else None
    is_later_iteration = into_itself and capture.excludes(use)  # the best is kept, or else loaded
    for loop in capture.loops:
        if use.is_inside(loop) and not is_later_iteration:
            continue
        inside = source.ops_in_loop(loop, root=capture.entry_point)
        if not may_recreate_model(loop, model, inside) and is_best_checkpoint(source, capture, loop):
            return next((each for each in inside if is_training_step(source, each, model, inside)), None)
    return None


RULE = Rule(required_words=(".state_dict(|parameters(", "torch"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
best_loss, best_state = float("inf"), None
for epoch in range(10):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[:96]), y[:96])
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        held_out = nn.functional.mse_loss(model(x[96:]), y[96:]).item()
    if held_out < best_loss and epoch < 6:
        best_loss, best_state = held_out, model.state_dict()
model.load_state_dict(best_state)
"""

FAILURE = Failure(
    code="CKP001",
    title="Best state_dict is kept without a copy",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(
        BAD,
        {
            "import torch": "import copy\nimport torch",
            "best_loss, best_state = held_out, model.state_dict()": (
                "best_loss, best_state = held_out, copy.deepcopy(model.state_dict())"
            ),
        },
    ),
    fix="Copy the state_dict when you store it: copy.deepcopy(model.state_dict()).",
    rule=RULE,
    detector=Detector,
    inject=replacement_injector(Piece.KEEP_BEST, "copy.deepcopy(model.state_dict())", "model.state_dict()"),
)
