import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from trueloop.app.training.run_folder import RunFolder
from trueloop.core.protocols import RunEnded
from trueloop.runs.queries import index
from trueloop.runs.queries.index import INDEX_NAME, load_overviews, run_names


@pytest.fixture
def read_journals(monkeypatch):
    """The names of the runs whose journals are read."""
    seen = []
    real = index.read_record
    monkeypatch.setattr(index, "read_record", lambda path: seen.append(path.name) or real(path))
    return seen


def contents(runs):
    return [run.as_json() for run in runs]


def test_a_second_query_reads_no_journal(fake_runs, read_journals):
    fake_runs.run("b", losses=(0.9,))
    fake_runs.run("a")
    first = load_overviews(fake_runs.root, with_settings=True)
    assert [run.name for run in first] == read_journals == ["a", "b"]
    second = load_overviews(fake_runs.root, with_settings=True)
    assert read_journals == ["a", "b"]
    assert contents(first) == contents(second)
    assert second[0].settings["config.optim.lr"] == 0.001
    assert load_overviews(fake_runs.root)[0].settings == {}


def test_only_what_changed_is_read_again(fake_runs, read_journals):
    fake_runs.run("a", end="")
    fake_runs.run("b")
    load_overviews(fake_runs.root)
    fake_runs.write("a", [RunEnded(update=6, reason="failed", seconds=3)])
    read_journals.clear()
    assert [run.state for run in load_overviews(fake_runs.root)] == ["failed", "finished"]
    assert read_journals == ["a"]
    shutil.rmtree(fake_runs.root / "b")
    assert [run.name for run in load_overviews(fake_runs.root)] == ["a"]
    with sqlite3.connect(fake_runs.root / INDEX_NAME) as database:
        assert database.execute("SELECT name FROM runs").fetchall() == [(b"a",)]
    assert read_journals == ["a"]


def test_whether_it_is_training_is_never_cached(fake_runs):
    path = fake_runs.run("a", end="")
    assert load_overviews(fake_runs.root)[0].state == "killed"
    with RunFolder(path).lock():
        assert load_overviews(fake_runs.root)[0].state == "running"


def test_the_index_can_be_deleted_at_any_time(fake_runs):
    fake_runs.run("a")
    first = contents(load_overviews(fake_runs.root))
    (fake_runs.root / INDEX_NAME).unlink()
    assert contents(load_overviews(fake_runs.root)) == first
    assert (fake_runs.root / INDEX_NAME).is_file()


def spoil_bytes(path):
    data = bytearray(path.read_bytes())
    data[100:3000] = b"\xff" * 2900
    path.write_bytes(data)


def spoil_row(path):
    with sqlite3.connect(path) as database:
        database.execute("UPDATE runs SET record = '{'")


def spoil_kind(path):
    with sqlite3.connect(path) as database:
        database.execute("UPDATE runs SET record = '7, 8'")


def spoil_type(path):
    with sqlite3.connect(path) as database:
        database.execute("UPDATE runs SET record = NULL")


def other_schema(path):
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")


def other_table(path):
    path.unlink()
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE runs (something)")
        database.execute(f"PRAGMA user_version = {index.SCHEMA}")


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_bytes,
        spoil_row,
        spoil_kind,
        spoil_type,
        other_schema,
        other_table,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"no database at all" * 100),
    ],
)
def test_an_unusable_index_is_silently_rebuilt(fake_runs, read_journals, capfd, spoil):
    fake_runs.run("a")
    fake_runs.run("b")
    first = contents(load_overviews(fake_runs.root))
    spoil(fake_runs.root / INDEX_NAME)
    assert contents(load_overviews(fake_runs.root)) == first
    read_journals.clear()
    assert contents(load_overviews(fake_runs.root)) == first
    assert read_journals == [], "the index was rebuilt and is used"
    assert capfd.readouterr() == ("", "")
    assert sorted(path.name for path in fake_runs.root.iterdir()) == [INDEX_NAME, "a", "b"]


def test_an_unwritable_folder_gives_the_same_result(fake_runs, monkeypatch):
    fake_runs.run("a")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert [run.name for run in load_overviews(fake_runs.root)] == ["a"]
    assert not (fake_runs.root / INDEX_NAME).exists()


def test_an_index_locked_by_another_process_is_not_used(fake_runs, monkeypatch):
    fake_runs.run("a")
    load_overviews(fake_runs.root)
    fake_runs.run("b")
    monkeypatch.setattr(index, "_LOCK_TIMEOUT_S", 0.01)
    with sqlite3.connect(fake_runs.root / INDEX_NAME, isolation_level=None) as database:
        database.execute("BEGIN EXCLUSIVE")
        assert [run.name for run in load_overviews(fake_runs.root)] == ["a", "b"]
        database.execute("ROLLBACK")
    assert [run.name for run in load_overviews(fake_runs.root)] == ["a", "b"]


def test_a_link_is_neither_a_run_nor_an_index(fake_runs, tmp_path):
    inside = fake_runs.run("a")
    outside = tmp_path / "outside"
    shutil.copytree(inside, outside)
    (fake_runs.root / "link").symlink_to(outside)
    (fake_runs.root / "b").mkdir()
    (fake_runs.root / "b" / "journal.jsonl").symlink_to(outside / "journal.jsonl")
    victim = tmp_path / "victim"
    (fake_runs.root / INDEX_NAME).symlink_to(victim)
    assert run_names(fake_runs.root) == ["a"]
    assert [run.name for run in load_overviews(fake_runs.root)] == ["a"]
    assert not victim.exists()


def test_folders_without_a_run_are_skipped(fake_runs):
    assert load_overviews(fake_runs.root) == []
    fake_runs.run("a")
    (fake_runs.root / "empty").mkdir()
    (fake_runs.root / "a file").write_text("")
    fake_runs.run(".hidden")
    assert run_names(fake_runs.root) == ["a"]


def test_a_damaged_run_is_a_row_like_any_other(fake_runs, fake_runs_module):
    fake_runs.run("a")
    fake_runs_module.damage(fake_runs.run("b"))
    for _ in range(2):
        assert [run.state for run in load_overviews(fake_runs.root)] == ["finished", "damaged"]


def test_names_that_are_not_utf8_are_cached(fake_runs, read_journals):
    name = os.fsdecode(b"r\xff\xfe")
    fake_runs.run(name)
    fake_runs.hostile()
    for _ in range(2):
        assert name in [run.name for run in load_overviews(fake_runs.root)]
    assert len(read_journals) == 2


def test_concurrent_processes_get_the_same_result(fake_runs):
    for k in range(30):
        fake_runs.run(f"run-{k:02}")
    code = (
        "import sys; from pathlib import Path; from trueloop.runs.queries.index import load_overviews\n"
        "sys.stdin.readline()\n"
        f"for _ in range(5): print(len(load_overviews(Path({str(fake_runs.root)!r}))))"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        assert process.communicate() == ("30\n" * 5, "")
    assert sorted(path.name for path in fake_runs.root.iterdir() if path.name.startswith(".")) == [INDEX_NAME]


def test_the_folder_itself_may_be_the_root(fake_runs, monkeypatch):
    fake_runs.run("a")
    monkeypatch.chdir(fake_runs.root)
    (run,) = load_overviews(Path())
    assert (run.folder, run.path, run.name) == ("a", Path("a"), "a")
