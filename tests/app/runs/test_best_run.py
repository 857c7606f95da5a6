import shutil

import pytest

from trueloop.app.runs.best_run import find_best, list_checkpoints
from trueloop.core.protocols import Evaluated, RunEnded
from trueloop.runs.queries.index import load_overviews


def find_by_metric(fake_runs, metric="val/loss", mode="min"):
    return find_best(load_overviews(fake_runs.root), metric, mode)


def test_the_best_of_all_runs_has_a_verified_checkpoint(fake_runs):
    fake_runs.run("a", losses=(0.5, 0.3, 0.4), checkpoints=(4, 6))
    fake_runs.run("b", losses=(0.6, 0.35), checkpoints=(4,))
    best = find_by_metric(fake_runs)
    assert (best.best.run.name, best.best.point) == ("a", (0.3, 4, 2))
    assert best.best.checkpoint == fake_runs.root / "a" / "checkpoints" / "update-000000004"
    assert (best.best.problem, best.alternative) == ("", None)
    assert best.best.as_json()["verified"] is True


def test_a_deleted_best_is_named_and_the_next_best_is_offered(fake_runs):
    fake_runs.run("a", losses=(0.5, 0.1, 0.4), checkpoints=(6,))
    fake_runs.run("b", losses=(0.3, 0.6), checkpoints=(2, 4))
    fake_runs.run("c", losses=(0.2,))
    best = find_by_metric(fake_runs)
    assert (best.best.run.name, best.best.point.update) == ("a", 4)
    assert best.best.problem == "it is missing: it was removed, or never saved"
    assert (best.alternative.run.name, best.alternative.point, best.alternative.problem) == ("b", (0.3, 2, 1), "")


def test_the_next_best_may_be_in_the_same_run(fake_runs):
    fake_runs.run("a", losses=(0.1, 0.2, 0.15), checkpoints=(4, 6))
    fake_runs.run("b", losses=(0.17,), checkpoints=(2,))
    best = find_by_metric(fake_runs)
    assert (best.alternative.run.name, best.alternative.point.value) == ("a", 0.15)


def test_of_equals_the_usable_one_wins(fake_runs):
    fake_runs.run("a", losses=(0.1, 0.1, 0.2), checkpoints=(4, 6))
    best = find_by_metric(fake_runs)
    assert (best.best.point, best.best.problem, best.alternative) == ((0.1, 4, 2), "", None)


def test_higher_may_be_better(fake_runs):
    fake_runs.run("a", losses=(0.1, 0.2), accuracies=(0.9, 0.5), checkpoints=(4,))
    fake_runs.run("b", losses=(0.1, 0.2), accuracies=(0.6, 0.7), checkpoints=(2, 4))
    best = find_by_metric(fake_runs, "val/accuracy", "max")
    assert (best.best.run.name, best.best.point.value, best.alternative.run.name) == ("a", 0.9, "b")
    assert best.alternative.point.value == 0.7


@pytest.mark.parametrize("file", ["model.safetensors", "state.json"])
def test_one_flipped_bit_is_detected(fake_runs, file):
    fake_runs.run("a", losses=(0.1, 0.2), checkpoints=(2, 4))
    path = fake_runs.root / "a" / "checkpoints" / "update-000000002"
    data = bytearray((path / file).read_bytes())
    data[-1] ^= 1
    (path / file).write_bytes(data)
    best = find_by_metric(fake_runs)
    assert f"{file} does not match its checksum" in best.best.problem
    assert best.alternative.point.update == 4


def test_a_damaged_checkpoint_is_explained(fake_runs):
    fake_runs.run("a", losses=(0.1,), checkpoints=(2,))
    path = fake_runs.root / "a" / "checkpoints" / "update-000000002"
    (path / "manifest.json").unlink()
    best = find_by_metric(fake_runs)
    assert "there is no manifest.json" in best.best.problem
    assert best.best.checkpoint == path
    assert best.alternative is None


def test_without_any_checkpoint_nothing_is_offered(fake_runs):
    fake_runs.run("a")
    shutil.rmtree(fake_runs.root / "a" / "checkpoints", ignore_errors=True)
    assert find_by_metric(fake_runs).alternative is None


def test_the_test_set_was_evaluated_with_the_final_weights(fake_runs):
    for name, final in (("best", "best"), ("last", "last")):
        facts = {"config": {"monitor": {"metric": "val/loss", "mode": "min"}, "checkpoint": {"final": final}}}
        fake_runs.run(name, losses=(0.5, 0.3, 0.4), end="", checkpoints=(4, 6), facts=facts)
        loss = 0.2 if final == "best" else 0.1
        test = Evaluated(update=6, epoch=3, split="test", metrics={"loss": loss}, tables={}, seconds=0.1, best=False)
        fake_runs.write(name, [test, RunEnded(update=6, reason="finished", seconds=2)])
    best = find_by_metric(fake_runs, "test/loss")
    assert (best.best.run.name, best.best.checkpoint.name) == ("last", "update-000000006")
    shutil.rmtree(best.best.checkpoint)
    best = find_by_metric(fake_runs, "test/loss")
    assert (best.best.problem != "", best.alternative.run.name) == (True, "best")
    assert best.alternative.checkpoint.name == "update-000000004"


def test_searching_changes_nothing(fake_runs):
    path = fake_runs.run("a")
    assert list_checkpoints(path) == []
    assert not (path / "checkpoints").exists()
