"""Test that merging rows preserves sums and extremes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueloop.core.protocols import UpdateRow
from trueloop.runs.live import rows as module
from trueloop.runs.live.rows import Rows, row_of_update

LOSSES = st.lists(st.one_of(st.floats(0, 100), st.sampled_from([math.nan, math.inf])), min_size=1, max_size=200)


def update(number, loss=1.0, *, skipped=False):
    return UpdateRow(number, 1, loss, 2.0 * loss, 0.1, 8, 0.001, 0.01, skipped)


@given(LOSSES)
def test_merging_preserves_sums_counts_means_and_extremes(losses):
    rows = Rows()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_ROWS", 8)
        for number, loss in enumerate(losses, 1):
            rows.add(row_of_update(update(number, loss, skipped=not math.isfinite(loss))))
    stored = rows.rows
    assert len(stored) <= 8
    assert stored[-1].update == len(losses)
    assert sum(row.updates for row in stored) == len(losses)
    assert sum(row.examples for row in stored) == 8 * len(losses)
    assert sum(row.total_s for row in stored) == pytest.approx(0.01 * len(losses))
    finite = [loss for loss in losses if math.isfinite(loss)]
    assert sum(row.loss_count for row in stored) == len(finite)
    assert sum(row.skipped for row in stored) == len(losses) - len(finite)
    if finite:
        lows = [row.loss_low for row in stored if not math.isnan(row.loss_low)]
        highs = [row.loss_high for row in stored if not math.isnan(row.loss_high)]
        assert (min(lows), max(highs)) == (min(finite), max(finite))
        mean = sum(row.loss * row.loss_count for row in stored if row.loss_count) / len(finite)
        assert mean == pytest.approx(sum(finite) / len(finite))


def test_all_rows_except_the_newest_merge_equally_many_updates(monkeypatch):
    monkeypatch.setattr(module, "MAX_ROWS", 8)
    rows = Rows()
    for number in range(1, 78):
        rows.add(row_of_update(update(number)))
    assert {row.updates for row in rows.rows[:-1]} == {rows.stride}


def test_superseded_rows_are_dropped():
    rows = Rows()
    for number in range(1, 11):
        rows.add(row_of_update(update(number)))
    rows.drop_after(6)
    assert [row.update for row in rows.rows] == [1, 2, 3, 4, 5, 6]
