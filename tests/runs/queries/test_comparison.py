from trueloop.runs.journal import read_journal
from trueloop.runs.queries.comparison import ABSENT, compare_metrics, find_differences, metric_modes
from trueloop.runs.queries.overview import Point


def test_differences_are_grouped(fake_runs):
    one = read_journal(fake_runs.run("a"))
    other = read_journal(
        fake_runs.run(
            "b",
            facts={
                "config": {**one.facts["config"], "optim": {"name": "adamw", "lr": 0.01, "betas": [0.9, 0.99]}},
                "code": {"recipe.py": "cc/dd"},
                "git": {"commit": "fff", "dirty": True},
                "data": {"train": "9:sha256:2a"},
                "versions": {"torch": "2.14.0", "python": "3.11.7"},
                "command": ["trueloop", "train", "digits"],
            },
        )
    )
    found = {(each.group, each.name): list(each.values) for each in find_differences([one, other])}
    assert found == {
        ("config", "config.optim.lr"): [0.001, 0.01],
        ("config", "config.optim.betas"): [[0.9, 0.999], [0.9, 0.99]],
        ("code", "code.recipe.py"): ["aa/bb", "cc/dd"],
        ("code", "git"): ["0123456789ab", ABSENT],
        ("code", "git.commit"): [ABSENT, "fff"],
        ("code", "git.dirty"): [ABSENT, True],
        ("data", "data.train"): ["8:sha256:1f", "9:sha256:2a"],
        ("environment", "versions.torch"): ["2.13.0", "2.14.0"],
    }
    groups = [each.group for each in find_differences([one, other])]
    assert groups == sorted(groups, key=["config", "code", "data", "model", "environment"].index)


def test_identical_runs_have_no_differences(fake_runs):
    assert find_differences([read_journal(fake_runs.run("a")), read_journal(fake_runs.run("b"))]) == []


def test_true_differs_from_one_and_three_runs_are_compared(fake_runs):
    runs = [
        read_journal(fake_runs.run(name, facts={"options": {"x": value}}))
        for name, value in zip("abc", (1, 1, True), strict=True)
    ]
    (found,) = [each for each in find_differences(runs) if each.name == "options.x"]
    assert list(found.values) == [1, 1, True]


def test_metrics_are_compared_side_by_side(fake_runs):
    one = read_journal(fake_runs.run("a", losses=(0.5, 0.3, 0.4)))
    other = read_journal(fake_runs.run("b", losses=(0.6,), accuracies=(0.9,)))
    loss, accuracy = compare_metrics([one, other], metric_modes([one, other]))
    assert loss.metric == "val/loss"
    assert loss.best == [Point(0.3, 4, 2), Point(0.6, 2, 1)]
    assert loss.last == [Point(0.4, 6, 3), Point(0.6, 2, 1)]
    assert (accuracy.best, accuracy.last) == ([None, Point(0.9, 2, 1)], [None, Point(0.9, 2, 1)])


def test_a_recipe_source_is_compared_by_its_hash(fake_runs):
    runs = [read_journal(fake_runs.run(name, facts={"source": {"recipe.py": name * 9999}})) for name in "ab"]
    (found,) = find_differences(runs)
    assert (found.group, found.name) == ("code", "source.recipe.py")
    assert all(value.startswith("sha256:") and len(value) == 19 for value in found.values)
