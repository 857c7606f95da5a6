"""A process that is forked before a program starts, and forks a fresh process for each rerun of the program."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any, Final

from trueloop.sanitizer.run_program import ProgramCommand

MAX_ORDER_BYTES: Final = 4096


class ForkServer:
    """The parent's end of the server, which has not run the program and therefore knows nothing of it.

    Args:
        program: the program that is run again.
        folder: where reruns write their files.
    """

    def __init__(self, program: ProgramCommand, folder: Path) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                self._orders.close()
                _serve(theirs, program, folder)
            finally:
                os._exit(1)
        theirs.close()
        self._pid = pid

    def start(self, seed: int) -> RerunHandle:
        """Run the program again, up to its first backward pass.

        Args:
            seed: 0 = the program's own seeds; others are added to these.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._orders, [str(seed).encode()], [theirs.fileno()])
        return RerunHandle(ours)

    def close(self) -> None:
        """End the server; reruns are ended by their own handles."""
        self._orders.close()
        if os.getpid() == self._process:
            os.kill(self._pid, signal.SIGKILL)  # a loader's worker may hold another copy of the socket
            os.waitpid(self._pid, 0)


class RerunHandle:
    """The parent's end of one rerun, whose messages are lines of JSON."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel, self._buffer = channel, b""
        self._pid = 0

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; nothing happens if the rerun has ended, which `receive` then tells."""
        try:
            self._channel.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return

    def receive(self, deadline_s: float) -> dict[str, Any] | None:
        """Return the next message; None if the rerun has ended.

        Args:
            deadline_s: time on the clock of ``time.monotonic``.

        Raises:
            TimeoutError: there is no message until then.
        """
        while b"\n" not in self._buffer:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self._channel.settimeout(left_s)
            try:
                data = self._channel.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        if "pid" in message:
            self._pid = message["pid"]
            return self.receive(deadline_s)
        return message

    def close(self) -> None:
        """End the rerun and all its children."""
        if not self._pid:
            with contextlib.suppress(TimeoutError):
                self.receive(time.monotonic() + 1)  # its first message is its process id
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
        self._channel.close()


def _serve(orders: socket.socket, program: ProgramCommand, folder: Path) -> None:
    """Fork for every order, until the parent has ended."""
    os.setsid()  # Ctrl-C is for the parent, which then ends the reruns
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    number = 0
    while True:
        message, handles, _, _ = socket.recv_fds(orders, MAX_ORDER_BYTES, 1)
        if not message:
            os._exit(0)
        number += 1
        if os.fork() == 0:
            orders.close()
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            from trueloop.sanitizer.experiments.rerun import rerun

            rerun(program, socket.socket(fileno=handles[0]), seed=int(message), folder=folder / str(number))
        os.close(handles[0])
