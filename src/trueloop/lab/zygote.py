"""The zygote process: it imports torch and forks the workers, which share its memory.

A separate process needs seconds and about 280 MB to import torch; a forked process needs milliseconds, and memory only
for the pages that it writes to.
"""

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trueloop.lab.forking import limit_memory, warm_up
from trueloop.lab.simulator import warm_up_sanitizer

WORKERS: Final = {
    "calculator": "trueloop.lab.calculator",
    "simulator": "trueloop.lab.simulator",
    "diagnosis": "trueloop.lab.diagnosis",
}
PRELOADED_PACKAGES: Final = ("trueloop.lab.teaching", "trueloop.data")
"""Packages that workers use, imported before the first fork."""
MAX_WORKER_BYTES: Final = 2 << 30  # memory that a worker may allocate in addition to what it has at the start
NICE: Final = 5  # gives workers a lower priority than the server, which must stay responsive
OOM_SCORE: Final = 500  # adjustment, at most 1000: when memory runs out, the kernel kills workers before other programs
MAX_COMMAND_BYTES: Final = 4096


def main(control_fd: int) -> None:
    """Execute the commands ``{"fork": kind}``, with a socket attached, and ``{"kill": pid}``; reply with JSON lines."""
    for name in [*WORKERS.values(), *_module_names()]:
        importlib.import_module(name)
    warm_up()
    warm_up_sanitizer()
    gc.collect()
    gc.freeze()  # the garbage collector of a child must not write to shared memory
    control = socket.socket(fileno=control_fd)
    children: set[int] = set()
    _reply(control, {"ready": os.getpid()})
    while True:
        data, fds, _, _ = socket.recv_fds(control, MAX_COMMAND_BYTES, 1)
        if not data:
            os._exit(0)
        command = json.loads(data)
        _reap(children)
        if "fork" in command:
            try:
                _reply(control, {"pid": _fork(command["fork"], fds[0], control, children)})
            except OSError as error:  # a later fork may succeed
                _reply(control, {"failed": str(error)})
        else:
            alive = command["kill"] in children  # a reused process id is not killed
            if alive:
                os.kill(command["kill"], signal.SIGKILL)
            _reply(control, {"killed": alive})


def _fork(kind: str, line_fd: int, control: socket.socket, children: set[int]) -> int:
    try:
        pid = os.fork()
    except OSError:  # limit of processes or memory
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
    """Lower the priority and limit the memory of this process."""
    os.nice(NICE)
    with contextlib.suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE), encoding="ascii")
    limit_memory(MAX_WORKER_BYTES)


def _reap(children: set[int]) -> None:
    for pid in list(children):
        done, _ = os.waitpid(pid, os.WNOHANG)
        if done:
            children.discard(pid)


def _module_names() -> Iterator[str]:
    for name in PRELOADED_PACKAGES:
        package = importlib.import_module(name)
        yield from (module.name for module in pkgutil.walk_packages(package.__path__, f"{name}."))


def _reply(control: socket.socket, message: dict[str, Any]) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
