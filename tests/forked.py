"""`python -m trueloop ...` and `python script.py` without the 2 s that a new interpreter takes to import torch.

One process per session imports all slow modules, computes nothing, and forks a child for every requested program. The
child has its own session, streams, folder, environment and arguments, runs the program as `python` does, and ends like
an interpreter. It draws no plots: they take half the time of a short run and are tested elsewhere.

A test of an interpreter's start (which modules it imports, how long it takes) needs a real interpreter instead.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ORDER_BYTES = 1 << 18
PRELOADED = (
    "torch", "numpy", "safetensors.torch", "torch.utils.data", "torch._dynamo", "torch.distributed",
    "torch.nn.parallel", "multiprocessing.reduction", "trueloop.cli.train", "trueloop.cli.display",
    "trueloop.cli.summary", "trueloop.app.training.run_recipe",
)  # fmt: skip


class Forker:
    """The process that forks; its `start` replaces `subprocess.Popen` with an interpreter.

    Args:
        also: modules to import in addition to `PRELOADED`.
    """

    def __init__(self, *also: str) -> None:
        self._orders, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._folder = tempfile.TemporaryDirectory(prefix="trueloop-forked-")
        self._started: list[Forked] = []
        with child_end:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(child_end.fileno()), *also], env={**os.environ, "OMP_NUM_THREADS": "1"},
                pass_fds=[child_end.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def start(self, *arguments: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> Forked:
        """Start `python ARGUMENTS`: optionally `-W error`; then `-m` and a module, or a script; then its arguments.

        Args:
            arguments: the command line after `python`.
            cwd: the program's current folder.
            env: all environment variables of the program; None = those of this process.
        """
        out, err = (Path(self._folder.name) / f"{len(self._started)}.{name}" for name in ("out", "err"))
        for path in (out, err):
            path.touch()  # a test may read the file before the child has opened it
        order = {
            "arguments": [str(argument) for argument in arguments], "cwd": str(cwd), "out": str(out), "err": str(err),
            "env": {**(os.environ if env is None else env), "OMP_NUM_THREADS": "1"},
        }  # fmt: skip
        parent_socket, child_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with child_socket:
            socket.send_fds(self._orders, [json.dumps(order).encode()], [child_socket.fileno()])
        self._started.append(Forked(parent_socket, out, err))
        return self._started[-1]

    def run(self, *arguments: str | Path, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        process = self.start(*arguments, cwd=cwd, **options)
        out, err = process.communicate(timeout=200)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def close(self) -> None:
        """End the process that forks, and all programs that a failed test has left running."""
        for process in self._started:
            process.kill()
            process.wait()
        self._orders.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:  # every program has ended, but PyTorch's threads still run
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()


class Forked:
    """One started program, with the interface of `subprocess.Popen`."""

    def __init__(self, parent_socket: socket.socket, out: Path, err: Path) -> None:
        self._socket, self._out, self._err = parent_socket, out, err
        self.returncode: int | None = None
        self.pid = int(parent_socket.recv(64))

    def poll(self) -> int | None:
        """Return the exit code, or None while the program runs."""
        if self.returncode is not None:
            return self.returncode
        self._socket.setblocking(False)
        try:
            return self._end()
        except BlockingIOError:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end."""
        if self.returncode is not None:
            return self.returncode
        self._socket.settimeout(timeout)
        try:
            return self._end()
        except TimeoutError:
            self.kill()
            raise AssertionError(f"The program still runs after {timeout} s: {self.output()}") from None

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end, and return the output."""
        self.wait(timeout)
        return self.output()

    def output(self) -> tuple[str, str]:
        """The current standard output and standard error."""
        return self._out.read_text(), self._err.read_text()

    def send_signal(self, number: int) -> None:
        """Send a signal unless the program has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _end(self) -> int:
        self.returncode = int(self._socket.recv(64))
        self._socket.close()
        return self.returncode


def draw_nothing() -> None:
    """Disable plotting: an empty file for curves, an empty figure for each plot of a report."""
    from trueloop.runs import curves, html_page

    curves.save_panels = lambda panels, title, path_png: path_png.write_bytes(b"")
    html_page.render_svg = lambda panel: '<svg viewBox="0 0 1 1"></svg>'


# In the process that forks ---------------------------------------------------------------------------------------


def serve(orders: socket.socket) -> list[str] | None:
    """Fork for every order. Return the arguments of a program in each child, and None in the parent at the end."""
    running = 0
    while True:
        message, descriptors, _, _ = socket.recv_fds(orders, ORDER_BYTES, 1)
        while running and os.waitpid(-1, os.WNOHANG if message else 0)[0]:
            running -= 1
        if not message:
            return None
        if os.fork() == 0:  # a child that waits for the program and reports its end
            orders.close()
            child_socket = socket.socket(fileno=descriptors[0])
            pid = os.fork()
            if pid == 0:
                child_socket.close()
                return become_program(**json.loads(message))
            child_socket.send(str(pid).encode())
            status = os.waitpid(pid, 0)[1]
            child_socket.send(str(os.waitstatus_to_exitcode(status)).encode())
            os._exit(0)
        os.close(descriptors[0])
        running += 1


def become_program(arguments: list[str], cwd: str, out: str, err: str, env: dict[str, str]) -> list[str]:
    """Set up this child like a new process; return its arguments."""
    os.setsid()
    for descriptor, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), descriptor)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    return arguments


def main() -> None:
    """Import slow modules, then fork; a child returns from this function like its program."""
    import importlib

    for name in (*PRELOADED, *sys.argv[2:]):
        importlib.import_module(name)
    draw_nothing()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # SIGINT is ignored if the tests run in the background
    gc.freeze()  # otherwise the first garbage collection of every child copies all memory pages
    arguments = serve(socket.socket(fileno=int(sys.argv[1])))
    if arguments is None:
        return
    if arguments[:2] == ["-W", "error"]:
        warnings.simplefilter("error")
        arguments = arguments[2:]
    if arguments[0] == "-m":
        sys.argv, sys.path[0] = arguments[1:], os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
