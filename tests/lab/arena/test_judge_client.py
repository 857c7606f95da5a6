"""The referee's process: the real one for what it computes, a made-up one for how it is bounded."""

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
def referee() -> Iterator[JudgeClient]:
    with JudgeClient() as referee:
        yield referee


def test_a_job_comes_to_its_target_and_to_the_same_again(referee: JudgeClient):
    curve: list[Point] = []
    trial = referee.run(JOB, curve.extend)
    assert (trial.end, trial.seed) == (End.REACHED, 5)
    assert [point[0] for point in curve] == list(range(1, trial.updates + 1))
    assert curve[-1] == (trial.updates, trial.examples, trial.accuracy)
    assert trial.accuracy >= 0.95
    assert trial.time is not None
    assert trial.time > 0
    again = referee.run(JOB)
    assert (again.updates, again.digest) == (trial.updates, trial.digest)
    assert referee.run(replace(JOB, seed=6)).digest != trial.digest


def test_it_is_the_script_that_anybody_can_run_that_counts(referee: JudgeClient, capsys: pytest.CaptureFixture[str]):
    trial = referee.run(replace(JOB, practice=True, once=True))
    exec(compile(write_script(DEEP, QUICK, 5, practice=True), "entry.py", "exec"), {})
    said = capsys.readouterr().out
    assert said.startswith(f"reached 95% after {trial.updates} updates and {trial.examples} examples")


def test_practice_is_neither_repeated_nor_timed(referee: JudgeClient):
    trial = referee.run(replace(JOB, practice=True, once=True))
    assert (trial.end, trial.time) == (End.REACHED, None)
    assert trial.updates <= referee.run(JOB).updates  # a split less to reach


def test_a_run_that_blows_up_is_found_out_by_the_sanitizer(referee: JudgeClient):
    trial = referee.run(Job(id=0, track="digits", entry=Entry(lr=10.0, momentum=0.99, input_noise=1.0), seed=1))
    assert trial.end == End.FOUND, trial
    assert trial.found is not None
    assert trial.found.severity in ("warning", "error")
    assert trial.found.message


def test_a_slow_one_does_not_reach_its_target(referee: JudgeClient):
    trial = referee.run(replace(JOB, entry=Entry(lr=1e-5, updates=20)))
    assert (trial.end, trial.updates, trial.time) == (End.NOT_REACHED, 20, None)


def test_several_threads_get_their_own_answers(referee: JudgeClient):
    alone = {seed: referee.run(replace(JOB, seed=seed, practice=True, once=True)) for seed in (1, 2, 3)}
    together: dict[int, Trial] = {}

    def run(seed: int) -> None:
        together[seed] = referee.run(replace(JOB, seed=seed, practice=True, once=True))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_the_versions_that_decide_the_bits_are_known(referee: JudgeClient):
    referee.run(replace(JOB, entry=Entry(updates=10), practice=True, once=True))
    assert referee.versions().keys() == {"trueloop", "torch", "python", "machine", "cpu"}


# Bounds, with a process that is ready at once and runs what a test says instead of an entry ------------------------

MADE_UP = """
import json, os, resource, sys, time
import trueloop.lab.arena.judge_process as refereeing
refereeing._warm_up = lambda: None
refereeing.versions = lambda: {}
refereeing.MAX_WALL_S = 0.5 if "wall" in sys.argv else 60.0
refereeing.IDLE_TIMEOUT_S = 0.3 if "idle" in sys.argv else 60.0
def attempt(job, folder, tell, trouble):
    from trueloop.lab.arena.trial import Trial
    if job.seed == 1:
        time.sleep(60)
    if job.seed == 2:
        bytearray(1 << 31)
    if job.seed == 3:
        os._exit(7)
    if job.seed == 4:
        raise ValueError("a mistake of ours")
    if job.seed == 5:
        print("noise", flush=True)
        tell([(1, 2, 0.5)])
    if job.seed == 6:
        tell([(1, 2, 0.5)])
        time.sleep(0.2)
        os.kill(os.getppid(), 9)
    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_CPU, resource.RLIMIT_AS)]
    return Trial(seed=job.seed, end="not reached", why=json.dumps([os.getpid(), *limits]))
refereeing.run_job = attempt
refereeing.main()
"""


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Referees whose process runs `MADE_UP`."""
    popen, started = subprocess.Popen, []

    def build(*words: str) -> JudgeClient:
        def start(command: list[str], **given: Any) -> subprocess.Popen[bytes]:
            assert command[1:] == ["-P", "-m", "trueloop.lab.arena.judge_process"]
            return popen([sys.executable, "-c", MADE_UP, *words], **given)

        monkeypatch.setattr("trueloop.lab.arena.judge_client.subprocess.Popen", start)
        started.append(JudgeClient())
        return started[-1]

    yield build
    for referee in started:
        referee.close()


def job(seed: int) -> Job:
    return Job(id=0, track="deep", entry=Entry(), seed=seed)


def test_a_job_has_a_process_of_its_own_with_bounds(made_up):
    import json

    from trueloop.lab.arena.trial import MAX_CPU_S, MAX_EXTRA_MIB

    referee = made_up()
    curve: list[Point] = []
    first, second = (json.loads(referee.run(job(5), curve.extend).why) for _ in range(2))
    assert first[0] != second[0] != os.getpid()
    assert first[1] == MAX_CPU_S
    assert 0 < first[2] < (MAX_EXTRA_MIB + 4096) << 20
    assert curve == [(1, 2, 0.5), (1, 2, 0.5)]


def test_one_that_takes_too_long_is_ended(made_up):
    trial = made_up("wall").run(job(1))
    assert (trial.end, trial.why) == (End.STOPPED, "The run took more than 0 s.")


def test_one_that_takes_too_much_memory_is_ended(made_up):
    trial = made_up().run(job(2))
    assert trial.end == End.STOPPED
    assert "MiB of memory" in trial.why


@pytest.mark.parametrize("seed", [3, 4])
def test_one_that_ends_of_itself_has_failed_and_the_next_one_runs(made_up, seed: int):
    referee = made_up()
    assert (referee.run(job(seed)).end, referee.run(job(9)).end) == (End.FAILED, End.NOT_REACHED)


def test_one_can_be_stopped_and_leaves_nothing_behind(made_up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    referee = made_up()
    trial = referee.run(job(1), on_start=lambda number: threading.Timer(0.3, referee.stop, [number]).start())
    assert (trial.end, trial.why) == (End.STOPPED, "The process of the run was killed.")
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_left_idle_is_started_again(made_up):
    referee = made_up("idle")
    referee.run(job(9))
    process = referee._process
    assert process is not None
    process.wait(20)
    assert referee.run(job(9)).end == End.NOT_REACHED
    assert referee._process is not process


def test_a_process_that_ends_in_the_middle_of_a_line_is_not_waited_for(made_up, monkeypatch: pytest.MonkeyPatch):
    referee, ended = made_up(), threading.Event()
    said = """import sys; sys.stdout.write('{"kind": "ready", "versions": {}}\\n{"id": 1, "ki')"""
    monkeypatch.setattr(f"{__name__}.MADE_UP", said)

    def run() -> None:
        with pytest.raises(BoardError, match="The judge process ended"):
            referee.run(job(9))
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    assert ended.wait(60)


def test_a_curve_that_was_begun_is_not_told_from_the_start_again(made_up):
    curve: list[Point] = []
    with pytest.raises(BoardError, match="The judge process ended"):
        made_up().run(job(6), curve.extend)
    assert curve == [(1, 2, 0.5)]


def test_a_process_that_dies_is_said_to_have(made_up, monkeypatch: pytest.MonkeyPatch):
    referee = made_up()
    monkeypatch.setattr(f"{__name__}.MADE_UP", "raise SystemExit('no torch here')")
    with pytest.raises(BoardError, match="no torch here"):
        referee.run(job(9))


def test_a_closed_referee_runs_nothing(made_up):
    referee = made_up()
    referee.run(job(9))
    process = referee._process
    referee.close()
    assert process is not None
    assert process.returncode is not None
    with pytest.raises(BoardError):
        referee.run(job(9))
