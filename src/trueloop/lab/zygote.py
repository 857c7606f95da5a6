"""The process that has torch imported, and forks a worker for each who asks: warm at once, its memory shared.

Measured: a worker of its own takes seconds and about 280 MB to import torch; a forked one milliseconds, and only the
memory that it writes to.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

WORKERS: Final = {
    "calculator": "trueloop.lab.calculator",
    "simulator": "trueloop.lab.simulator",
}
PRELOADED_PACKAGES: Final = ("trueloop.lab.teaching", "trueloop.data")
"""What pages are answered with: imported before anybody asks."""
MAX_WORKER_BYTES: Final = 2 << 30  # bytes that a worker may come to hold besides what it starts with
NICE: Final = 5  # below the server, which has to stay responsive whatever is computed
OOM_SCORE: Final = 500  # of 1000: how readily the system ends a worker when memory runs out
MAX_COMMAND_BYTES: Final = 4096


def main(control_fd: int) -> None:
    """Obey ``{"fork": kind}``, which has a socket attached, and ``{"kill": pid}``; reply with a line each."""
    for name in [*WORKERS.values(), *_module_names()]:
        importlib.import_module(name)
    _warm_up()
    gc.collect()
    gc.freeze()  # what is there now stays, so that no child's collector writes to the memory it shares
    control = socket.socket(fileno=control_fd)
    children: set[int] = set()
    _reply(control, {"ready": os.getpid()})
    while True:
        data, fds, _, _ = socket.recv_fds(control, MAX_COMMAND_BYTES, 1)
        if not data:
            os._exit(0)
        order = json.loads(data)
        _reap(children)
        if "fork" in order:
            try:
                _reply(control, {"pid": _fork(order["fork"], fds[0], control, children)})
            except OSError as error:  # it goes on, and can perhaps when some have ended
                _reply(control, {"failed": str(error)})
        else:
            alive = order["kill"] in children  # a number that was given away again is not killed
            if alive:
                os.kill(order["kill"], signal.SIGKILL)
            _reply(control, {"killed": alive})


def _fork(kind: str, line_fd: int, control: socket.socket, children: set[int]) -> int:
    try:
        pid = os.fork()
    except OSError:  # as many processes, or as much memory, as may be
        os.close(line_fd)
        raise
    if pid:
        children.add(pid)
        os.close(line_fd)
        return pid
    code = 1
    try:
        control.close()
        _apply_limits()
        worker: Any = sys.modules[WORKERS[kind]]
        worker.serve(line_fd, line_fd)
        code = 0
    except (BrokenPipeError, ConnectionResetError):  # the server is gone
        code = 0
    finally:
        if code:
            sys.excepthook(*sys.exc_info())  # pyright: ignore[reportArgumentType]
        os._exit(code)


def _apply_limits() -> None:
    """Stay behind the server, and within bounds of memory, where the system can tell how much is held."""
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # where memory runs out, we go first, and not what the user works with
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE), encoding="ascii")
    statm = Path("/proc/self/statm")
    if statm.exists():
        held = int(statm.read_text().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (held + MAX_WORKER_BYTES, hard))


def _reap(children: set[int]) -> None:
    for pid in list(children):
        done, _ = os.waitpid(pid, os.WNOHANG)
        if done:
            children.discard(pid)


def _module_names() -> Iterator[str]:
    for name in PRELOADED_PACKAGES:
        package = importlib.import_module(name)
        yield from (module.name for module in pkgutil.walk_packages(package.__path__, f"{name}."))


def _warm_up() -> None:
    """Import what is imported late otherwise, once for all workers."""
    simulator: Any = sys.modules[WORKERS["simulator"]]
    simulator.warm_up()
    if find_spec("sklearn"):
        importlib.import_module("sklearn.datasets")


def _reply(control: socket.socket, message: dict[str, Any]) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
