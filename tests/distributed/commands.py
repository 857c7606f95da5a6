"""Commands of several processes: start them as a user does, or forked from here, and read what they left behind."""

import contextlib
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

from trueloop.runs import read_journal

RECIPE = Path(__file__).with_name("failing.py")
PATIENCE_S = 120
# What every forked process would import for itself.
IMPORTS = (
    "matplotlib.backends.backend_agg",
    "torch._dynamo",
    "torch.distributed.run",
    "trueloop.app.training.run_recipe",
)


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

    def launch(self, *words, within=(), **variables):
        """Start `trueloop train` as a user does; `within` is what runs it elsewhere."""
        started, environment = self._start(variables)
        command = [*within, sys.executable, "-m", "trueloop", *self._command(words)]
        with started.said.with_suffix(".0").open("w") as said:
            child = subprocess.Popen(command, env=environment, stdout=said, stderr=said, cwd=self.path)
        child.returncode = 0  # it is waited for by its number, here
        started.pids.append(child.pid)
        return started

    def fork_launcher(self, *words, **variables):
        """Do the same without importing torch once more; the processes themselves are new."""
        started, environment = self._start(variables)
        if pid := os.fork():
            started.pids.append(pid)
        else:
            _become(self._command(words), environment, started.said.with_suffix(".0"))
        return started

    def fork(self, *words, processes=2, come=None, command=None, **variables):
        """Start the processes themselves, without a launcher; `come` of them do."""
        started, environment = self._start(variables)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
        for rank in range(come or processes):
            here = {"RANK": str(rank), "WORLD_SIZE": str(processes), **place} if processes > 1 else {}
            if pid := os.fork():
                started.pids.append(pid)
            else:
                _become(command or self._command(words), {**environment, **here}, started.said.with_suffix(f".{rank}"))
        return started

    def result(self):
        """What the run left that must not depend on what happened on the way."""
        history = read_journal(self.run_dir)
        updates = history.updates
        columns = (updates.update, updates.epoch, updates.loss, updates.grad_norm, updates.lr, updates.examples)
        evaluated = {(each.update, each.split): dict(each.metrics) for each in history.evaluations}
        weights = {name: value.numpy().tobytes() for name, value in self.weights().items()}
        return weights, list(zip(*columns, strict=True)), evaluated, history.end.reason

    def weights(self):
        return load_file(self.run_dir / "final" / "model.safetensors")

    def ended(self):
        """Why, as the journal's last line says."""
        return json.loads((self.run_dir / "journal.jsonl").read_text().splitlines()[-1]).get("reason")

    def journaled(self, event):
        lines = map(json.loads, (self.run_dir / "journal.jsonl").read_text().splitlines())
        return [line for line in lines if line["event"] == event]

    def notes(self):
        return {line["kind"]: line["message"] for line in self.journaled("notice")}

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
    """Run a command line in this forked process, and end it; curves are not drawn, which takes longer than the rest."""
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

        from trueloop.cli.app import main

        Figure.savefig = lambda _, target, **__: target.write(b"" if isinstance(target, io.BytesIO) else "<svg/>")
        code = main(command)
        sys.stdout.flush()
    except SystemExit as stop:
        code = stop.code
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
