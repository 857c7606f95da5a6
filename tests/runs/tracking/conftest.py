"""Fixtures of the tracking tests: journals of killed and resumed runs, an in-memory store, databases."""

import contextlib
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import pytest

from trueloop.core.protocols import CheckpointSaved, Evaluated, Notice, RunEnded, RunStarted, UpdateRow, UpdatesDone
from trueloop.runs.journal import Journal, read_journal
from trueloop.runs.tracking.sink import StoreBatch

RUN_ID = "0123456789abcdef0123456789abcdef"
FACTS = {
    "run_id": RUN_ID,
    "recipe": "digits",
    "config": {"epochs": 3, "optim": {"name": "adamw", "lr": 0.001, "betas": [0.9, 0.999]}, "clip": None},
    "options": {"width": 32},
    "git": {"commit": "4e7f36d0", "dirty": True, "diff_sha256": "ab" * 32},
    "data": {"train": "sha256:1f9a0b"},
    "versions": {"torch": "2.13.0", "python": "3.11.7"},
    "class_names": ["a", "b"],
}


def started(done=0, facts=FACTS, updates=12):
    return RunStarted(name="digits", epochs=3, updates=updates, start_update=done, facts=facts)


def row(update, *, loss=None, skipped=False, per_epoch=4):
    return UpdateRow(
        update=update, epoch=(update - 1) // per_epoch + 1, loss=math.nan if skipped else loss or 1 / update,
        grad_norm=math.inf if skipped else 2 / update, lr=1e-3, examples=64, wait_s=0.002, total_s=0.01,
        skipped=skipped,
        rates=(1e-3, 1e-4) if update > 6 else (),
    )  # fmt: skip


def rows(first, last, **fields):
    return UpdatesDone(rows=[row(update, **fields) for update in range(first, last + 1)], memory_mib=100.0 + last)


def evaluated(update, loss, *, split="val", best=True):
    metrics = {"loss": loss, "accuracy": 1 - loss / 2}
    return Evaluated(update=update, epoch=update // 4, split=split, metrics=metrics, tables={}, seconds=0.1, best=best)


def saved(update, loss=None):
    metrics = {} if loss is None else {"val/loss": loss, "val/accuracy": 1 - loss / 2}
    path = f"runs/digits/checkpoints/update-{update:09d}"
    return CheckpointSaved(update=update, epoch=update // 4, path=path, metrics=metrics, seconds=0.1)


def notice(update, kind="not_finite", message="Update was not finite."):
    return Notice(update=update, kind=kind, message=message, details={})


def ended(update, reason="finished"):
    return RunEnded(update=update, reason=reason, seconds=1.0)


def epoch(last, loss, **fields):
    return [rows(last - 3, last, **fields), evaluated(last, loss), saved(last, loss)]


COMPLETE = [
    started(), *epoch(4, 0.9), rows(5, 6), rows(7, 7, skipped=True), notice(7), rows(8, 8), evaluated(8, 0.4),
    saved(8, 0.4), *epoch(12, 0.5), evaluated(12, 0.45, split="test", best=False), ended(12),
]  # fmt: skip
"""A run that finished without an interruption."""

KILLED = [started(), *epoch(4, 0.9), rows(5, 8), evaluated(8, 0.7), notice(8, "slow", "It was slow."), rows(9, 10)]
"""A run that was killed after update 10; its newest checkpoint is of update 4."""

RESUMED = [*KILLED, started(4), notice(4, "resumed", "Continues."), *epoch(8, 0.6), *epoch(12, 0.5), ended(12)]
"""The killed run, continued from its checkpoint of update 4 to its end."""

TESTED_TWICE = [*COMPLETE, started(12), evaluated(12, 0.46, split="test", best=False), ended(12)]
"""A finished run that was started again, which repeats the test evaluation."""


class Run:
    """A run folder with a growing journal and a fake clock."""

    def __init__(self, path, events=()):
        self.path = path
        self.clock = 1_700_000_000.0
        self.add(events)

    def add(self, events):
        journal = Journal(self.path / "journal.jsonl", now=self._now)
        for event in events:
            journal.report(event)
        journal.close()
        return self

    def tear(self):
        with (self.path / "journal.jsonl").open("ab") as file:
            file.write(b'{"event":"updates","upd')
        return self

    def _now(self):
        self.clock += 0.25
        return self.clock


@pytest.fixture
def new_run(tmp_path):
    counter = iter(range(100))
    return lambda events=(), name="digits": Run(tmp_path / f"{name}-{next(counter)}", events)


def points_of(run_dir):
    """Return the points that a store must contain for a run: {(metric, update): value}, made `comparable`."""
    history = read_journal(run_dir)
    updates = history.updates
    points = {}
    for k, update in enumerate(updates.update):
        points |= {
            ("train/loss", update): updates.loss[k],
            ("train/grad_norm", update): updates.grad_norm[k],
            ("train/lr", update): updates.lr[k],
            ("train/examples_per_s", update): updates.examples[k] / updates.total_s[k],
            ("train/wait_share", update): updates.wait_s[k] / updates.total_s[k],
        }
        if updates.skipped[k]:
            points["train/skipped", update] = 1.0
        if len(updates.rates) > 1 and update > 6:  # see `row`
            points |= {(f"train/lr_group_{group}", update): rates[k] for group, rates in enumerate(updates.rates)}
    points |= {("train/memory_mib", update): mib for update, mib in history.memory}
    for each in history.evaluations:
        for name, value in each.metrics.items():
            points[f"{each.split}/{name}", each.update] = value
            if each.best:
                points[f"best/{each.split}/{name}", each.update] = value
    return {key: comparable(value) for key, value in points.items()}


def comparable(value):
    """Return infinity as the largest float, as MLflow does, and NaN as a string, which equals itself."""
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return math.copysign(1.7976931348623157e308, value)
    return value


def comparable_point(point):
    return point._replace(values={key: comparable(value) for key, value in point.values.items()})


class Memory:
    """A strict in-memory store: records written twice are stored twice, unless it is idempotent."""

    def __init__(self, *, is_idempotent=True, can_append=True):
        self.is_idempotent, self.can_append = is_idempotent, can_append
        self.runs = {}
        self.calls = []
        self.fail_after = math.inf  # number of calls that succeed

    def __call__(self, target):
        return self

    def _call(self, name):
        from trueloop.runs.tracking.sink import StoreUnavailable

        self.calls.append(name)
        self.fail_after -= 1
        if self.fail_after < 0:
            raise StoreUnavailable("The store is unreachable.")

    def find_cursor(self, run):
        self._call("find_cursor")
        stored = self.runs.get(run.run_id)
        return stored and stored["cursor"]

    def open_run(self, run):
        self._call("open_run")
        assert run.run_id not in self.runs or self.can_append or not self.runs[run.run_id]["closed"]
        stored = self.runs.setdefault(
            run.run_id, {"points": [], "checkpoints": [], "notes": [], "cursor": None, "params": {}}
        )
        assert stored["params"] in ({}, run.params), "params cannot be changed"
        stored |= {"params": run.params, "run": run, "closed": False, "state": "running"}
        self.run_id = run.run_id

    def write(self, batch, cursor):
        stored = self.runs[self.run_id]
        for name in ("points", "checkpoints", "notes"):
            for record in getattr(batch, name):
                item = comparable_point(record) if name == "points" else record
                if not (self.is_idempotent and item in stored[name]):
                    stored[name].append(item)
        if batch != StoreBatch():
            self._call("write")  # may fail after the batch and before its cursor
        stored["cursor"] = cursor

    def finish_run(self, state, time_ms, cursor):
        self._call("finish_run")
        self.runs[self.run_id] |= {"state": state, "end_ms": time_ms, "cursor": cursor, "closed": True}

    def delete_run(self, run):
        self._call("delete_run")
        return self.runs.pop(run.run_id, None) is not None

    def close(self):
        pass

    def points(self, run_id=RUN_ID):
        """Return {(metric, step): value}, after checking that each point is stored once."""
        points = {}
        for point in self.runs[run_id]["points"]:
            for name, value in point.values.items():
                assert (name, point.step) not in points, (name, point.step)
                points[name, point.step] = value
        return points


@pytest.fixture
def memory():
    return Memory()


class Postgres:
    """A private PostgreSQL server on a socket; it does not run as root, so root starts it as the user postgres."""

    def __init__(self, bin_dir, folder):
        self.bin, self.folder = bin_dir, folder
        self.port = _free_port()
        self.user = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}
        self.process = None
        data = folder / "data"
        self._run("initdb", "-D", data, "-A", "trust", "-U", "tester", "--no-sync", "-E", "UTF8", "--locale=C")
        self.start()

    def start(self):
        options = ["-D", self.folder / "data", "-p", str(self.port), "-k", self.folder, "-c", "listen_addresses="]
        log = (self.folder / "log").open("ab")
        command = [self.bin / "postgres", *options, "-c", "fsync=off"]
        self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, **self.user)
        log.close()
        deadline = time.monotonic() + 30
        while self._ready() != 0:
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.05)

    def kill(self):
        """Kill all processes of the server, like a power cut."""
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parent = stat.read_text().rpartition(")")[2].split()[1]
                if int(parent) == self.process.pid:
                    os.kill(int(stat.parent.name), signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)  # PostgreSQL's fast shutdown: clients are disconnected
            self.process.wait(30)

    def database(self, name):
        self._run("createdb", "-h", self.folder, "-p", str(self.port), "-U", "tester", name)
        return f"postgresql+psycopg://tester:s3cret@/{name}?host={self.folder}&port={self.port}"

    def _ready(self):
        return self._run("pg_isready", "-q", "-h", self.folder, "-p", str(self.port), check=False).returncode

    def _run(self, program, *words, check=True):
        return subprocess.run(
            [self.bin / program, *words], cwd=self.folder, check=check, capture_output=True, timeout=120, **self.user
        )


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server for the session; a test that kills it restarts it."""
    pytest.importorskip("mlflow")
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres")) or [Path(shutil.which("postgres") or "none")]
    if not programs[-1].is_file():
        pytest.skip("no PostgreSQL is installed: apt-get install postgresql")
    folder = Path(tempfile.mkdtemp(prefix="trueloop-pg-"))  # the user postgres cannot read pytest's folder
    if os.getuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
    server = Postgres(programs[-1].parent, folder)
    yield server
    server.stop()
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def empty_mlflow_database(tmp_path_factory):
    """An empty SQLite database with MLflow's tables, which take seconds to create but not to copy."""
    pytest.importorskip("mlflow")
    from trueloop.runs.tracking.mlflow_sink import MlflowSink
    from trueloop.runs.tracking.target import parse_target

    folder = tmp_path_factory.mktemp("empty_mlflow")
    MlflowSink(parse_target("sqlite", folder)).close()
    return folder / "mlflow.db"


@pytest.fixture
def sqlite_store(empty_mlflow_database, tmp_path):
    """The address of a separate database for this test."""
    path = tmp_path / "store" / "mlflow.db"
    path.parent.mkdir()
    shutil.copy(empty_mlflow_database, path)
    return f"sqlite:///{path}"


_SERVER = """
import sys
from mlflow.server import app
from werkzeug.serving import make_server

server = make_server("127.0.0.1", 0, app, threaded=True)
print(server.port, flush=True)
server.serve_forever()
"""


@pytest.fixture(scope="session")
def mlflow_server(empty_mlflow_database, tmp_path_factory):
    """MLflow's REST service on Flask's server, because `mlflow server` needs the full MLflow package."""
    for module in ("flask", "flask_cors", "graphene", "werkzeug"):
        pytest.importorskip(module)
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(empty_mlflow_database, folder / "mlflow.db")
    settings = {
        "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{folder}/mlflow.db", "_MLFLOW_SERVER_ARTIFACT_ROOT": str(folder),
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }  # fmt: skip
    command = [sys.executable, "-c", _SERVER]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            command, env={**os.environ, **settings}, stdout=subprocess.PIPE, stderr=log, cwd=folder
        )
    port = server.stdout.readline().decode().strip()
    assert port, (folder / "log").read_text()
    yield f"http://127.0.0.1:{port}"
    server.kill()
    server.wait()
    server.stdout.close()


def wait_until(condition, timeout_s=60.0):
    """Wait until a condition that depends on another process is true; return what it returned."""
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return result


def sync_process_ids(run_dir):
    """Return the process ids of the sync processes of a run."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            arguments = path.read_bytes().split(b"\0")
            if b"trueloop.runs.tracking.sync_process" in arguments and os.fsencode(run_dir) in arguments:
                pids.append(int(path.parent.name))
    return pids


def in_mlflow(url, run_id=RUN_ID):
    """Read a run from MLflow: the only run with this id, its points, and its logged models by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SQLAlchemy warns of how MLflow uses it
        return _in_mlflow(url, run_id)


def _in_mlflow(url, run_id):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=url, registry_uri=url)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(experiments, f"tags.`trueloop.run_id` = '{run_id}'")
    assert len(runs) == 1, runs
    points = {}
    for name in runs[0].data.metrics:
        for metric in client.get_metric_history(runs[0].info.run_id, name):
            assert (name, metric.step) not in points, (name, metric.step)
            points[name, metric.step] = comparable(metric.value)
    models = {model.name: model for model in client.search_logged_models(experiments)}
    return runs[0], points, models


@pytest.fixture(scope="session")
def helpers():
    """This module, which test files cannot import."""
    return sys.modules[__name__]
