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


def test_killed_at_any_moment_torchrun_starts_all_again(run_folder, uninterrupted):
    """In an update the second process, in a save the first, in an evaluation the second again."""
    started = run_folder.launch(*TWO, faults="0/1/forward/9/kill 1/0/sync/9/kill 2/1/evaluate/2/kill")
    assert started.wait() == [0], started.output()
    assert run_folder.result() == uninterrupted
    assert [f"Restart {number}:" in started.output() for number in (1, 2, 3, 4)] == [True, True, True, False]
    assert "gone" in run_folder.notices()["process_lost"]
    assert [line["facts"]["restart"] for line in run_folder.journal_lines("run_started")] == [0, 1, 2, 3]


def test_the_launcher_is_killed_or_stopped(run_folder, uninterrupted):
    """The same command five times: none of its processes lives on, and at the end nothing was lost."""
    slow = 0.2
    for fault, code, reason in (
        ("0/1/forward/3/launcher", -signal.SIGKILL, "preempted"),  # the kernel tells the others
        ("0/0/forward/2/int", 130, "interrupted"),
        ("0/1/forward/2/term", 143, "preempted"),
        ("0/0/forward/3/both", -signal.SIGKILL, None),
    ):
        started = run_folder.fork_launcher(*TWO, faults=fault, slow_s=slow)
        assert started.wait() == [code], started.output()
        started.wait_until(lambda started=started: not started.processes())
        assert reason in (None, run_folder.end_reason())
    assert run_folder.fork().wait() == [0, 0]
    assert run_folder.result() == uninterrupted
    assert "Stopped by Ctrl-C" in run_folder.notices()["interrupted"]


def test_a_second_ctrl_c_leaves_at_once(run_folder):
    started = run_folder.fork_launcher(*TWO, faults="0/1/forward/3/hang")
    started.wait_until((run_folder.run_dir / "journal.jsonl").exists)
    for pause in (0.5, 0.5):
        time.sleep(pause)
        os.kill(started.pids[0], signal.SIGINT)
    assert started.wait() == [130], started.output()
    started.wait_until(lambda: not started.processes())


@pytest.mark.shards_on_cpu
def test_a_sharded_run_is_killed_in_the_midst_of_its_saves(commands, tmp_path):
    """Each time another file is being written, by one process or the other; then the same command finishes."""
    whole, hurt = (
        commands.RunFolder(path=tmp_path / name, arguments=("--parallel.engine", "fsdp")) for name in ("whole", "hurt")
    )
    assert whole.fork().wait() == [0, 0]
    for rank, file in ((1, 1), (0, 3), (1, 2)):
        started = hurt.fork(faults=f"0/{rank}/sync/{file}/kill")
        codes = started.wait()
        assert codes[rank] == -signal.SIGKILL, started.output(rank)
        assert codes[1 - rank] not in (0, -signal.SIGKILL)
        assert "Another process of this run is gone" in started.output(1 - rank)
    assert hurt.fork().wait() == [0, 0]
    assert hurt.result() == whole.result()


def test_other_numbers_of_processes_train_on_the_same_samples(commands, tmp_path):
    """Stopped twice in the middle of an epoch: 2 processes, then 1, then 3."""
    run_folder = commands.RunFolder(
        path=tmp_path / "changing", arguments=("--options.dropout", "0.0", "--options.no-batchnorm")
    )
    alone = commands.RunFolder(path=tmp_path / "alone", arguments=run_folder.arguments)
    for run, counts in ((run_folder, (2, 1, 3)), (alone, (1,))):
        (run.path / "trained").mkdir(parents=True)
        for part, count in enumerate(counts):
            stop = {"faults": "0/0/forward/4/stop"} if part < len(counts) - 1 else {}
            codes = run.fork(processes=count, trained=run.path / "trained", **stop).wait()
            assert codes == [143 if stop else 0] * count
    assert run_folder.result()[3] == "finished"
    mine, theirs = run_folder.weights(), alone.weights()
    for name, value in theirs.items():
        assert float((mine[name] - value).norm()) <= EXACT * float(value.norm() + 1), name
    assert trained(run_folder) == trained(alone)
    assert run_folder.notices()["resumed_inexact"].endswith("on.processes: was 1, is 3.")
    assert {row[0] for row in run_folder.result()[1]} == set(range(1, 19))


def trained(run_folder):
    """Return how often each sample was trained on."""
    counts = {}
    for file in (run_folder.path / "trained").iterdir():
        for sample in file.read_text().split():
            counts[sample] = counts.get(sample, 0) + 1
    return counts


def test_with_dropout_another_process_count_continues_and_is_reported(run_folder):
    assert run_folder.fork(faults="0/0/forward/4/stop").wait() == [143, 143]
    assert run_folder.fork(processes=1).wait() == [0]
    assert "on.processes: was 2, is 1" in run_folder.notices()["resumed_inexact"]


@pytest.mark.parametrize(
    ("faults", "error"),
    [
        ("0/1/sample/75/raise", {1: "label 7 of 3 classes"}),
        ("0/1/assemble/1/wider", dict.fromkeys((0, 1), "Process 1 has built a different model than process 0")),
        ("0/0/sync/6/full", {0: "No space left on device"}),
        (" ".join(f"0/0/forward/{k}/nan" for k in range(3, 40)), dict.fromkeys((0, 1), "3 updates in a row were not")),
    ],
)
def test_an_error_in_one_process_ends_all_of_them(run_folder, faults, error):
    began = time.monotonic()
    started = run_folder.fork(faults=faults)
    assert started.wait() == [1, 1], (started.output(0), started.output(1))
    for rank in (0, 1):
        assert error.get(rank, "Another process of this run is gone") in started.output(rank)
    assert time.monotonic() - began < 60


def test_torchrun_shows_the_error_of_the_process_that_failed(run_folder):
    started = run_folder.fork_launcher(*TWO, "--max-restarts", "0", faults="0/0/sync/8/full")
    assert started.wait() == [1]
    assert started.output().count("error: ") == 1
    assert "No space left on device" in started.output()
    assert "gone" not in started.output()
    assert not started.processes()


def test_a_process_that_never_comes_is_named(run_folder):
    started = run_folder.fork("--parallel.timeout-s", "1", processes=3, started_processes=2)
    assert started.wait() == [1, 1]
    assert "1 process of 3 did not connect to 127.0.0.1" in started.output()
    assert "rank 2." in started.output()


def test_three_processes_report_that_a_restart_changes_the_last_bit(run_folder):
    """As in `test_other_numbers_...`, but it is the same number: DDP alone makes the difference."""
    assert run_folder.fork(processes=3, faults="0/2/forward/7/kill").wait() == [1, 1, -signal.SIGKILL]
    assert run_folder.fork(processes=3).wait() == [0, 0, 0]
    assert "DDP sums the gradients of 3 processes in another order" in run_folder.notices()["resumed_inexact"]
    assert run_folder.journal_lines("run_ended")[-1]["update"] == 18


def test_a_smoke_test_uses_all_processes_and_a_measurement_one(run_folder):
    smoked = run_folder.fork("--smoke")
    assert smoked.wait() == [0, 0]
    assert "smoke test passed" in smoked.output()
    assert smoked.output(1) == ""
    assert not run_folder.run_dir.exists()
    for command in ("profile", "tune"):
        refused = run_folder.fork(command=[command, str(RECIPE)])
        assert refused.wait() == [1, 1]
        assert "needs a single process, but this is one of 2" in refused.output()
