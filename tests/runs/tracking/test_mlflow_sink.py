"""Test MLflow stores: SQLite, PostgreSQL, a server; locked, unreachable, of another schema, with two writers."""

import sqlite3
from pathlib import Path

import pytest

pytest.importorskip("mlflow")

from mlflow import MlflowClient

from trueloop.core.protocols import Evaluated
from trueloop.runs.tracking.mlflow_sink import MlflowSink
from trueloop.runs.tracking.sink import StoreError, StoreRejected, StoreUnavailable
from trueloop.runs.tracking.sync_journal import JournalSync, sync_run
from trueloop.runs.tracking.target import parse_target

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # warnings of SQLAlchemy about MLflow


@pytest.fixture(params=["sqlite", "postgresql", "server"])
def store(request, tmp_path):
    """The address of a store of each kind, without runs."""
    if request.param == "sqlite":
        return request.getfixturevalue("sqlite_store")
    if request.param == "server":
        url = request.getfixturevalue("mlflow_server")
        clear(url)
        return url
    name = "t_" + "".join(char for char in tmp_path.name.lower() if char.isalnum())
    return request.getfixturevalue("postgres").database(name)


def clear(url):
    """Delete every run and model of a shared store."""
    client = MlflowClient(tracking_uri=url)
    experiments = [each.experiment_id for each in client.search_experiments()]
    for run in client.search_runs(experiments):
        client.delete_run(run.info.run_id)
    for model in client.search_logged_models(experiments):
        client.delete_logged_model(model.model_id)


def sync(run, url, **how):
    return sync_run(run.path, parse_target(url, run.path.parent), **how)


@pytest.mark.parametrize("events", ["COMPLETE", "KILLED", "RESUMED"])
def test_mlflow_contains_the_content_of_the_journal(helpers, new_run, store, events):
    run = new_run(getattr(helpers, events))
    assert sync(run, store).outcome == "copied"
    stored, points, models = helpers.in_mlflow(store)
    assert points == helpers.points_of(run.path)
    assert stored.data.params == {
        "epochs": "3", "clip": "null", "optim.name": "adamw", "optim.lr": "0.001", "optim.betas": "[0.9, 0.999]",
        "options.width": "32",
    }  # fmt: skip
    tags = stored.data.tags
    assert tags["trueloop.git.commit"] == tags["mlflow.source.git.commit"] == "4e7f36d0"
    assert tags["trueloop.data.train"] == "sha256:1f9a0b"
    assert stored.info.run_name == tags["trueloop.folder"] == run.path.name
    assert (stored.info.status, tags["trueloop.state"]) == {
        "COMPLETE": ("FINISHED", "finished"), "KILLED": ("KILLED", "killed"), "RESUMED": ("FINISHED", "finished"),
    }[events]  # fmt: skip
    from trueloop.runs.journal import read_journal

    assert {model.tags["trueloop.checkpoint"] for model in models.values()} == {
        checkpoint.path for checkpoint in read_journal(run.path).checkpoints
    }
    notes = [value for key, value in sorted(tags.items()) if key.startswith("trueloop.note.")]
    assert notes == [f"update {n.update}, {n.kind}: {n.message}" for n in read_journal(run.path).notes]


def test_a_second_sync_changes_nothing(helpers, new_run, store):
    run = new_run(helpers.RESUMED)
    sync(run, store)
    before = helpers.in_mlflow(store)
    assert sync(run, store).outcome == "complete"
    after = helpers.in_mlflow(store)
    assert (after[0].info.run_id, after[0].data.tags, after[1]) == (
        before[0].info.run_id,
        before[0].data.tags,
        before[1],
    )
    assert {m.model_id for m in after[2].values()} == {m.model_id for m in before[2].values()}


def test_superseded_points_are_removed(helpers, new_run, store):
    run = new_run(helpers.KILLED)
    sync(run, store)
    run.add([*helpers.RESUMED[len(helpers.KILLED) :]])
    assert sync(run, store).outcome == "rewritten"
    _, points, models = helpers.in_mlflow(store)
    assert points == helpers.points_of(run.path)
    assert sorted(models) == ["update-000000004", "update-000000008", "update-000000012"]


def test_one_query_finds_the_best_checkpoint_of_all_runs(helpers, new_run, store):
    other = {**helpers.FACTS, "run_id": "f" * 32}
    better = new_run([helpers.started(facts=other), *helpers.epoch(4, 0.3), *helpers.epoch(8, 0.35), helpers.ended(8)])
    worse = new_run(helpers.COMPLETE)
    for run in (worse, better):
        sync(run, store)
    client = MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name("digits").experiment_id
    order = [{"field_name": "metrics.val/loss", "ascending": True}]
    found = client.search_logged_models([experiment], order_by=order, max_results=1)[0]
    assert found.tags["trueloop.run_id"] == "f" * 32
    assert found.tags["trueloop.checkpoint"].endswith("update-000000004")
    assert [(m.key, m.value, m.step) for m in found.metrics] == [("val/loss", 0.3, 4), ("val/accuracy", 0.85, 4)]
    assert client.get_run(found.source_run_id).info.run_name == better.path.name


def test_a_writer_killed_between_a_batch_and_its_cursor_is_repaired(helpers, new_run, store, monkeypatch):
    run = new_run(helpers.COMPLETE[:8])

    def killed(self, run_id, key, value, **_):
        if key == "trueloop.cursor" and '"journal_bytes": 0' not in value:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "set_tag", killed)
        with pytest.raises(KeyboardInterrupt):
            sync(run, store)
    assert helpers.in_mlflow(store)[1]
    run.add(helpers.COMPLETE[8:])
    sync(run, store)
    assert helpers.in_mlflow(store)[1] == helpers.points_of(run.path)


def test_two_writers_of_one_run_create_it_once(helpers, new_run, store):
    # Like two machines on a file system without locks: the lock on the journal is not taken.
    run = new_run(helpers.COMPLETE[:4])
    target = parse_target(store, run.path.parent)
    with (run.path / "journal.jsonl").open("rb", buffering=0) as file:
        first, second = (JournalSync(file, run.path.name, MlflowSink(target)) for _ in range(2))
        first.sync_new_lines()
        second.sync_new_lines()
        run.add(helpers.COMPLETE[4:9])
        second.sync_new_lines()
        first.sync_new_lines()
        run.add(helpers.COMPLETE[9:])
        first.sync_new_lines()
        second.sync_new_lines()
        second.finish(alive=False)
        first.finish(alive=False)
    assert sync(run, store).outcome == "complete"
    _, points, models = helpers.in_mlflow(store)
    assert points == helpers.points_of(run.path)
    assert sorted(models) == ["update-000000004", "update-000000008", "update-000000012"]


def test_a_duplicated_run_becomes_one(helpers, new_run, sqlite_store):
    run = new_run(helpers.COMPLETE)
    sync(run, sqlite_store)
    client = MlflowClient(tracking_uri=sqlite_store)
    client.create_run(client.get_experiment_by_name("digits").experiment_id, tags={"trueloop.run_id": helpers.RUN_ID})
    assert sync(run, sqlite_store).outcome == "rewritten"
    _, points, models = helpers.in_mlflow(sqlite_store)
    assert points == helpers.points_of(run.path)
    assert len(models) == 3


def test_a_run_deleted_in_mlflow_is_restored(helpers, new_run, sqlite_store):
    run = new_run(helpers.COMPLETE)
    sync(run, sqlite_store)
    MlflowClient(tracking_uri=sqlite_store).delete_run(helpers.in_mlflow(sqlite_store)[0].info.run_id)
    sync(run, sqlite_store)
    _, points, models = helpers.in_mlflow(sqlite_store)
    assert points == helpers.points_of(run.path)
    assert len(models) == 3


def test_invalid_mlflow_names_are_changed_minimally(helpers, new_run, sqlite_store):
    facts = {**helpers.FACTS, "config": {"a'b\"; DROP TABLE runs": "x" * 10_000}, "<script>": "'); --"}
    facts["config"] |= {"n" * 250 + tail: tail for tail in "12"}
    run = new_run([helpers.started(facts=facts), helpers.rows(1, 4), helpers.saved(4), helpers.ended(4)])
    sync(run, sqlite_store)
    stored, points, _ = helpers.in_mlflow(sqlite_store)
    assert points == helpers.points_of(run.path)
    assert stored.data.params["n" * 250] == "2"
    assert stored.data.params["a_b__ DROP TABLE runs"] == "x" * 499 + "…"
    assert stored.data.tags["trueloop._script_"] == "'); --"


def test_names_with_path_components_are_escaped(helpers, new_run, sqlite_store):
    names = {
        "f1//macro": "val/f1/_/macro", "": "val/_", "a/../b": "val/a/__/b", "./c": "val/_/c", "d/": "val/d/_",
        "e" * 245 + "/f": "val/" + "e" * 245, "v1.2": "val/v1.2",
    }  # fmt: skip
    measured = Evaluated(
        update=4, epoch=1, split="val", metrics=dict.fromkeys(names, 0.5), tables={}, seconds=0.1, best=False
    )
    facts = {**helpers.FACTS, "config": {"/x": 1, "y//z": 2}, "data": {"..": "w"}}
    run = new_run([helpers.started(facts=facts), helpers.rows(1, 4), measured, helpers.ended(4)])
    sync(run, sqlite_store)
    stored, points, _ = helpers.in_mlflow(sqlite_store)
    assert {name for name, _ in points if name.startswith("val")} == set(names.values())
    assert stored.data.params == {"_/x": "1", "y/_/z": "2", "options.width": "32"}
    assert stored.data.tags["trueloop.data..."] == "w"


@pytest.mark.parametrize("kind", ["sqlite", "tensorboard"])
def test_invalid_unicode_is_replaced(helpers, new_run, sqlite_store, tmp_path, kind):
    facts = {**helpers.FACTS, "options": {"data": "/data/\udcff"}, "where": "\udcff"}
    run = new_run(
        [helpers.started(facts=facts), helpers.rows(1, 4), helpers.notice(4, "odd", "\udcff"), helpers.ended(4)]
    )
    assert sync(run, sqlite_store if kind == "sqlite" else f"tensorboard:{tmp_path}/tb").outcome == "copied"
    if kind == "sqlite":
        assert helpers.in_mlflow(sqlite_store)[0].data.params["options.data"] == "/data/?"


def test_only_a_valid_run_id_is_used_in_a_query(helpers, new_run, sqlite_store):
    facts = {**helpers.FACTS, "run_id": "' OR tags.x != '"}
    run = new_run([helpers.started(facts=facts), helpers.rows(1, 4), helpers.ended(4)])
    sync(run, sqlite_store)
    import hashlib

    first = (run.path / "journal.jsonl").read_bytes().splitlines(keepends=True)[0]
    assert helpers.in_mlflow(sqlite_store, hashlib.sha256(first).hexdigest()[:32])[1] == helpers.points_of(run.path)


def test_the_schema_of_another_mlflow_version_is_refused(helpers, new_run, sqlite_store):
    path = Path(sqlite_store.removeprefix("sqlite:///"))
    with sqlite3.connect(path) as database:
        database.execute("UPDATE alembic_version SET version_num = '0123456789ab'")
    database.close()
    run = new_run(helpers.COMPLETE)
    before, journal = path.read_bytes(), (run.path / "journal.jsonl").read_bytes()
    with pytest.raises(StoreError, match="has the schema of another MLflow") as caught:
        sync(run, sqlite_store)
    assert not isinstance(caught.value, StoreUnavailable)
    assert "mlflow db upgrade" in caught.value.fix
    assert path.read_bytes() == before
    assert (run.path / "journal.jsonl").read_bytes() == journal


def test_a_file_that_is_not_a_database_is_refused(helpers, new_run, tmp_path):
    (tmp_path / "x.db").write_bytes(b"no database " * 1000)
    with pytest.raises(StoreError, match="x.db.* does not answer.*not a database"):
        sync(new_run(helpers.COMPLETE), f"sqlite:///{tmp_path}/x.db")


def test_a_locked_database_is_unavailable(helpers, new_run, sqlite_store, monkeypatch):
    run = new_run(helpers.COMPLETE)
    sync(run, sqlite_store)
    from sqlalchemy import sql

    real = sql.text  # MLflow waits 20 s for a lock
    monkeypatch.setattr(sql, "text", lambda text: real(text.replace("busy_timeout = 20000", "busy_timeout = 100")))
    other = {**helpers.FACTS, "run_id": "e" * 32}
    run = new_run([helpers.started(facts=other), helpers.rows(1, 4), helpers.ended(4)])
    database = sqlite3.connect(sqlite_store.removeprefix("sqlite:///"), isolation_level=None)
    database.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreUnavailable, match="database is locked"):
        sync(run, sqlite_store)
    database.close()
    assert sync(run, sqlite_store).outcome == "copied"
    assert helpers.in_mlflow(sqlite_store, "e" * 32)[1] == helpers.points_of(run.path)


def test_an_unreachable_database_is_reported_fast_without_its_password(helpers, new_run):
    with pytest.raises(StoreUnavailable) as caught:
        sync(new_run(helpers.COMPLETE), "postgresql+psycopg://me:s3cret@127.0.0.1:9/runs")
    assert "does not answer" in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_an_unreachable_server_is_reported_without_its_password(helpers, new_run):
    with pytest.raises(StoreUnavailable) as caught:
        sync(new_run(helpers.COMPLETE), "http://me:s3cret@127.0.0.1:9")
    assert "does not answer" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_deleted_experiment_is_named(helpers, new_run, sqlite_store):
    client = MlflowClient(tracking_uri=sqlite_store)
    client.delete_experiment(client.create_experiment("digits"))
    with pytest.raises(StoreError, match="'digits' of .* was deleted"):
        sync(new_run(helpers.COMPLETE), sqlite_store)


def test_a_rejected_request_is_reported_as_such(helpers, new_run, store, monkeypatch):
    monkeypatch.setattr("trueloop.runs.tracking.mlflow_sink.MAX_NAME_CHARS", 300)
    facts = {**helpers.FACTS, "config": {"n" * 280: 1}}
    run = new_run([helpers.started(facts=facts), helpers.rows(1, 4), helpers.ended(4)])
    with pytest.raises(StoreRejected, match="rejected the request.*exceeds the maximum length") as caught:
        sync(run, store)
    assert "does not answer" not in caught.value.what
    assert "when the cause is fixed" in caught.value.fix


def test_a_new_database_is_created_next_to_the_runs(helpers, new_run, tmp_path):
    run = new_run(helpers.COMPLETE)
    sync(run, "sqlite")
    assert helpers.in_mlflow(f"sqlite:///{tmp_path}/mlflow.db")[1] == helpers.points_of(run.path)
