"""Autograd's anomaly detection is left on after debugging.

What you see
    Each update takes two to five times as long, or longer. The results are the same.

Why it happens
    ``detect_anomaly`` is a debugging tool that finds the operation that produces a NaN. It records a traceback for each
    operation of the forward pass and checks each gradient of the backward pass, which is slow.

Fix
    Remove the call, or make it an option. ``trueloop run`` finds the operation that produces a NaN without it (GRD007).

        torch.autograd.set_detect_anomaly(args.debug)

When this is fine
    - You use it for a few updates while you debug.
    - It is under a condition, such as ``if args.debug:``.
    - The program repeats a failed step with anomaly detection inside ``try`` and ``except``.

How it is detected
    In a run, the sanitizer reports anomaly detection that is still on after 32 updates. The linter reports a call that
    switches it on without a condition in a file that never switches it off. The results are correct, so this is a note.

References
    Anomaly detection, https://docs.pytorch.org/docs/stable/autograd.html#anomaly-detection
    yenchenlin/nerf-pytorch#42: "calling this function [...] can somehow slow down the training process by a large
    amount (almost 50% in my computer)", https://github.com/yenchenlin/nerf-pytorch/issues/42
    Lightning-AI/pytorch-lightning#17359: "after debugging, user forget setting detect_anomaly to False"; "2.5x",
    https://github.com/Lightning-AI/pytorch-lightning/issues/17359
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trueloop.analysis.loop_invariance import names_in
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Fix, nodes_in
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.teaching_script import TeachingLoop
from trueloop.tracing.events import BackwardStarted, Event

MIN_UPDATES: Final = 32  # longer than a debugging session in one run
SETTERS: Final = ("torch.autograd.set_detect_anomaly", "torch.autograd.anomaly_mode.set_detect_anomaly")
CONTEXT_MANAGERS: Final = ("torch.autograd.detect_anomaly", "torch.autograd.anomaly_mode.detect_anomaly")
TRAINERS: Final = ("lightning.Trainer", "lightning.pytorch.Trainer", "pytorch_lightning.Trainer")


@dataclass(slots=True, kw_only=True, eq=False)
class AnomalyDetectionUsed(Event):
    """A backward pass started with anomaly detection on; at the line that switched it on, if that was traced."""


class Detector(BaseDetector):
    """Counts the updates for which anomaly detection stays on."""

    activated_by = (AnomalyDetectionUsed,)

    def __init__(self) -> None:
        self._since: int | None = None
        """Update at which anomaly detection was switched on; None while it is off."""
        self._used = False
        """Whether the latest backward pass used it."""

    def on_backward_started(self, event: BackwardStarted) -> None:
        """Record that anomaly detection is off if the previous backward pass did not use it."""
        if not self._used:
            self._since = None
        self._used = False

    def on_anomaly_detection_used(self, event: AnomalyDetectionUsed) -> Evidence | None:
        """Return evidence once anomaly detection has been on for `MIN_UPDATES` updates."""
        self._used = True
        if self._since is None:
            self._since = event.update
        if event.update - self._since < MIN_UPDATES:
            return None
        return Evidence(
            message=f"Anomaly detection has been on for {event.update - self._since} updates: it makes training slow "
            "and is meant for debugging.",
            location=event.location,
            first_update=self._since,
        )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each call that switches anomaly detection on without a condition, if the file never switches it off."""
    calls = [*source.calls_of(*SETTERS), *source.calls_of(*CONTEXT_MANAGERS), *source.calls_of(*TRAINERS)]
    modes = [(call, _mode_argument(source, call)) for call in calls]
    if any(isinstance(each, ast.Constant) and each.value is False for _, each in modes):
        return
    unconditional = _unconditional_nodes(source.tree)
    for call, mode in modes:
        switches_on = isinstance(mode, ast.Constant) and mode.value is True
        if id(call) not in unconditional or not (switches_on or source.qualified_name(call.func) in CONTEXT_MANAGERS):
            continue
        edit = source.text.replace(mode, "False") if mode is not None else None
        if edit is None:
            edit = source.text.replace(call, f"{_package(source, call)}set_detect_anomaly(False)")
        has_name = isinstance(call.func, ast.Attribute) or mode is not None
        yield Hit(
            message="Anomaly detection is always on: it makes training slow and is meant for debugging.",
            node=call,
            fix=Fix((edit,), safe=False, description="Switch anomaly detection off") if has_name else None,
        )


def _mode_argument(source: SourceFile, call: ast.Call) -> ast.expr | None:
    """Return the argument that switches anomaly detection on or off."""
    name = source.qualified_name(call.func)
    keyword = "detect_anomaly" if name in TRAINERS else "mode"
    first = call.args[0] if call.args and name in SETTERS else None
    return first or next((each.value for each in call.keywords if each.arg == keyword), None)


def _package(source: SourceFile, call: ast.Call) -> str:
    return f"{source.text.segment(call.func.value)}." if isinstance(call.func, ast.Attribute) else ""


def _unconditional_nodes(tree: ast.AST) -> set[int]:
    """Return the ids of all nodes outside conditions (except ``if __name__ == "__main__"``), tests and trials."""
    ids, queue = set[int](), [(tree, False)]
    while queue:
        node, in_try = queue.pop()
        is_main = isinstance(node, ast.If) and "__name__" in names_in(node.test)
        is_test = isinstance(node, ast.FunctionDef) and node.name.startswith("test")
        in_try = (in_try or isinstance(node, ast.Try)) and not isinstance(node, ast.FunctionDef)
        is_trial = isinstance(node, ast.With) and (in_try or bool(nodes_in(node, ast.Try)))
        is_condition = isinstance(node, ast.If | ast.IfExp | ast.ExceptHandler | ast.BoolOp) and not is_main
        if is_test or is_trial or is_condition:
            continue
        ids.add(id(node))
        queue += [(each, in_try) for each in ast.iter_child_nodes(node)]
    return ids


RULE = Rule(required_words=("detect_anomaly",), find=find)


def inject(loop: TeachingLoop) -> None:
    """Train with anomaly detection switched on."""
    loop.require(not loop.epoch_context_head, "Another failure has already wrapped the loop.")
    loop.epoch_context_head = "with torch.autograd.set_detect_anomaly(True):"


BAD = """
import torch
from torch import nn

x = torch.randn(32, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with torch.autograd.set_detect_anomaly(True):
    for step in range(64):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="ENV006",
    title="Anomaly detection is left on",
    severity=Severity.NOTE,
    bad=BAD,
    good=changed(BAD, {"anomaly(True)": "anomaly(False)"}),
    fix="Switch anomaly detection off, or make it an option that is off by default.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
