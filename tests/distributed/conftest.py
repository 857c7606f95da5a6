"""Several processes that communicate through gloo, forked from this process so that torch is imported once."""

import importlib.util
import multiprocessing
import os
import pickle
import socket
import sys
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

PATIENCE_S = 120


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def set_launcher_variables(rank, size, port):
    """Set the environment variables that a launcher sets."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))


def _run_rank(function, arguments, rank, size, port, pipe: Connection):
    torch.set_num_threads(1)
    set_launcher_variables(rank, size, port)
    try:
        message = pickle.dumps(
            (True, function(*arguments))
        )  # pickled here: a tensor sent by a pipe stays in the memory of the process that sends it
    except BaseException as error:  # noqa: BLE001 - reported to the test
        message = pickle.dumps((False, f"{traceback.format_exc()}\n{getattr(error, '__notes__', '')}"))
    pipe.send_bytes(message)
    if rank == 0:
        time.sleep(PATIENCE_S)  # until the test ends it: this process serves the store that the other ranks still use
    os._exit(0)


def _run_processes(function, *arguments, processes):
    """Call a function in several processes of one run; return the results by rank."""
    context, port = multiprocessing.get_context("fork"), free_port()
    pipes = [context.Pipe() for _ in range(processes)]
    forked = [
        context.Process(target=_run_rank, args=(function, arguments, rank, processes, port, pipe[1]))
        for rank, pipe in enumerate(pipes)
    ]
    for process in forked:
        process.start()
    try:
        results = []
        for rank, (reader, _) in enumerate(pipes):
            assert reader.poll(PATIENCE_S), f"process {rank} of {processes} sent no result"
            results.append(pickle.loads(reader.recv_bytes()))
    finally:
        for process in forked:
            process.kill()
            process.join()
    failed = [f"process {rank}:\n{message}" for rank, (ok, message) in enumerate(results) if not ok]
    assert not failed, "\n".join(failed)
    return [message for _, message in results]


@pytest.fixture(scope="session")
def run_processes():
    """`run_processes(function, *arguments, processes=2)`: the results by rank."""
    return _run_processes


@pytest.fixture(scope="session")
def commands():
    """The module `commands.py`, which test files cannot import."""
    spec = importlib.util.spec_from_file_location("commands", Path(__file__).with_name("commands.py"))
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in module.IMPORTS:
        importlib.import_module(name)
    return module


@pytest.fixture
def run_folder(commands, tmp_path):
    """A run folder for `trueloop train failing.py`."""
    folder = commands.RunFolder(path=tmp_path / "folder")
    yield folder
    for started in folder._started:
        started.kill()


@pytest.fixture(scope="session")
def uninterrupted(commands, tmp_path_factory):
    """The results of an uninterrupted run of two processes."""
    folder = commands.RunFolder(path=tmp_path_factory.mktemp("uninterrupted"))
    assert folder.fork().wait() == [0, 0]
    return folder.result()
