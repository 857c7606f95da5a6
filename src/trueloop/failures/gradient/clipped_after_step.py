"""Gradients are clipped after ``optimizer.step()`` has used them.

What you see
    Clipping has no effect: training diverges as it did without it.

Why it happens
    Clipping changes the gradients in ``.grad``, but the step has already used them, and ``zero_grad()`` clears them.

Fix
    Clip between the last ``backward()`` and the step.

        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

When this is fine
    - You only measure the norm, with an infinite limit or with a limit that is never reached.

How it is detected
    In a run, the sanitizer reports a line that clipped gradients at least twice, if a step had already used all
    gradients that this line ever clipped and nothing was added to them since, and one that found no gradients in eight
    calls, each before a step that used some of these parameters. The linter reports a clipping call whose
    result is not used, if neither ``backward()`` nor unknown code is between it and the step of the same parameters.
    It also reports the only clipping of a program if it is in a function that returns the loss, such as
    ``training_step``, and the callers of the function compute the gradients afterwards.

References
    torch.nn.utils.clip_grad_norm_, https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
    Pascanu et al., 2013, "On the difficulty of training recurrent neural networks", arXiv:1211.5063
"""

import ast
from collections import Counter
from collections.abc import Iterator

from trueloop.analysis.abstract_value import MANAGED, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.batch_loops import assigned_in, function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.clipping import has_infinite_limit, unscale_lines
from trueloop.analysis.queries.plain_steps import plain_calls
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.source_text import Fix, dotted_name, nodes_in
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import GradientsClipped, StepTaken
from trueloop.tracing.trackers.gradient_ledger import GradientLedger

_DIFFERENTIATING = frozenset(("backward", "manual_backward", "grad", "step"))
MIN_TIMES = 2  # a single call may only measure the norm
MIN_TIMES_NOTHING = 8  # a first call may come before the first gradients


class Detector(BaseDetector):
    """Counts, for each line that clips, how often it clips used gradients."""

    activated_by = (GradientsClipped,)
    gradients: GradientLedger

    def __init__(self) -> None:
        self._late: Counter[CodePosition | None] = Counter()
        self._useful: set[CodePosition | None] = set()
        self._nothing: Counter[CodePosition | None] = Counter()
        self._without_gradients: dict[CodePosition | None, GradientsClipped] = {}
        """Line -> its latest call, which found no gradients, if no step was taken since."""

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence of a line that never found gradients, although steps then used some of these parameters."""
        found: Evidence | None = None
        for line, clipped in self._without_gradients.items():
            self._nothing[line] += line not in self._useful and not clipped.given.isdisjoint(event.with_gradient)
            if self._nothing[line] == MIN_TIMES_NOTHING and found is None:
                found = Evidence(
                    message=f"Clipping to {clipped.limit:g} found no gradients in {MIN_TIMES_NOTHING} of "
                    f"{MIN_TIMES_NOTHING} calls: it runs before `backward()`, and the steps use gradients that were "
                    "never clipped.",
                    location=line,
                )
        self._without_gradients.clear()
        return found

    def on_gradients_clipped(self, event: GradientsClipped) -> Evidence | None:
        """Return evidence if a line has only clipped gradients that a step had used before."""
        line, changes = event.location, event.measured is not None and event.measured > event.limit
        if event.only_measured or event.generator_exhausted or line in self._useful:
            return None
        if not event.parameters or event.measured == 0:
            self._without_gradients[line] = event
            return None
        if self.gradients.used_when_clipped != event.parameters:
            self._useful.add(line)
            return None
        self._late[line] += changes or event.kind == "value"
        if self._late[line] < MIN_TIMES:
            return None
        return Evidence(
            message=f"Clipping had no effect {self._late[line]} times: {len(event.parameters)} gradients were "
            f"clipped to {event.limit:g} after a step had used them.",
            location=line,
        )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each clipping whose returned norm is not used, after the step that used the gradients."""
    for clip in source.ops(OpKind.CLIP_GRADIENTS):
        is_unused = isinstance(clip.statement, ast.Expr) and clip.statement.value is clip.node
        if not is_unused or not clip.subject.models() or has_infinite_limit(clip):
            continue
        step = _preceding_step(source, clip)
        if step is not None:
            yield Hit(
                message=f"`{ast.unparse(clip.node)}` has no effect: the step has already used the gradients.",
                node=clip.node,
                related=((step.node, "this step used gradients that were not clipped"),),
                fix=_move_before_step(source, clip, step),
            )


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield the same as `find`, and each clipping that a block or function runs before the backward pass."""
    yield from find(source)
    yield from _in_loss_functions(source)
    for calls in plain_calls(source):
        roles = [each.role for each in calls if each is not None]
        known = [each for each in calls if each is not None]
        if roles.count("backward") != 1 or roles.count("step") != 1 or roles.count("clip") != 1:
            continue
        clip, backward, step = (known[roles.index(role)] for role in ("clip", "backward", "step"))
        order = [known.index(each) for each in (clip, backward, step)]
        is_loop = any(clip.statement in each.body for each in source.nodes_of(ast.For, ast.While))
        is_step = "clear" in roles and any(clip.statement in each.body for each in source.nodes_of(ast.FunctionDef))
        if order == sorted(order) and (is_loop or is_step) and not _has_inner_backward(source, backward.statement):
            yield Hit(
                message=f"`{ast.unparse(clip.call)}` runs before `{ast.unparse(backward.call)}`, so the gradients that "
                "the step uses are not clipped.",
                node=clip.call,
                related=((backward.call, "computes the gradients"), (step.call, "uses them")),
                fix=_move_after(source, clip.statement, backward.statement),
            )


def _in_loss_functions(source: SourceFile) -> Iterator[Hit]:
    """Yield each clipping in a function that returns the loss, of which its callers compute the gradients later."""
    clips = [each for each in source.all_calls if last_name(each.func).startswith("clip_grad")]
    functions = {id(function_of(source, each)): function_of(source, each) for each in clips}
    if len(functions) != 1:  # what another function clips may be the gradients of this loss
        return
    function = next(iter(functions.values()))
    if not isinstance(function, ast.FunctionDef) or len(clips) != 1:
        return
    differentiating = [each for each in nodes_in(function, ast.Call) if last_name(each.func) in _DIFFERENTIATING]
    results = {dotted_name(each.value) for each in nodes_in(function, ast.Return)} - {""}
    names = {each for each in results if assigned_in(function, each)}
    callers = definitions(source).calls.get(function.name, [])
    backwards = [each for call in callers if (each := _backward_of(source, call)) is not None]
    is_statement = isinstance(source.parents.get(id(clips[0])), ast.Expr) and "inf" not in ast.unparse(clips[0])
    if is_statement and names and not differentiating and backwards and len(backwards) == len(callers):
        yield Hit(
            message=f"`{ast.unparse(clips[0])}` runs before `{ast.unparse(backwards[0])}`, since `{function.name}` "
            "returns the loss: the gradients that the step uses are not clipped.",
            node=clips[0],
            related=((backwards[0], "computes the gradients"),),
        )


def _backward_of(source: SourceFile, call: ast.Call) -> ast.Call | None:
    """Return the ``backward()`` of the result of a call; None if there is none in the same function."""
    statement = source.statement_of(call)
    targets = getattr(statement, "targets", [])
    names = {name for target in targets for each in nodes_in(target, ast.Name, ast.Attribute)
             if (name := dotted_name(each))}  # fmt: skip
    for each in nodes_in(function_of(source, call), ast.Call):
        if isinstance(each.func, ast.Attribute) and each.func.attr == "backward":
            used = nodes_in(each.func.value, ast.Name, ast.Attribute, ast.Call)
            if call in used or (each.lineno > call.lineno and names & set(map(dotted_name, used))):
                return each
    return None


def _has_inner_backward(source: SourceFile, own: ast.stmt) -> bool:
    """Return True if a loop's body computes gradients elsewhere too."""
    block = source.block(own)
    others = (each for each in block if each is not own)
    return any("backward" in ast.unparse(each) for each in others)


def _move_after(source: SourceFile, clip: ast.stmt, backward: ast.stmt) -> Fix | None:
    edits = source.text.move_statement(clip, after=backward)
    return Fix(edits, safe=False, description="Clip after the backward pass") if edits else None


def _preceding_step(source: SourceFile, clip: Op) -> Op | None:
    """Return the step that used all clipped gradients; None if they changed since or were also clipped before it."""
    run = source.ops_of_run(clip)
    index = run.index(clip)
    step = None
    for each in reversed(run[:index]):
        match each.kind:
            case OpKind.ESCAPE | OpKind.ACCESS_GRADIENTS if step is None:
                return None
            case OpKind.CLEAR_GRADIENTS if each.name and step is None:
                return None  # the gradients may have been written by hand
            case OpKind.STEP if step is None and _uses_all(source, each, clip):
                step = each
            case OpKind.CLIP_GRADIENTS if step is not None and not _are_disjoint(each, clip):
                return None
            case OpKind.BACKWARD:
                reached = all(source.reaches(each, model) for model in clip.subject.models())
                return step if reached and not each.excludes(clip) else None
            case _:
                pass
    return None


def _are_disjoint(one: Op, other: Op) -> bool:
    """Return True if two clippings certainly have no parameters in common."""
    models = one.subject.models()
    return bool(models) and not one.subject.covers(other.subject) and not other.subject.covers(one.subject)


def _uses_all(source: SourceFile, step: Op, clip: Op) -> bool:
    """Return True if a step certainly precedes a clipping and its optimizer holds all clipped parameters."""
    optimizer = step.subject
    if optimizer.kind is not ValueKind.OPTIMIZER or MANAGED in optimizer.facts or not step.implied_by(clip):
        return False
    if step.loops and not clip.is_inside(step.loops[-1]):
        return False
    if optimizer.models():
        return all(optimizer.covers(model) for model in clip.subject.models())
    return len({id(each.subject) for each in source.ops_of_run(clip) if each.kind is OpKind.STEP}) == 1


def _move_before_step(source: SourceFile, clip: Op, step: Op) -> Fix | None:
    """Return the fix that moves the clipping before the step, and unscales first if a GradScaler is used."""
    statement, target = clip.statement, step.statement
    body = source.block(statement)
    if statement is None or target is None or target not in body or not isinstance(target, ast.Expr):
        return None
    between = body[body.index(target) + 1 : body.index(statement)]
    if not all(isinstance(each, ast.Expr) for each in between):
        return None  # the clipped parameters may be defined there
    lines = unscale_lines(source, step)
    edits = None if lines is None else source.text.move_statement(statement, before=target, leading_lines=lines)
    return Fix(edits, safe=True, description="Move the clipping before the step") if edits else None


RULE = Rule(required_words=("backward(", ".step(", "clip_grad"), find=find_all)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    loop.require(0 < loop.settings["clip"] <= 0.1, "Few gradients have a larger norm than the limit.", clip=0.1)
    loop.move(Piece.CLIP, after=Piece.OPTIMIZER_STEP)


BAD = """
import torch
from torch import nn

x = torch.randn(128, 8)
y = 10 * x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
"""

FAILURE = Failure(
    code="GRD010",
    title="Gradients are clipped after the step",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(
        BAD,
        {
            "    nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n": "",
            "    optimizer.step()": "    nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n    optimizer.step()",
        },
    ),
    fix="Clip between the last backward() and optimizer.step().",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
