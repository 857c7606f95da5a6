"""A configuration is one row, and repeated submissions cannot select lucky seeds."""

from __future__ import annotations

from trueloop.lab.arena.ranking import JudgedEntry, standings
from trueloop.lab.arena.trial import Trial, TrialFinding


def judged(number: int, config: str, updates: list[int | None], **extra) -> JudgedEntry:
    trials = tuple(
        Trial(seed=k, end="reached", updates=each, examples=extra.get("per", 10) * each, time=extra.get("time", 1.0))
        if each is not None
        else Trial(seed=k, end="not reached", updates=999, examples=999)
        for k, each in enumerate(updates)
    )
    return JudgedEntry(
        id=number, name=extra.get("name", f"n{number}"), config=config, baseline=False, trials=trials,
    )  # fmt: skip


def test_entries_are_ranked_by_the_median():
    rows = standings([judged(1, "a", [1, 50, 60]), judged(2, "b", [40, 40, 40])], "updates")
    assert [(row.rank, row.name, row.updates and row.updates.median) for row in rows] == [(1, "n2", 40), (2, "n1", 50)]
    assert rows[1].updates is not None
    assert (rows[1].updates.lowest, rows[1].updates.highest) == (1, 60)


def test_resubmitting_adds_seeds_to_the_old_ones():
    rows = standings([judged(1, "a", [50, 60, 70]), judged(2, "a", [10, 10, 10])], "updates")
    assert len(rows) == 1
    assert (rows[0].name, rows[0].ids, rows[0].seeds) == ("n1", (1, 2), 6)
    assert rows[0].updates is not None
    assert rows[0].updates.median == 30  # of 10, 10, 10, 50, 60, 70, not 10


def test_an_entry_that_misses_on_one_seed_is_not_ranked():
    rows = standings([judged(1, "a", [1, 1, None]), judged(2, "b", [900, 900, 900])], "updates")
    assert [(row.rank, row.name, row.missed) for row in rows] == [(1, "n2", 0), (None, "n1", 1)]


def test_a_finding_on_any_seed_disqualifies_a_configuration():
    found = TrialFinding(code="GRD007", title="t", severity="error", message="m")
    bad = JudgedEntry(id=2, name="n2", config="a", baseline=False, trials=(Trial(seed=0, end="found", found=found),))
    rows = standings([judged(1, "a", [1, 1]), bad, judged(3, "b", [None, None])], "updates")
    assert [(row.rank, row.name, row.disqualified) for row in rows] == [(None, "n3", ""), (None, "n1", "GRD007")]


def test_each_ranking_has_its_own_winner():
    entries = [judged(1, "a", [10], per=100, time=0.5), judged(2, "b", [20], per=10, time=0.7)]
    winners = {by: standings(entries, by)[0].name for by in ("updates", "examples", "time")}
    assert winners == {"updates": "n1", "examples": "n2", "time": "n1"}


def test_with_equal_medians_the_older_is_ahead():
    rows = standings([judged(7, "b", [10]), judged(3, "a", [10])], "updates")
    assert [row.name for row in rows] == ["n3", "n7"]
