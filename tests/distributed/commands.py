"""Starts commands of several processes, as a user does or by forks of this process, and reads their results."""

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
# Modules that every forked process would import otherwise.
IMPORTS = (
    "matplotlib.backends.backend_agg",
    "torch._dynamo",
    "torch.distributed.run",
    "trueloop.app.training.run_recipe",
)


@dataclass(kw_only=True)
class Started:
    """A started command with all its processes."""

    pids: list[int]
    log: Path
    """Path of the outputs, without their suffix: the number of the process."""
    mark: str
    """Value of the environment variable MARK, by which all processes of the command are found."""
    exit_codes: dict[int, int] = field(default_factory=dict)
    """By process id."""

    def wait(self):
        """Wait for the end; return the exit codes in the order of the processes."""
        deadline = time.monotonic() + PATIENCE_S
        while len(self.exit_codes) < len(self.pids):
            for pid in [pid for pid in self.pids if pid not in self.exit_codes]:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    self.exit_codes[pid] = os.waitstatus_to_exitcode(status)
            if time.monotonic() > deadline:
                self.kill()
                pytest.fail(f"The command hangs:\n{self.output()}")
            time.sleep(0.01)
        return [self.exit_codes[pid] for pid in self.pids]

    def output(self, process=0):
        return self.log.with_suffix(f".{process}").read_text()

    def wait_until(self, condition):
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                self.kill()
                pytest.fail(f"The condition does not become true:\n{self.output()}")
            time.sleep(0.02)

    def processes(self):
        """Return the ids of all living processes that this command has started, directly or indirectly."""
        pids = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.mark.encode() in (path / "environ").read_bytes() and "\nState:\tZ" not in (
                    (path / "status").read_text()
                ):
                    pids.append(int(path.name))
        return pids

    def kill(self):
        for pid in {*self.processes(), *(pid for pid in self.pids if pid not in self.exit_codes)}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@dataclass(kw_only=True)
class RunFolder:
    """A run folder, and the commands that train in it."""

    path: Path
    arguments: tuple = ()
    variables: dict = field(default_factory=dict)
    _started: list = field(default_factory=list)

    @property
    def run_dir(self):
        return self.path / "run"

    def launch(self, *arguments, prefix=(), **variables):
        """Start `trueloop train` as a user does; `prefix` is a command that runs it, such as `ip netns exec`."""
        started, environment = self._start(variables)
        command = [*prefix, sys.executable, "-m", "trueloop", *self._command(arguments)]
        with started.log.with_suffix(".0").open("w") as log:
            child = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=self.path)
        child.returncode = 0  # `Started.wait` waits for the process by its id
        started.pids.append(child.pid)
        return started

    def fork_launcher(self, *arguments, **variables):
        """Start `trueloop train` with a forked launcher, which saves one import of torch; ranks are new processes."""
        started, environment = self._start(variables)
        if pid := os.fork():
            started.pids.append(pid)
        else:
            _run_command(self._command(arguments), environment, started.log.with_suffix(".0"))
        return started

    def fork(self, *arguments, processes=2, started_processes=None, command=None, **variables):
        """Fork the ranks without a launcher; only `started_processes` of them if that is given."""
        started, environment = self._start(variables)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
        for rank in range(started_processes or processes):
            ranks = {"RANK": str(rank), "WORLD_SIZE": str(processes), **master} if processes > 1 else {}
            if pid := os.fork():
                started.pids.append(pid)
            else:
                log = started.log.with_suffix(f".{rank}")
                _run_command(command or self._command(arguments), {**environment, **ranks}, log)
        return started

    def result(self):
        """Return the results that an interruption must not change: weights, updates, evaluations, reason of the end."""
        history = read_journal(self.run_dir)
        updates = history.updates
        columns = (updates.update, updates.epoch, updates.loss, updates.grad_norm, updates.lr, updates.examples)
        evaluated = {
            (evaluation.update, evaluation.split): dict(evaluation.metrics) for evaluation in history.evaluations
        }
        weights = {name: value.numpy().tobytes() for name, value in self.weights().items()}
        return weights, list(zip(*columns, strict=True)), evaluated, history.end.reason

    def weights(self):
        return load_file(self.run_dir / "final" / "model.safetensors")

    def end_reason(self):
        """Return the reason of the end from the journal's last line."""
        return json.loads((self.run_dir / "journal.jsonl").read_text().splitlines()[-1]).get("reason")

    def journal_lines(self, event):
        lines = map(json.loads, (self.run_dir / "journal.jsonl").read_text().splitlines())
        return [line for line in lines if line["event"] == event]

    def notices(self):
        return {line["kind"]: line["message"] for line in self.journal_lines("notice")}

    def _command(self, arguments):
        return [
            "train",
            str(RECIPE),
            "--run-dir",
            str(self.run_dir),
            "--log-format",
            "plain",
            *self.arguments,
            *arguments,
        ]

    def _start(self, variables):
        self.path.mkdir(exist_ok=True)
        mark = uuid.uuid4().hex
        started = Started(pids=[], log=self.path / f"output-{len(self._started)}", mark=mark)
        self._started.append(started)
        added = {**self.variables, **variables, "MARK": mark, "OMP_NUM_THREADS": "1"}
        return started, {**os.environ, **{name.upper(): str(value) for name, value in added.items()}}


def _run_command(command, environment, log):
    """Run a command line in this forked process without drawing plots, which take most of the time; end the process."""
    code = 1
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT)
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
    except SystemExit as exit_request:
        code = exit_request.code
    except BaseException:  # noqa: BLE001 - the interpreter prints every error, too
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
