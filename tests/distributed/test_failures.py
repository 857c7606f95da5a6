"""What a run of several processes survives: kills, signals, errors in one of them, other numbers of processes.

Real processes and real signals, of `failing.py`. Where torchrun is meant, `trueloop train --processes` is run; where
only the processes are, they are forked from here, so that torch is imported once, and meet as they do by hand.
"""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

EXACT = 1e-12
RECIPE = Path(__file__).with_name("failing.py")
TWO = ("--processes", "2")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals to processes, found in /proc")


def test_killed_at_any_moment_torchrun_starts_all_again(place, uninterrupted):
    """In an update the second process, in a save the first, in an evaluation the second again."""
    started = place.launch(*TWO, faults="0/1/forward/9/kill 1/0/sync/9/kill 2/1/evaluate/2/kill")
    assert started.wait() == [0], started.words()
    assert place.result() == uninterrupted
    assert [f"Restart {number}:" in started.words() for number in (1, 2, 3, 4)] == [True, True, True, False]
    assert "gone" in place.notes()["process_lost"]
    assert [line["facts"]["restart"] for line in place.journaled("run_started")] == [0, 1, 2, 3]


def test_the_launcher_is_killed_or_stopped(place, uninterrupted):
    """The same command five times: none of its processes lives on, and at the end nothing was lost."""
    slow = 0.2
    for fault, code, reason in (
        ("0/1/forward/3/launcher", -signal.SIGKILL, "preempted"),  # the kernel tells the others
        ("0/0/forward/2/int", 130, "interrupted"),
        ("0/1/forward/2/term", 143, "preempted"),
        ("0/0/forward/3/both", -signal.SIGKILL, None),
    ):
        started = place.fork_launcher(*TWO, faults=fault, slow_s=slow)
        assert started.wait() == [code], started.words()
        started.wait_until(lambda started=started: not started.family())
        assert reason in (None, place.ended())
    assert place.fork().wait() == [0, 0]
    assert place.result() == uninterrupted
    assert "Stopped by Ctrl-C" in place.notes()["interrupted"]


def test_a_second_ctrl_c_leaves_at_once(place):
    started = place.fork_launcher(*TWO, faults="0/1/forward/3/hang")
    started.wait_until((place.run_dir / "journal.jsonl").exists)
    for pause in (0.5, 0.5):
        time.sleep(pause)
        os.kill(started.pids[0], signal.SIGINT)
    assert started.wait() == [130], started.words()
    started.wait_until(lambda: not started.family())


@pytest.mark.shards_on_cpu
def test_a_sharded_run_is_killed_in_the_midst_of_its_saves(commands, tmp_path):
    """Each time another file is being written, by one process or the other; then the same command finishes."""
    whole, hurt = (
        commands.Place(path=tmp_path / name, words=("--parallel.engine", "fsdp")) for name in ("whole", "hurt")
    )
    assert whole.fork().wait() == [0, 0]
    for rank, file in ((1, 1), (0, 3), (1, 2)):
        started = hurt.fork(faults=f"0/{rank}/sync/{file}/kill")
        codes = started.wait()
        assert codes[rank] == -signal.SIGKILL, started.words(rank)
        assert codes[1 - rank] not in (0, -signal.SIGKILL)
        assert "Another process of this run is gone" in started.words(1 - rank)
    assert hurt.fork().wait() == [0, 0]
    assert hurt.result() == whole.result()


def test_other_numbers_of_processes_train_on_the_same_samples(commands, tmp_path):
    """Stopped twice in the middle of an epoch: 2 processes, then 1, then 3."""
    place = commands.Place(path=tmp_path / "changing", words=("--options.dropout", "0.0", "--options.no-batchnorm"))
    alone = commands.Place(path=tmp_path / "alone", words=place.words)
    for run, counts in ((place, (2, 1, 3)), (alone, (1,))):
        (run.path / "trained").mkdir(parents=True)
        for part, count in enumerate(counts):
            stop = {"faults": "0/0/forward/4/stop"} if part < len(counts) - 1 else {}
            codes = run.fork(processes=count, trained=run.path / "trained", **stop).wait()
            assert codes == [143 if stop else 0] * count
    assert place.result()[3] == "finished"
    mine, theirs = place.weights(), alone.weights()
    for name, value in theirs.items():
        assert float((mine[name] - value).norm()) <= EXACT * float(value.norm() + 1), name
    assert trained(place) == trained(alone)
    assert place.notes()["resumed_inexact"].endswith("on.processes: was 1, is 3.")
    assert {row[0] for row in place.result()[1]} == set(range(1, 19))


def trained(place):
    """Return how often each sample was trained on."""
    counts = {}
    for file in (place.path / "trained").iterdir():
        for sample in file.read_text().split():
            counts[sample] = counts.get(sample, 0) + 1
    return counts


def test_with_dropout_another_process_count_continues_and_is_reported(place):
    assert place.fork(faults="0/0/forward/4/stop").wait() == [143, 143]
    assert place.fork(processes=1).wait() == [0]
    assert "no longer bitwise equal: on.processes: was 2, is 1" in place.notes()["resumed_inexact"]


@pytest.mark.parametrize(
    ("faults", "error"),
    [
        ("0/1/sample/75/raise", {1: "label 7 of 3 classes"}),
        ("0/1/assemble/1/wider", dict.fromkeys((0, 1), "Process 1 has built another model than process 0")),
        ("0/0/sync/6/full", {0: "No space left on device"}),
        (" ".join(f"0/0/forward/{k}/nan" for k in range(3, 40)), dict.fromkeys((0, 1), "3 updates in a row were not")),
    ],
)
def test_an_error_in_one_process_ends_all_of_them(place, faults, error):
    began = time.monotonic()
    started = place.fork(faults=faults)
    assert started.wait() == [1, 1], (started.words(0), started.words(1))
    for rank in (0, 1):
        assert error.get(rank, "Another process of this run is gone") in started.words(rank)
    assert time.monotonic() - began < 60


def test_torchrun_shows_the_error_of_the_process_that_failed(place):
    started = place.fork_launcher(*TWO, "--max-restarts", "0", faults="0/0/sync/8/full")
    assert started.wait() == [1]
    assert started.words().count("error: ") == 1
    assert "No space left on device" in started.words()
    assert "gone" not in started.words()
    assert not started.family()


def test_a_process_that_never_comes_is_named(place):
    started = place.fork("--parallel.timeout-s", "1", processes=3, come=2)
    assert started.wait() == [1, 1]
    assert "1 process of 3 did not connect to 127.0.0.1" in started.words()
    assert "rank 2." in started.words()


def test_three_processes_report_that_a_restart_changes_the_last_bit(place):
    """As in `test_other_numbers_...`, but it is the same number: DDP alone makes the difference."""
    assert place.fork(processes=3, faults="0/2/forward/7/kill").wait() == [1, 1, -signal.SIGKILL]
    assert place.fork(processes=3).wait() == [0, 0, 0]
    assert "DDP sums the gradients of 3 processes in another order" in place.notes()["resumed_inexact"]
    assert place.journaled("run_ended")[-1]["update"] == 18


def test_a_smoke_test_uses_all_processes_and_a_measurement_one(place):
    smoked = place.fork("--smoke")
    assert smoked.wait() == [0, 0]
    assert "smoke test passed" in smoked.words()
    assert smoked.words(1) == ""
    assert not place.run_dir.exists()
    for command in ("profile", "tune"):
        refused = place.fork(command=[command, str(RECIPE)])
        assert refused.wait() == [1, 1]
        assert "needs a single process, but this is one of 2" in refused.words()
