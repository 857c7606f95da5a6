"""The example for a user without a run: one process at a time, which the lab ends."""

from __future__ import annotations

import subprocess

from trueloop.failures.load import catalogue
from trueloop.lab import example_run
from trueloop.lint.check_file import ActiveRule, lint_text


def test_one_example_runs_at_a_time_and_ends_with_the_lab(monkeypatch, tmp_path):
    started: list[subprocess.Popen[bytes]] = []

    class Sleeping(subprocess.Popen):
        def __init__(self, command: tuple[str, ...], **options: object) -> None:
            assert command[1:] == ("-P", "-m", "trueloop", "run", "--lab", "example.py")
            super().__init__(("sleep", "60"), **options)
            started.append(self)

    monkeypatch.setattr(example_run.subprocess, "Popen", Sleeping)
    example_run.start_example()
    example_run.start_example()
    assert len(started) == 1
    folder = example_run._examples[0].folder.name
    example_run.stop_examples()
    assert started[0].returncode is not None
    assert not example_run.Path(folder).exists()
    example_run.start_example()
    assert len(started) == 2
    example_run.stop_examples()


def test_the_example_has_the_failure_that_it_shows():
    entry = catalogue()[example_run.FAILURE]
    rule = ActiveRule(entry.failure, entry.slug, entry.failure.rule)
    assert [each.code for each in lint_text(example_run.example_script(), "example.py", [rule]).findings] == ["GRD001"]
