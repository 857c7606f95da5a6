"""Which code a run was: the commit, and whether it had changes."""

from __future__ import annotations

import subprocess

from trueloop.faces.facts import git_version


def git(*arguments):
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments], check=True, capture_output=True)


def test_the_commit_and_whether_it_has_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_version() is None
    git("init")
    (tmp_path / "train.py").write_text("1")
    git("add", ".")
    git("commit", "-m", "x")
    clean = git_version()
    assert len(clean) == 12
    (tmp_path / "train.py").write_text("2")
    assert git_version() == clean + "+"


def test_without_git_there_is_nothing_to_name(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert git_version() is None
