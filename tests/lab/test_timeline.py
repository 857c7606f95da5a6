"""What is drawn of a run, against the run counted one by one; and that the drawing stays small whatever the run."""

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


def walked(made: Plan) -> list[tuple[int, int, int, int, bool]]:
    """Walk the run one iteration after another: epoch, window, place in it, examples, whether an update follows."""
    places: list[tuple[int, int, int, int, bool]] = []
    for epoch in range(made.epochs):
        left, window, in_window = made.examples_per_epoch, 0, 0
        while left:
            held = min(left, made.iteration_examples)
            left -= held
            closes = in_window == made.accumulate - 1 or not left
            places.append((epoch, window, in_window, held, closes))
            window, in_window = (window + 1, 0) if closes else (window, in_window + 1)
    return places


@given(plans(60))
def test_every_position_is_where_walking_there_arrives(made: Plan):
    assume(made.iterations <= 400)
    updates = 0
    for at, (epoch, window, in_window, held, closes) in enumerate(walked(made)):
        line = timeline(made, at=at)
        assert (line.epoch, line.window, line.in_window, line.examples, line.closes_window) == (
            epoch,
            window,
            in_window,
            held,
            closes,
        )
        assert line.update == updates
        updates += closes
    assert updates == made.updates


@given(plans(), st.integers(0, 10**18), st.integers(8, 300))
@example(plan(dataset=57, batch=1, epochs=1, accumulate=10, processes=1), 0, 36)
def test_a_drawing_is_small_and_adds_up(made: Plan, at: int, room: int):
    line = timeline(made, at=at, max_marks=room)
    marks = 0
    total = 0
    for window in line.windows:
        if isinstance(window, Gap):
            total += window.hidden
            continue
        total += 1
        held = sum(mark.hidden if isinstance(mark, Gap) else 1 for mark in window.iterations)
        marks += len(window.iterations)
        last = window.index == made.updates_per_epoch - 1
        assert held == (made.last_window if last else made.accumulate)
        assert held + window.missing == made.accumulate
    assert total == made.updates_per_epoch
    assert marks <= max(room, 6 * 6)
    assert sum(epoch.hidden if isinstance(epoch, Gap) else 1 for epoch in line.epochs) == made.epochs
    assert len(line.epochs) <= room
    assert len(line.shares) <= 10


@given(plans(), st.integers(0, 10**18))
def test_the_position_and_the_partial_one_are_drawn(made: Plan, at: int):
    line = timeline(made, at=at)
    marks = [
        mark
        for window in line.windows
        if isinstance(window, Window)
        for mark in window.iterations
        if isinstance(mark, Iteration)
    ]
    assert line.in_epoch in {mark.index for mark in marks}
    assert line.epoch in line.epochs
    assert marks[-1].index == made.iterations_per_epoch - 1
    assert [mark.share for mark in marks[:-1]] == [1] * (len(marks) - 1)
    assert marks[-1].share == made.last_batch / made.iteration_examples


@given(plans(40), st.integers(0, 1000))
def test_the_shares_of_the_processes_add_up(made: Plan, at: int):
    assume(made.processes <= 8)
    line = timeline(made, at=at)
    held = [share.examples for share in line.shares if isinstance(share, Share)]
    assert sum(held) == line.examples
    assert held == [len(range(line.examples)[rank :: made.processes]) for rank in range(made.processes)]


@given(st.integers(1, 500), st.integers(0, 499), st.integers(8, 60))
def test_around_keeps_the_ends_and_the_middle(total: int, now: int, room: int):
    assume(now < total)
    chosen = list(select_around(total, now, room))
    places = [place for place in chosen if isinstance(place, int)]
    assert len(chosen) <= room
    assert {0, total - 1, now} <= set(places)
    assert places == sorted(set(places))
    assert len(places) + sum(gap.hidden for gap in chosen if isinstance(gap, Gap)) == total


@given(plans(60), st.integers(0, 10**5))
def test_moves_lead_where_they_say(made: Plan, at: int):
    line = timeline(made, at=at)
    to = {name: timeline(made, at=e * made.iterations_per_epoch + i) for name, (e, i) in line.targets(made).items()}
    assert to["first"].iteration == 0
    assert to["last"].iteration == made.iterations - 1
    assert to["previous"].iteration == max(0, line.iteration - 1)
    assert to["next"].iteration == min(line.iteration + 1, made.iterations - 1)
    if line.update + 1 < made.updates:
        assert (to["update"].update, to["update"].in_window) == (line.update + 1, 0)
    if line.epoch + 1 < made.epochs:
        assert (to["epoch"].epoch, to["epoch"].in_epoch) == (line.epoch + 1, 0)
    assert (to["epochs_end"].epoch, to["epochs_end"].in_epoch) == (line.epoch, made.iterations_per_epoch - 1)


def test_it_says_where_it_is_and_what_it_leaves_out():
    made = plan(dataset=10000, batch=32, epochs=3, accumulate=4)
    last = timeline(made, at=312)
    assert last.describe_position(made) == (
        "Epoch 1 of 3, iteration 313 of 313: 16 of 32 examples. "
        "It is iteration 1 of 1 in its window; update 79 follows."
    )
    assert timeline(made, at=310).describe_position(made).endswith("update 78 follows after 1 more iteration.")
    assert last.describe_coverage(made).startswith("Drawn: 3 of 3 epochs; of epoch 1, ")
    small = plan(dataset=100, batch=16)
    assert timeline(small).describe_coverage(small).startswith("Everything is drawn")
