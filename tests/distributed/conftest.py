"""Several processes that meet through gloo, forked from this one so that torch is imported once."""

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


def launch(rank, size, port):
    """Set what a launcher sets."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))


def _life(function, arguments, rank, size, port, pipe: Connection):
    torch.set_num_threads(1)
    launch(rank, size, port)
    try:
        message = pickle.dumps(
            (True, function(*arguments))
        )  # plain: a tensor sent by a pipe lives in its sender's memory
    except BaseException as error:  # noqa: BLE001 - reported to the test
        message = pickle.dumps((False, f"{traceback.format_exc()}\n{getattr(error, '__notes__', '')}"))
    pipe.send_bytes(message)
    if rank == 0:
        time.sleep(PATIENCE_S)  # until the test ends it: the store that the others still meet at lives in this process
    os._exit(0)


def _together(function, *arguments, processes):
    """Call a function in several processes of one run; return what each returned, by rank."""
    context, port = multiprocessing.get_context("fork"), free_port()
    pipes = [context.Pipe() for _ in range(processes)]
    lives = [
        context.Process(target=_life, args=(function, arguments, rank, processes, port, pipe[1]))
        for rank, pipe in enumerate(pipes)
    ]
    for life in lives:
        life.start()
    try:
        results = []
        for rank, (here, _) in enumerate(pipes):
            assert here.poll(PATIENCE_S), f"process {rank} of {processes} said nothing"
            results.append(pickle.loads(here.recv_bytes()))
    finally:
        for life in lives:
            life.kill()
            life.join()
    failed = [f"process {rank}:\n{message}" for rank, (well, message) in enumerate(results) if not well]
    assert not failed, "\n".join(failed)
    return [message for _, message in results]


@pytest.fixture(scope="session")
def together():
    return _together


@pytest.fixture(scope="session")
def commands():
    """The module `commands.py`: what a test file cannot import from here."""
    spec = importlib.util.spec_from_file_location("commands", Path(__file__).with_name("commands.py"))
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in module.IMPORTS:
        importlib.import_module(name)
    return module


@pytest.fixture
def place(commands, tmp_path):
    """A run folder for `trueloop train failing.py`."""
    place = commands.Place(path=tmp_path / "place")
    yield place
    for started in place._started:
        started.kill()


@pytest.fixture(scope="session")
def uninterrupted(commands, tmp_path_factory):
    """What is left of the run of two processes to which nothing happens."""
    place = commands.Place(path=tmp_path_factory.mktemp("uninterrupted"))
    assert place.fork().wait() == [0, 0]
    return place.result()
