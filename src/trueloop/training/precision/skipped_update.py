"""Explain an update that was skipped: its kind and its cause."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trueloop.training.distributed.processes import Processes
from trueloop.training.loop import Assembly
from trueloop.training.precision.locate_nonfinite import Culprit, Replay, locate_in_batches
from trueloop.training.update_buffer import BufferedUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedUpdate:
    """One skipped update and its explanation."""

    kind: str
    """"nothing_counted", "loss_scale" or "not_finite"."""
    message: str
    culprit: Culprit | None

    @property
    def details(self) -> Mapping[str, Any]:
        """The culprit's fields, JSON-ready."""
        return self.culprit.as_dict() if self.culprit else {}


def explain_skip(assembly: Assembly, entry: BufferedUpdate) -> SkippedUpdate:
    """Explain why an update was skipped; only non-finite numbers count towards the guard's limit.

    Cost: if the guard's ``locate`` is on, runs the window again.
    """
    update = entry.row.update
    if not entry.has_targets:
        message = f"Update {update} was skipped: every target of its window is ignored or has weight 0."
        return SkippedUpdate(kind="nothing_counted", message=message, culprit=None)
    if assembly.scale.is_calibrating:  # the loss scale was too large, unless the batch itself is not finite
        culprit = locate_in_batches(entry.window)
        message = f"Update {update} overflowed float16 and was skipped; the loss scale is halved"
        return SkippedUpdate(kind="loss_scale", message=_append_culprit(message, culprit), culprit=culprit)
    assembly.guard.record_nonfinite()
    replay = Replay(
        model=assembly.model,
        objective=assembly.objective,
        device=assembly.device,
        autocast=assembly.autocast,
        generator=assembly.guard.generator,
        collective_forward=assembly.parallel.collective_forward,
    )
    culprit = assembly.guard.locate(replay, entry.window)
    message = f"Update {update} was not finite and was skipped"
    return SkippedUpdate(kind="not_finite", message=_append_culprit(message, culprit), culprit=culprit)


def share_explanation(skipped: SkippedUpdate, processes: Processes) -> SkippedUpdate:
    """Return the explanation of the process that found the cause in its share of the window.

    Raises:
        ProcessLost: another process is gone.
    """
    explanations = processes.all_gather_object(skipped)
    ranks = [rank for rank, each in enumerate(explanations) if each.culprit and each.culprit.stage != "unknown"]
    if not ranks or processes.size == 1:
        return skipped
    message = explanations[ranks[0]].message.rstrip(".")
    return replace(explanations[ranks[0]], message=f"{message}, in process {ranks[0]}.")


def _append_culprit(message: str, culprit: Culprit | None) -> str:
    return f"{message}; {culprit}." if culprit else f"{message}."
