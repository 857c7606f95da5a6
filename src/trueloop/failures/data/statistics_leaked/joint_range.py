"""Finds features that are scaled to a range with the extremes of training and held-out samples together."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from trueloop.core.findings import Evidence
from trueloop.core.source_text import read_source
from trueloop.tracing.running_code import user_modules

if TYPE_CHECKING:
    from trueloop.tracing.trackers.input_statistics import HeldOutInputs

MAX_ERROR: Final = 1e-6
MIN_GAP: Final = 0.01  # share of the range that the training samples do not reach
RANGES: Final = ((0.0, 1.0), (-1.0, 1.0))

_EXTREMES: Final = re.compile(r"(?<!arg)max\(|minmax|maxabs|\.fit\(|fit_transform\(|ptp\(", re.IGNORECASE)
"""Words of a program that computes the largest value of something."""

_Extremes = list[tuple[float, float, float, float]]


def compare_ranges(event: HeldOutInputs) -> Evidence | None:
    """Return evidence if inputs fill a range exactly, but the training samples alone do not reach one of its ends."""
    from trueloop.tracing.trackers.input_statistics import MAX_FEATURES, MIN_ROWS, scaling_line

    train, held_out = event.training, event.held_out
    if len(train.smallest) != len(held_out.smallest) or held_out.rows < MIN_ROWS:
        return None
    if len(train.smallest) > MAX_FEATURES // 2:  # perhaps every second feature only: another may reach the end
        return None
    each = list(zip(train.smallest, train.largest, held_out.smallest, held_out.largest, strict=True))
    each = [one for one in each if max(one) > min(one)]
    common = [(min(train.smallest), max(train.largest), min(held_out.smallest), max(held_out.largest))]
    found = _missed_end(common) or _missed_end(each)
    files = {event.location.source_location.path if event.location else "", *user_modules().values()}
    if found is None or not any(
        _EXTREMES.search(read_source(file)) for file in files
    ):  # fixed limits, as of clamp(0, 1)
        return None
    reached, end = found
    return Evidence(
        message=f"The inputs of {event.model.name} are scaled to a range with the extremes of training and held-out "
        f"samples together: the training samples reach {reached:.3g}, and the end of the range, {end:g}, is only in "
        f"the {held_out.rows} held-out rows.",
        location=scaling_line(event),
    )


def _missed_end(features: _Extremes) -> tuple[float, float] | None:
    """Return how far the training samples reach, and the end that they miss, if all features fill a range exactly."""
    for low, high in RANGES:
        fills = [abs(min(a, c) - low) < MAX_ERROR and abs(max(b, d) - high) < MAX_ERROR for a, b, c, d in features]
        if features and all(fills):
            gap = MIN_GAP * (high - low)
            missed = [(b, high) for _, b, _, _ in features if high - b > gap]
            missed += [(a, low) for a, *_ in features if a - low > gap]
            return missed[0] if missed else None
    return None
