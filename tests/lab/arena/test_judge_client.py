"""The judge process: the real one computes results, and a fake one shows its limits."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trueloop.core.errors import BoardError
from trueloop.lab.arena.entry import Entry
from trueloop.lab.arena.judge_client import JudgeClient
from trueloop.lab.arena.script import write_script
from trueloop.lab.arena.tracks import DEEP
from trueloop.lab.arena.trial import End, Job, Point, Trial

QUICK = Entry(optimizer="sgd", lr=0.1, momentum=0.9, batch=64, initialisation="orthogonal", clip=1.0)
JOB = Job(id=0, track="deep", entry=QUICK, seed=5)


@pytest.fixture(scope="module")
def judge() -> Iterator[JudgeClient]:
    with JudgeClient() as judge:
        yield judge


def test_a_job_reaches_its_target_and_is_repeatable(judge: JudgeClient):
    curve: list[Point] = []
    trial = judge.run(JOB, curve.extend)
    assert (trial.end, trial.seed) == (End.REACHED, 5)
    assert [point[0] for point in curve] == list(range(1, trial.updates + 1))
    assert curve[-1] == (trial.updates, trial.examples, trial.accuracy)
    assert trial.accuracy >= 0.95
    assert trial.time is not None
    assert trial.time > 0
    again = judge.run(JOB)
    assert (again.updates, again.digest) == (trial.updates, trial.digest)
    assert judge.run(replace(JOB, seed=6)).digest != trial.digest


def test_the_shown_script_has_the_same_result(judge: JudgeClient, capsys: pytest.CaptureFixture[str]):
    trial = judge.run(replace(JOB, practice=True, without_timing=True))
    exec(compile(write_script(DEEP, QUICK, 5, practice=True), "entry.py", "exec"), {})
    output = capsys.readouterr().out
    assert output.startswith(f"reached 95% after {trial.updates} updates and {trial.examples} examples")


def test_practice_runs_once_and_is_not_timed(judge: JudgeClient):
    trial = judge.run(replace(JOB, practice=True, without_timing=True))
    assert (trial.end, trial.time) == (End.REACHED, None)
    assert trial.updates <= judge.run(JOB).updates  # practice has one split less to reach


def test_the_sanitizer_finds_a_diverging_run(judge: JudgeClient):
    trial = judge.run(Job(id=0, track="digits", entry=Entry(lr=10.0, momentum=0.99, input_noise=1.0), seed=1))
    assert trial.end == End.FOUND, trial
    assert trial.found is not None
    assert trial.found.severity in ("warning", "error")
    assert trial.found.message


def test_a_slow_entry_does_not_reach_the_target(judge: JudgeClient):
    trial = judge.run(replace(JOB, entry=Entry(lr=1e-5, updates=20)))
    assert (trial.end, trial.updates, trial.time) == (End.NOT_REACHED, 20, None)


def test_several_threads_get_their_own_results(judge: JudgeClient):
    alone = {seed: judge.run(replace(JOB, seed=seed, practice=True, without_timing=True)) for seed in (1, 2, 3)}
    concurrent: dict[int, Trial] = {}

    def run(seed: int) -> None:
        concurrent[seed] = judge.run(replace(JOB, seed=seed, practice=True, without_timing=True))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert concurrent == alone


def test_the_versions_are_known_after_a_job(judge: JudgeClient):
    judge.run(replace(JOB, entry=Entry(updates=10), practice=True, without_timing=True))
    assert judge.versions().keys() == {"trueloop", "torch", "python", "machine", "cpu"}


# Limits, with a process that is ready immediately and runs what a test says instead of an entry --------------------

FAKE_PROCESS = """
import json, os, resource, sys, time
import trueloop.lab.arena.judge_process as judge_process
judge_process.warm_up = lambda: None
judge_process.versions = lambda: {}
judge_process.MAX_WALL_S = 0.5 if "wall" in sys.argv else 60.0
judge_process.IDLE_TIMEOUT_S = 0.3 if "idle" in sys.argv else 60.0
def attempt(job, folder, on_points, last_error):
    from trueloop.lab.arena.trial import Trial
    if job.seed == 1:
        time.sleep(60)
    if job.seed == 2:
        bytearray(1 << 31)
    if job.seed == 3:
        os._exit(7)
    if job.seed == 4:
        raise ValueError("a bug of the judge")
    if job.seed == 5:
        print("noise", flush=True)
        on_points([(1, 2, 0.5)])
    if job.seed == 6:
        on_points([(1, 2, 0.5)])
        time.sleep(0.2)
        os.kill(os.getppid(), 9)
    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_CPU, resource.RLIMIT_AS)]
    return Trial(seed=job.seed, end="not reached", why=json.dumps([os.getpid(), *limits]))
judge_process.run_job = attempt
judge_process.main()
"""


@pytest.fixture
def make_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Create clients whose judge process runs `FAKE_PROCESS`."""
    popen, started = subprocess.Popen, []

    def build(*arguments: str) -> JudgeClient:
        def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
            assert command[1:] == ["-P", "-m", "trueloop.lab.arena.judge_process"]
            return popen([sys.executable, "-c", FAKE_PROCESS, *arguments], **options)

        monkeypatch.setattr("trueloop.lab.arena.judge_client.subprocess.Popen", start)
        started.append(JudgeClient())
        return started[-1]

    yield build
    for judge in started:
        judge.close()


def job(seed: int) -> Job:
    return Job(id=0, track="deep", entry=Entry(), seed=seed)


def test_a_job_has_its_own_process_with_limits(make_client):
    import json

    from trueloop.lab.arena.trial import MAX_CPU_S, MAX_EXTRA_MIB

    judge = make_client()
    curve: list[Point] = []
    first, second = (json.loads(judge.run(job(5), curve.extend).why) for _ in range(2))
    assert first[0] != second[0] != os.getpid()
    assert first[1] == MAX_CPU_S
    assert 0 < first[2] < (MAX_EXTRA_MIB + 4096) << 20
    assert curve == [(1, 2, 0.5), (1, 2, 0.5)]


def test_a_job_that_takes_too_long_is_stopped(make_client):
    trial = make_client("wall").run(job(1))
    assert (trial.end, trial.why) == (End.STOPPED, "The run took more than 0 s.")


def test_a_job_that_takes_too_much_memory_is_stopped(make_client):
    trial = make_client().run(job(2))
    assert trial.end == End.STOPPED
    assert "MiB of memory" in trial.why


@pytest.mark.parametrize("seed", [3, 4])
def test_a_job_that_ends_its_process_has_failed_and_the_next_one_runs(make_client, seed: int):
    judge = make_client()
    assert (judge.run(job(seed)).end, judge.run(job(9)).end) == (End.FAILED, End.NOT_REACHED)


def test_a_job_can_be_stopped_and_leaves_no_files(make_client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    judge = make_client()
    trial = judge.run(job(1), on_start=lambda number: threading.Timer(0.3, judge.stop, [number]).start())
    assert (trial.end, trial.why) == (End.STOPPED, "The process of the run was killed.")
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_ended_when_idle_is_started_again(make_client):
    judge = make_client("idle")
    judge.run(job(9))
    process = judge._process
    assert process is not None
    process.wait(20)
    assert judge.run(job(9)).end == End.NOT_REACHED
    assert judge._process is not process


def test_a_process_that_ends_in_the_middle_of_a_line_is_noticed(make_client, monkeypatch: pytest.MonkeyPatch):
    judge, ended = make_client(), threading.Event()
    output = """import sys; sys.stdout.write('{"kind": "ready", "versions": {}}\\n{"id": 1, "ki')"""
    monkeypatch.setattr(f"{__name__}.FAKE_PROCESS", output)

    def run() -> None:
        with pytest.raises(BoardError, match="The judge process ended"):
            judge.run(job(9))
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    assert ended.wait(60)


def test_a_partly_reported_curve_is_not_reported_again(make_client):
    curve: list[Point] = []
    with pytest.raises(BoardError, match="The judge process ended"):
        make_client().run(job(6), curve.extend)
    assert curve == [(1, 2, 0.5)]


def test_the_error_of_a_process_that_ended_is_reported(make_client, monkeypatch: pytest.MonkeyPatch):
    judge = make_client()
    monkeypatch.setattr(f"{__name__}.FAKE_PROCESS", "raise SystemExit('no torch here')")
    with pytest.raises(BoardError, match="no torch here"):
        judge.run(job(9))


def test_a_closed_client_runs_nothing(make_client):
    judge = make_client()
    judge.run(job(9))
    process = judge._process
    judge.close()
    assert process is not None
    assert process.returncode is not None
    with pytest.raises(BoardError):
        judge.run(job(9))
