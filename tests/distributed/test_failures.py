"""What a run of several processes survives: kills, signals, errors in one of them, other numbers of processes.

Real processes and real signals, of `failing.py`. Where torchrun is meant, `trueloop train --processes` is run; where only
the processes are, they are forked from here, so that torch is imported once, and meet as they do by hand.
"""

import contextlib
import importlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from trueloop.engines.store import read

RECIPE = Path(__file__).with_name("failing.py")
PATIENCE_S = 120
EXACT = 1e-12

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals to processes, found in /proc")


@dataclass(kw_only=True)
class Started:
    """A command that runs, and everything it has started."""

    pids: list[int]
    said: Path
    mark: str
    codes: dict[int, int] = field(default_factory=dict)

    def wait(self):
        """Wait for the end; return exit codes in order."""
        deadline = time.monotonic() + PATIENCE_S
        while len(self.codes) < len(self.pids):
            for pid in [pid for pid in self.pids if pid not in self.codes]:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    self.codes[pid] = os.waitstatus_to_exitcode(status)
            if time.monotonic() > deadline:
                self.kill()
                pytest.fail(f"It hangs:\n{self.words()}")
            time.sleep(0.01)
        return [self.codes[pid] for pid in self.pids]

    def words(self, process=0):
        return self.said.with_suffix(f".{process}").read_text()

    def wait_until(self, happened):
        deadline = time.monotonic() + PATIENCE_S
        while not happened():
            if time.monotonic() > deadline:
                self.kill()
                pytest.fail(f"It does not happen:\n{self.words()}")
            time.sleep(0.02)

    def family(self):
        """Return every living process that was started here, or by those."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.mark.encode() in (path / "environ").read_bytes() and "\nState:\tZ" not in (
                    (path / "status").read_text()
                ):
                    found.append(int(path.name))
        return found

    def kill(self):
        for pid in {*self.family(), *(pid for pid in self.pids if pid not in self.codes)}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@dataclass(kw_only=True)
class Place:
    """A run folder, and who trains in it."""

    path: Path
    words: tuple = ()
    variables: dict = field(default_factory=dict)
    _started: list = field(default_factory=list)

    @property
    def run_dir(self):
        return self.path / "run"

    def launch(self, *words, processes=2, **variables):
        """Start `trueloop train` as a user does."""
        started, environment = self._start(variables)
        command = [sys.executable, "-m", "trueloop", *self._command(words), "--processes", str(processes)]
        with started.said.with_suffix(".0").open("w") as said:
            child = subprocess.Popen(command, env=environment, stdout=said, stderr=said, cwd=self.path)
        child.returncode = 0  # it is waited for by its number, here
        started.pids.append(child.pid)
        return started

    def fork(self, *words, processes=2, come=None, **variables):
        """Start the processes themselves, without a launcher."""
        started, environment = self._start(variables)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
        for rank in range(come or processes):
            here = {"RANK": str(rank), "WORLD_SIZE": str(processes), **place} if processes > 1 else {}
            if pid := os.fork():
                started.pids.append(pid)
            else:
                _become(self._command(words), {**environment, **here}, started.said.with_suffix(f".{rank}"))
        return started

    def result(self):
        """What the run left that must not depend on what happened on the way."""
        history = read(self.run_dir)
        updates = history.updates
        rows = zip(updates.update, updates.epoch, updates.loss, updates.grad_norm, updates.lr, updates.examples, strict=True)
        evaluated = {(each.update, each.split): dict(each.metrics) for each in history.evaluations}
        weights = {name: value.numpy().tobytes() for name, value in self.weights().items()}
        return weights, list(rows), evaluated, history.end.reason

    def weights(self):
        return load_file(self.run_dir / "final" / "model.safetensors")

    def ended(self):
        """Why, as the journal's last line says."""
        return json.loads((self.run_dir / "journal.jsonl").read_text().splitlines()[-1]).get("reason")

    def notes(self):
        lines = map(json.loads, (self.run_dir / "journal.jsonl").read_text().splitlines())
        return {line["kind"]: line["message"] for line in lines if line["event"] == "noted"}

    def _command(self, words):
        return ["train", str(RECIPE), "--run-dir", str(self.run_dir), "--log-format", "plain", *self.words, *words]

    def _start(self, variables):
        self.path.mkdir(exist_ok=True)
        mark = uuid.uuid4().hex
        started = Started(pids=[], said=self.path / f"said-{len(self._started)}", mark=mark)
        self._started.append(started)
        given = {**self.variables, **variables, "MARK": mark, "OMP_NUM_THREADS": "1"}
        return started, {**os.environ, **{name.upper(): str(value) for name, value in given.items()}}


def _become(command, environment, said):
    """Run a command line in this forked process, and end it."""
    code = 1
    try:
        out = os.open(said, os.O_WRONLY | os.O_CREAT)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        os.environ.clear()
        os.environ.update(environment)
        torch.set_num_threads(1)
        from matplotlib.figure import Figure

        from trueloop.faces.cli.app import main

        Figure.savefig = lambda _, target, **__: target.write(b"" if isinstance(target, io.BytesIO) else "<svg/>")
        code = main(command)
        sys.stdout.flush()
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


@pytest.fixture(scope="module", autouse=True)
def imported_once():
    """What every forked process would import for itself."""
    for name in ("matplotlib.backends.backend_agg", "torch._dynamo", "trueloop.faces.run", "trueloop.faces.cli.display"):
        importlib.import_module(name)


@pytest.fixture
def place(tmp_path):
    place = Place(path=tmp_path / "place")
    yield place
    for started in place._started:
        started.kill()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The run of two processes to which nothing happens."""
    place = Place(path=tmp_path_factory.mktemp("undisturbed"))
    assert place.fork().wait() == [0, 0]
    return place.result()


def test_killed_at_any_moment_torchrun_starts_all_again(place, undisturbed):
    """In an update the second process, in a save the first, in an evaluation the second again."""
    started = place.launch(faults="0/1/forward/9/kill 1/0/sync/9/kill 2/1/evaluate/2/kill")
    assert started.wait() == [0], started.words()
    assert place.result() == undisturbed
    assert [f"Restart {number}:" in started.words() for number in (1, 2, 3, 4)] == [True, True, True, False]
    assert "gone" in place.notes()["process_lost"]
    assert len(read(place.run_dir).starts) == 4


def test_the_launcher_is_killed_or_told_to_stop(place, undisturbed):
    """The same command five times: none of its processes lives on, and at the end nothing was lost."""
    slow = 0.2
    for fault, code, reason in (
        ("0/1/forward/3/launcher", -signal.SIGKILL, "preempted"),  # the kernel tells the others
        ("0/0/forward/2/int", 130, "interrupted"),
        ("0/1/forward/2/term", 143, "preempted"),
        ("0/0/forward/3/both", -signal.SIGKILL, None),
    ):
        started = place.launch(faults=fault, slow_s=slow)
        assert started.wait() == [code], started.words()
        started.wait_until(lambda started=started: not started.family())
        assert reason in (None, place.ended())
    assert place.fork().wait() == [0, 0]
    assert place.result() == undisturbed
    assert "Stopped by Ctrl-C" in place.notes()["interrupted"]


def test_a_second_ctrl_c_leaves_at_once(place):
    started = place.launch(faults="0/1/forward/3/hang")
    started.wait_until(lambda: (place.run_dir / "journal.jsonl").exists())
    for pause in (0.5, 0.5):
        time.sleep(pause)
        os.kill(started.pids[0], signal.SIGINT)
    assert started.wait() == [130], started.words()
    started.wait_until(lambda: not started.family())


def test_other_numbers_of_processes_train_on_the_same_samples(tmp_path):
    """Stopped twice in the middle of an epoch: 2 processes, then 1, then 3."""
    place = Place(path=tmp_path / "changing", words=("--options.dropout", "0.0", "--options.no-batchnorm"))
    alone = Place(path=tmp_path / "alone", words=place.words)
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


def test_with_dropout_other_numbers_of_processes_go_on_and_say_so(place):
    assert place.fork(faults="0/0/forward/4/stop").wait() == [143, 143]
    assert place.fork(processes=1).wait() == [0]
    assert "not to the bit: on.processes: was 2, is 1" in place.notes()["resumed_inexact"]


@pytest.mark.parametrize(
    ("faults", "error"),
    [
        ("0/1/sample/75/raise", {1: "label 7 of 3 classes"}),
        ("0/1/assemble/1/wider", dict.fromkeys((0, 1), "Process 1 has built another model than process 0")),
        ("0/0/sync/6/full", {0: "No space left on device"}),
        (" ".join(f"0/0/forward/{k}/nan" for k in range(3, 40)), dict.fromkeys((0, 1), "3 updates in a row were not finite")),
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
    started = place.launch("--checkpoint.every-updates", "2", faults="0/0/sync/8/full")
    assert started.wait() == [1]
    assert started.words().count("error: ") == 1
    assert "No space left on device" in started.words()
    assert "gone" not in started.words()
    assert not started.family()


def test_a_process_that_never_comes_is_named(place):
    started = place.fork("--patience-s", "1", processes=3, come=2)
    assert started.wait() == [1, 1]
    assert "1 process of 3 did not come to 127.0.0.1" in started.words()
    assert "rank 2." in started.words()
