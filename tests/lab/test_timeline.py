"""The timeline agrees with a run counted iteration by iteration, and stays small for any run."""

from __future__ import annotations

from hypothesis import assume, example, given
from hypothesis import strategies as st

from trueloop.core.arithmetic import Plan, plan
from trueloop.lab.timeline import Gap, Iteration, Share, Window, select_around, timeline


@st.composite
def plans(draw: st.DrawFn, largest: int = 10**15) -> Plan:
    count = st.integers(1, 60) | st.integers(1, largest)
    sizes = {name: draw(count) for name in ("dataset", "batch", "epochs", "accumulate", "processes")}
    drop_last = draw(st.booleans())
    assume(not drop_last or sizes["dataset"] >= sizes["batch"] * sizes["processes"])
    return plan(**sizes, drop_last=drop_last)


def count_iterations(run: Plan) -> list[tuple[int, int, int, int, bool]]:
    """Return (epoch, window, index in the window, examples, whether an update follows) of every iteration."""
    positions: list[tuple[int, int, int, int, bool]] = []
    for epoch in range(run.epochs):
        left, window, in_window = run.examples_per_epoch, 0, 0
        while left:
            count = min(left, run.iteration_examples)
            left -= count
            closes = in_window == run.accumulate - 1 or not left
            positions.append((epoch, window, in_window, count, closes))
            window, in_window = (window + 1, 0) if closes else (window, in_window + 1)
    return positions


@given(plans(60))
def test_every_position_agrees_with_counting(run: Plan):
    assume(run.iterations <= 400)
    updates = 0
    for at, (epoch, window, in_window, count, closes) in enumerate(count_iterations(run)):
        line = timeline(run, iteration=at)
        assert (line.epoch, line.window, line.in_window, line.examples, line.closes_window) == (
            epoch,
            window,
            in_window,
            count,
            closes,
        )
        assert line.update == updates
        updates += closes
    assert updates == run.updates


@given(plans(), st.integers(0, 10**18), st.integers(8, 300))
@example(plan(dataset=57, batch=1, epochs=1, accumulate=10, processes=1), 0, 36)
def test_a_timeline_is_small_and_complete(run: Plan, at: int, max_marks: int):
    line = timeline(run, iteration=at, max_marks=max_marks)
    marks = 0
    total = 0
    for window in line.windows:
        if isinstance(window, Gap):
            total += window.hidden
            continue
        total += 1
        count = sum(mark.hidden if isinstance(mark, Gap) else 1 for mark in window.iterations)
        marks += len(window.iterations)
        last = window.index == run.updates_per_epoch - 1
        assert count == (run.last_window if last else run.accumulate)
        assert count + window.missing == run.accumulate
    assert total == run.updates_per_epoch
    assert marks <= max(max_marks, 6 * 6)
    assert sum(epoch.hidden if isinstance(epoch, Gap) else 1 for epoch in line.epochs) == run.epochs
    assert len(line.epochs) <= max_marks
    assert len(line.shares) <= 10


@given(plans(), st.integers(0, 10**18))
def test_the_current_and_the_partial_iteration_are_drawn(run: Plan, at: int):
    line = timeline(run, iteration=at)
    marks = [
        mark
        for window in line.windows
        if isinstance(window, Window)
        for mark in window.iterations
        if isinstance(mark, Iteration)
    ]
    assert line.in_epoch in {mark.index for mark in marks}
    assert line.epoch in line.epochs
    assert marks[-1].index == run.iterations_per_epoch - 1
    assert [mark.share for mark in marks[:-1]] == [1] * (len(marks) - 1)
    assert marks[-1].share == run.last_batch / run.iteration_examples


@given(plans(40), st.integers(0, 1000))
def test_the_shares_of_the_processes_add_up(run: Plan, at: int):
    assume(run.processes <= 8)
    line = timeline(run, iteration=at)
    count = [share.examples for share in line.shares if isinstance(share, Share)]
    assert sum(count) == line.examples
    assert count == [len(range(line.examples)[rank :: run.processes]) for rank in range(run.processes)]


@given(st.integers(1, 500), st.integers(0, 499), st.integers(8, 60))
def test_select_around_keeps_the_ends_and_the_center(total: int, now: int, max_marks: int):
    assume(now < total)
    chosen = list(select_around(total, now, max_marks))
    positions = [position for position in chosen if isinstance(position, int)]
    assert len(chosen) <= max_marks
    assert {0, total - 1, now} <= set(positions)
    assert positions == sorted(set(positions))
    assert len(positions) + sum(gap.hidden for gap in chosen if isinstance(gap, Gap)) == total


@given(plans(60), st.integers(0, 10**5))
def test_the_targets_of_the_buttons(run: Plan, at: int):
    line = timeline(run, iteration=at)
    per_epoch, targets = run.iterations_per_epoch, line.targets(run).items()
    to = {name: timeline(run, iteration=epoch * per_epoch + iteration) for name, (epoch, iteration) in targets}
    assert to["first"].iteration == 0
    assert to["last"].iteration == run.iterations - 1
    assert to["previous"].iteration == max(0, line.iteration - 1)
    assert to["next"].iteration == min(line.iteration + 1, run.iterations - 1)
    if line.update + 1 < run.updates:
        assert (to["update"].update, to["update"].in_window) == (line.update + 1, 0)
    if line.epoch + 1 < run.epochs:
        assert (to["epoch"].epoch, to["epoch"].in_epoch) == (line.epoch + 1, 0)
    assert (to["epochs_end"].epoch, to["epochs_end"].in_epoch) == (line.epoch, run.iterations_per_epoch - 1)


def test_position_and_coverage_are_described():
    run = plan(dataset=10000, batch=32, epochs=3, accumulate=4)
    last = timeline(run, iteration=312)
    assert last.describe_position(run) == (
        "Epoch 1 of 3, iteration 313 of 313: 16 of 32 examples. "
        "It is iteration 1 of 1 in its window; update 79 follows."
    )
    assert timeline(run, iteration=310).describe_position(run).endswith("update 78 follows after 1 more iteration.")
    assert last.describe_coverage(run).startswith("Drawn: 3 of 3 epochs; of epoch 1, ")
    small = plan(dataset=100, batch=16)
    assert timeline(small).describe_coverage(small).startswith("Everything is drawn")
