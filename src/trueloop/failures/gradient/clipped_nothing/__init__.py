"""The parameters to clip are given as a generator that has been gone through before, so nothing is clipped.

What you see
    Clipping has no effect: the norm it returns is 0 in every step but perhaps the first, and training blows up as it
    does without.

Why it happens
    ``model.parameters()`` is a generator. An optimizer or a loop that goes through it leaves it empty, and clipping
    nothing is allowed. Newer versions of torch warn, once.

Fix
    Keep a list: ``parameters = list(model.parameters())``.

When this is fine
    ``list(model.parameters())`` can be gone through any number of times, and a call of ``model.parameters()`` in the
    line that clips makes a new generator each time. A model without parameters, or of which none is trainable, gives
    an empty generator too, but not one that was at its end before it was handed over, and only that is reported. The
    text alone tells it where one name is bound once, to a generator, outside of the loop that clips, or where an
    optimizer was built from the same name before.

References
    torch.nn.utils.clip_grad_norm_, https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
    pytorch/pytorch#148259, "Raise a warning when torch.nn.utils.clip_grad_norm_ receives an exhausted generator": "no
    gradient clipping occurs—silently", https://github.com/pytorch/pytorch/issues/148259
    PixArt-alpha/PixArt-alpha#160: "the lora_layers was initialized with filter()", "so no gradient clipping would be
    done", https://github.com/PixArt-alpha/PixArt-alpha/pull/160
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar, Final

from trueloop.analysis.abstract_value import Kind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Edit, Fix, dotted
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.gradient.clipped_nothing.bindings import bound_once, runs_again
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import Event, GradientsClipped

LAZY: Final = frozenset(("builtins.filter", "builtins.map", "itertools.chain"))


class Detector(failure.Detector):
    """Every clipping tells whether what it was given was at its end."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (GradientsClipped,)

    def observe(self, event: GradientsClipped) -> Evidence | None:
        """Return evidence where it was."""
        if not event.exhausted:
            return None
        return Evidence(
            message="The parameters to clip came from a generator that had been gone through before: nothing was "
            f"clipped at {event.limit:g}.",
            location=event.place,
        )


def find(source: Source) -> Iterator[Hit]:
    """Yield each clipping of a name that stands for a generator which somebody has gone through."""
    mended = set[int]()
    for clip in source.acts(OpKind.CLIPPED):
        given = _given(clip)
        made = bound_once(source.tree, dotted(given), clip.function) if given is not None else None
        if made is None or clip.subject.kind is not Kind.PARAMETERS or not _lazy(source, made.value):
            continue
        taken = _taken(source, clip, dotted(given))
        if taken is None and not runs_again(source, clip, made):
            continue
        value, fix = made.value, None
        if id(value) not in mended:
            start, end = source.text.span(value)
            fix = Fix((Edit(start, start, "list("), Edit(end, end, ")")), safe=True, words="Keep a list")
        mended.add(id(value))
        why = "by the optimizer" if taken is not None else "when the loop comes here again"
        yield Hit(
            message=f"{dotted(given)} is a generator, and gone through {why}: nothing is clipped.",
            node=clip.node,
            related=(
                (made, "made here, to be gone through once"),
                *(((taken.node, "gone through here"),) if taken else ()),
            ),
            fix=fix,
        )


def _given(clip: Op) -> ast.expr | None:
    """Return the expression for the parameters."""
    call = clip.node
    if not isinstance(call, ast.Call):
        return None
    named = next((each.value for each in call.keywords if each.arg == "parameters"), None)
    return call.args[0] if call.args else named


def _lazy(source: Source, value: ast.expr) -> bool:
    """True for an expression whose value can be gone through once."""
    if isinstance(value, ast.GeneratorExp):
        return True
    if not isinstance(value, ast.Call):
        return False
    method = isinstance(value.func, ast.Attribute) and value.func.attr == "parameters"
    return method or source.name(value.func) in LAZY


def _taken(source: Source, clip: Op, name: str) -> Op | None:
    """Return the optimizer that was surely built from the same name before."""
    for each in source.run_of(clip):
        call = each.node
        if each.act is not OpKind.MADE or each.subject.kind is not Kind.OPTIMIZER or not isinstance(call, ast.Call):
            continue
        given = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "params")]
        same = any(dotted(word) == name for word in given) and each.function is clip.function
        if same and each.index < clip.index and each.implied_by(clip):
            return each
    return None


RULE = Rule(words=("clip_grad",), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.replace(Piece.CLIP, "model.parameters()", "parameters")
    loop.pieces[Piece.RECORDS] += "\nparameters = model.parameters()"


FAILURE = Failure(
    code="GRD011",
    title="An exhausted generator is clipped",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad="""
import warnings
import torch
from torch import nn

warnings.filterwarnings("ignore")
x = torch.randn(128, 8)
y = 10 * x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
parameters = model.parameters()
optimizer = torch.optim.SGD(parameters, lr=0.001)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 0.1)
    optimizer.step()
""",
    good="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = 10 * x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
parameters = list(model.parameters())
optimizer = torch.optim.SGD(parameters, lr=0.001)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 0.1)
    optimizer.step()
""",
    fix="Keep the parameters as a list.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
