"""Real torchrun with small programs as workers: arguments, exit codes, errors, restarts and signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError

from trueloop.cli.outcomes import Outcome
from trueloop.cli.torchrun import (
    Launch,
    check_parallel_config,
    launch_from_options,
    run_processes,
    threads_per_process,
    worker_command,
)
from trueloop.core.errors import InvalidConfig, ProcessLost, TrueloopError
from trueloop.training.config import TrainConfig

# A worker records its start, runs `act`, and reports its outcome as `trueloop train` does.
WORKER = """
import json, os, signal, sys, time
from pathlib import Path
from trueloop.training.interrupt import EXIT_CODES, Interrupt
from trueloop.cli.outcomes import report_outcome
from trueloop.core.errors import InvalidData, ProcessLost

here, words = Path(sys.argv[1]), sys.argv[2:]
rank, restart = os.environ["RANK"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])

def act():
    (here / f"started-{restart}-{rank}").write_text(json.dumps([words, dict(os.environ)]))
    %s
    return 0

sys.exit(report_outcome(act))
"""


@pytest.fixture
def workers(tmp_path: Path) -> Callable[..., int]:
    def run(act: str, *arguments: str, **launch: Any) -> int:
        script = tmp_path / "worker.py"
        script.write_text(WORKER % act)
        given: dict[str, Any] = {"processes": 2, "max_restarts": 0, **launch}
        requested = Launch(**given)
        return run_processes(requested, [sys.executable, str(script), str(tmp_path), *arguments])

    return run


@pytest.fixture(autouse=True)
def this_process_stays_as_it_was() -> Generator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)

    def state() -> Any:
        moving = ("PYTEST_CURRENT_TEST", "OMP_NUM_THREADS")  # by pytest, and by a test below
        variables = {name: value for name, value in os.environ.items() if name not in moving}
        return [signal.getsignal(number) for number in numbers], variables

    before = state()
    yield
    assert state() == before


def started(folder: Path) -> list[str]:
    return sorted(path.name.removeprefix("started-") for path in folder.glob("started-*"))


def test_every_process_gets_the_arguments_unchanged(
    workers: Callable[..., int], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    arguments = ["train", "a b", "$HOME$$", "${local_rank}", "--epochs", "3", ""]
    assert workers("pass", *arguments) == 0
    records = [json.loads((tmp_path / f"started-0-{rank}").read_text()) for rank in range(2)]
    assert [one[0] for one in records] == [arguments, arguments]
    assert {one[1]["WORLD_SIZE"] for one in records} == {"2"}
    threads = threads_per_process(2)
    assert {one[1]["OMP_NUM_THREADS"] for one in records} == {str(threads)}
    noun = "thread" if threads == 1 else "threads"
    assert capfd.readouterr().err == f"Starting 2 processes; {threads} {noun} each (OMP_NUM_THREADS).\n"


def test_an_invalid_setting_is_reported_once_and_not_retried(
    workers: Callable[..., int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    with pytest.raises(TrueloopError) as error:
        workers("raise InvalidData('label is 7.', why='There are 3.', fix='Mend it.')", max_restarts=2)
    assert (error.value.what, error.value.why, error.value.fix) == ("label is 7.", "There are 3.", "Mend it.")
    assert {name[0] for name in started(tmp_path)} == {"0"}
    assert "label" not in capfd.readouterr().err


def test_only_the_first_error_is_printed(
    workers: Callable[..., int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    act = "time.sleep(0 if rank == '1' else 30); raise ValueError('shapes (3,) and (4,)')"
    with pytest.raises(TrueloopError, match=r"Rank 1 failed: ValueError: shapes \(3,\) and \(4,\)"):
        workers(act, max_restarts=3)
    output = capfd.readouterr().err
    assert output.count("Traceback (most recent call last)") == 1
    assert "Rank 1:\nTraceback" in output
    assert "elastic" not in output, "torchrun's own words"
    assert {name[0] for name in started(tmp_path)} == {"0", "1"}, "the same again is not tried a third time"


def test_a_killed_process_restarts_all_processes(
    workers: Callable[..., int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    act = (
        "while rank == '1' and not restart:\n"
        "        (here / 'ready-0').exists() and os.kill(os.getpid(), 9)\n"
        "    with Interrupt() as stop:\n"
        "        (here / f'ready-{rank}').touch()\n"
        "        while not (stop.requested or restart): time.sleep(0.01)"
    )
    act += "\n    if stop.requested: raise RuntimeError('gloo/transport/tcp/pair.cc:537] Read error: Connection reset')"
    assert workers(act, max_restarts=1) == 0
    assert {name for name in started(tmp_path) if name[0] == "1"} == {"1-0", "1-1"}
    # Torch 2.13 keeps the store of the first attempt, in which the second finds addresses where nobody is any more.
    ports = [json.loads((tmp_path / f"started-{restart}-0").read_text())[1]["MASTER_PORT"] for restart in range(2)]
    assert ports[0] != ports[1]
    assert "Restart 1: rank 1 was killed.\n" in capfd.readouterr().err


def test_a_repeatedly_killed_process_is_reported(workers: Callable[..., int]):
    with pytest.raises(ProcessLost, match="Rank 1 was killed by SIGKILL") as error:
        workers("time.sleep(0.5 * (rank == '0')); os.kill(os.getpid(), 9)", max_restarts=0)
    assert "dmesg" in error.value.why
    assert "--max-restarts" in error.value.fix


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 143)], ids=str
)
def test_a_signal_lets_the_processes_save(
    workers: Callable[..., int], tmp_path: Path, capfd: pytest.CaptureFixture[str], number: signal.Signals, code: int
):
    act = (
        "with Interrupt() as stop:\n"
        "        (here / f'ready-{rank}').touch()\n"
        "        while not stop.requested: time.sleep(0.01)\n"
        "    time.sleep(0.2)\n"
        "    (here / f'saved-{rank}').write_text(stop.signal)\n"
        "    return EXIT_CODES[stop.requested]"
    )

    def send() -> None:
        while len(list(tmp_path.glob("ready-*"))) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()
    assert workers(act, max_restarts=3) == code
    assert [(tmp_path / f"saved-{rank}").read_text() for rank in range(2)] == [number.name] * 2
    assert started(tmp_path) == ["0-0", "0-1"]
    assert capfd.readouterr().err.count("\n") == 1, "no more than the first line"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of it")
def test_processes_save_and_end_if_the_launcher_is_killed(tmp_path: Path):
    script = tmp_path / "worker.py"
    act = (
        "with Interrupt() as stop:\n"
        "        (here / f'ready-{rank}').write_text(str(os.getpid()))\n"
        "        while not stop.requested: time.sleep(0.01)\n"
        "    (here / f'saved-{rank}').touch()"
    )
    script.write_text(WORKER % act)
    launcher = (
        "import sys; from trueloop.cli.torchrun import Launch, run_processes;"
        "sys.exit(run_processes(Launch(processes=2), sys.argv[1:]))"
    )
    command = [sys.executable, "-c", launcher, sys.executable, str(script), str(tmp_path)]
    started = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    )
    wait_for(lambda: len(list(tmp_path.glob("ready-*"))) == 2)
    started.kill()
    started.wait()
    wait_for(lambda: len(list(tmp_path.glob("saved-*"))) == 2)


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_two_machines_connect(workers: Callable[..., int], tmp_path: Path):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    script = tmp_path / "worker.py"
    script.write_text(WORKER % "pass")
    other = (
        "import sys; from trueloop.cli.torchrun import Launch, run_processes;"
        f"sys.exit(run_processes(Launch(processes=1, nodes=2, rendezvous={address!r}), sys.argv[1:]))"
    )
    command = [sys.executable, "-c", other, sys.executable, str(script), str(tmp_path)]
    other_machine = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    try:
        assert workers("pass", processes=1, nodes=2, rendezvous=address) == 0
    finally:
        assert other_machine.wait(60) == 0
    records = [json.loads((tmp_path / f"started-0-{rank}").read_text())[1] for rank in range(2)]
    assert [(one["WORLD_SIZE"], one["GROUP_RANK"], one["LOCAL_RANK"]) for one in records] == [
        ("2", "0", "0"),
        ("2", "1", "0"),
    ]


@pytest.mark.parametrize(("code", "why"), [(130, None), (143, None), (0, "did not connect"), (1, "did not connect")])
def test_stopped_machines_do_not_reconnect(code: int, why: str | None, monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C on one of them ends the processes on each, and torchrun on the others waits for it to return."""

    def run(_: Any) -> None:
        folder = Path(os.environ["TRUELOOP_OUTCOMES"])
        outcome = Outcome(rank=0, restart=0, code=code, ended_at=0.0)
        (folder / "0-0.json").write_text(json.dumps(asdict(outcome)))
        raise RendezvousConnectionError("The connection has failed.")

    monkeypatch.setattr("torch.distributed.run.run", run)
    launch = Launch(processes=1, nodes=2, rendezvous="localhost:29500")
    if why is None:
        assert run_processes(launch, ["true"]) == code
    else:
        with pytest.raises(ProcessLost, match=why):
            run_processes(launch, ["true"])


# What is asked ---------------------------------------------------------------------------------------------------

STEP = {
    "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_PROCID": "1", "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
}  # fmt: skip


def test_without_flags_or_in_a_launched_process_nothing_is_launched():
    assert launch_from_options(None, None, None, None, {}) is None
    assert launch_from_options(2, None, None, None, {"TRUELOOP_OUTCOMES": "there", "RANK": "0"}) is None


def test_flags_define_the_launch():
    assert launch_from_options(2, None, None, None, {}) == Launch(processes=2, nodes=1, rendezvous=None, max_restarts=3)
    requested_launch = launch_from_options(8, 2, "[fe80::1%eth0]:29500", 0, {})
    assert requested_launch is not None
    assert requested_launch == Launch(processes=8, nodes=2, rendezvous="[fe80::1%eth0]:29500", max_restarts=0)
    assert requested_launch.size == 16


def test_a_slurm_step_defines_the_machines():
    filled = Launch(processes=8, nodes=2, rendezvous="n1:61441", max_restarts=3)
    assert launch_from_options(8, None, None, None, STEP) == launch_from_options(8, 2, None, None, STEP) == filled
    assert launch_from_options(8, 1, None, None, STEP) == Launch(processes=8)
    launch = launch_from_options(8, 2, "other:1", None, STEP)
    assert launch
    assert launch.rendezvous == "other:1"


@pytest.mark.parametrize(
    ("requested_launch", "environment", "word"),
    [
        ((0, None, None, None), {}, "--processes is 0."),
        ((2, 0, None, None), {}, "--nodes is 0."),
        ((2, None, None, -1), {}, "--max-restarts is -1."),
        ((None, 2, "a:1", None), {}, "--nodes was passed without --processes."),
        ((None, None, None, 3), {}, "--max-restarts was passed without --processes."),
        ((2, 2, None, None), {}, "--nodes is 2, but there is no --rendezvous."),
        ((2, None, "a:1", None), {}, "--nodes is missing"),
        ((2, 2, "a", None), {}, "--rendezvous is 'a'."),
        ((2, 2, "a:99999", None), {}, "--rendezvous is 'a:99999'."),
        ((2, None, None, None), {"LOCAL_RANK": "0", "WORLD_SIZE": "4"}, "already one of 4."),
        ((2, None, None, None), {"TORCHELASTIC_RUN_ID": "x"}, "already one of several."),
        (
            (2, None, None, None),
            {**STEP, "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0"},
            "slurm started 2 tasks on this machine",
        ),
    ],
)
def test_contradictory_flags_are_refused(requested_launch: Any, environment: dict[str, str], word: str):
    with pytest.raises(InvalidConfig) as error:
        launch_from_options(*requested_launch, environment)
    assert word in error.value.what
    assert error.value.fix


@pytest.mark.parametrize(
    ("config", "gpus", "word"),
    [
        (TrainConfig(effective_batch=3), 0, "effective_batch is 3, but there are 4 processes"),
        (TrainConfig(epochs=0), 0, "epochs is 0"),
        (TrainConfig(device="cuda:1"), 8, "device is 'cuda:1', a single GPU, but 4 processes"),
        (TrainConfig(device="cuda"), 2, "--processes is 4, but this machine has 2 GPUs"),
        (TrainConfig(device="cuda"), 0, "--processes is 4, but this machine has 0 GPUs"),
        (TrainConfig(), 1, "--processes is 4, but this machine has 1 GPU."),
    ],
)
def test_impossible_settings_are_refused_before_the_launch(
    config: TrainConfig, gpus: int, word: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    with pytest.raises(InvalidConfig) as error:
        check_parallel_config(Launch(processes=4), config)
    assert word in error.value.what


@pytest.mark.parametrize(
    ("config", "gpus"), [(TrainConfig(), 0), (TrainConfig(), 4), (TrainConfig(device="cpu"), 1), (TrainConfig(), 8)]
)
def test_possible_settings_are_accepted(config: TrainConfig, gpus: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    check_parallel_config(Launch(processes=4), config)


def test_the_worker_command_excludes_the_current_folder_from_the_path(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/trueloop", "train"])
    assert worker_command(["train", "digits"]) == [
        sys.executable, "-u", "-P", "-m", "trueloop", "train", "digits",
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["/x/trueloop/__main__.py", "train"])
    assert worker_command(["train"]) == [sys.executable, "-u", "-m", "trueloop", "train"]
