"""Test the code facts of a run: commit, changes and recipe source."""

from __future__ import annotations

import hashlib
import subprocess

from trueloop.app.training.run_facts import git_state, read_source_file


def git(*arguments):
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments], check=True, capture_output=True)


def test_the_commit_and_a_hash_of_changes_are_recorded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state() is None
    git("init")
    (tmp_path / "train.py").write_text("1")
    git("add", ".")
    git("commit", "-m", "x")
    clean = git_state()
    assert len(clean["commit"]) == 40
    assert (clean["dirty"], clean["diff_sha256"]) == (False, None)
    (tmp_path / "train.py").write_text("2")
    diff = subprocess.run(["git", "diff", "HEAD"], check=True, capture_output=True).stdout
    assert git_state() == {
        "commit": clean["commit"], "dirty": True, "diff_sha256": hashlib.sha256(diff).hexdigest()
    }  # fmt: skip


def test_without_git_there_is_no_commit(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert git_state() is None


def test_the_source_of_a_recipe_with_a_file_is_recorded():
    [(name, text)] = read_source_file(git).items()
    assert name == "test_run_facts.py"
    assert "def test_the_source_of_a_recipe_with_a_file_is_recorded" in text
    made = {}
    exec("def build(): pass", made)
    assert read_source_file(made["build"]) == {}
