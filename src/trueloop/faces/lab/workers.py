"""The server's side of its workers: starts the zygote, asks it for forks, and speaks with them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any, Final

from trueloop.faces.lab.wire import LENGTH, TEXT

READY_S: Final = 120.0  # torch's import on a busy machine
LARGEST: Final = 16 << 20  # bytes of one message of a worker
SINGLE: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Gone(Exception):
    """The worker has ended, or speaks no more."""


class Worker:
    """A forked process, and the line to it."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, workers: Workers) -> None:
        self.pid = pid
        self._reader, self._writer, self._workers = reader, writer, workers

    async def send(self, line: str) -> None:
        """Send one JSON object; waits while the worker is behind.

        Raises:
            Gone: the worker has ended.
        """
        try:
            self._writer.write(line.replace("\n", " ").encode() + b"\n")
            await self._writer.drain()
        except (ConnectionError, RuntimeError) as error:
            raise Gone(str(error)) from None

    async def receive(self) -> str | bytes:
        """Wait for what it sends next: JSON text, or a frame.

        Raises:
            Gone: the worker has ended.
        """
        try:
            length, kind = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            if length > LARGEST:
                raise Gone(f"a message of {length} bytes")
            data = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise Gone("it has hung up") from None
        return data.decode() if kind == TEXT else data

    async def end(self, grace_s: float = 1.0) -> None:
        """Hang up; a worker that does not hear it is killed."""
        try:
            async with asyncio.timeout(grace_s):
                self._writer.write_eof()
                while await self._reader.read(1 << 16):
                    pass
        except (TimeoutError, OSError):
            with contextlib.suppress(Gone):
                await self._workers.kill(self.pid)
        await _closed(self._writer)


class Workers:
    """All workers of one server. `start` it first; nothing else of it may be called before."""

    def __init__(self) -> None:
        self._zygote: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None  # kept: it closes the connection when it is let go
        self._control: socket.socket | None = None
        self._turn = asyncio.Lock()
        self._ready = asyncio.Event()

    async def start(self) -> None:
        """Start the process that has torch imported; returns before it is ready."""
        ours, theirs = socket.socketpair()
        environment = {**os.environ, **dict.fromkeys(SINGLE, "1")}
        # -P: a user's folder with a random.py in it is not to be imported from
        command = (sys.executable, "-P", "-m", "trueloop.faces.lab.zygote", str(theirs.fileno()))
        self._zygote = await asyncio.create_subprocess_exec(
            *command, pass_fds=(theirs.fileno(),), stdin=asyncio.subprocess.DEVNULL, env=environment
        )
        theirs.close()
        ours.setblocking(False)
        self._control = ours
        self._reader, self._writer = await asyncio.open_connection(sock=ours.dup())

    async def ready(self) -> None:
        """Wait until torch is imported.

        Raises:
            Gone: the process has ended, or is not ready after `READY_S`.
        """
        async with self._turn:
            if not self._ready.is_set():
                await self._answer(READY_S)
                self._ready.set()

    async def fork(self, kind: str) -> Worker:
        """Start a worker.

        Raises:
            Gone: there is no process to fork from.
        """
        await self.ready()
        ours, theirs = socket.socketpair()
        try:
            async with self._turn:
                self._order({"fork": kind}, theirs.fileno())
                answer = await self._answer(10.0)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours)
        return Worker(answer["pid"], reader, writer, self)

    async def kill(self, pid: int) -> None:
        """End a worker of ours at once, if it is still there."""
        async with self._turn:
            self._order({"kill": pid})
            await self._answer(10.0)

    async def stop(self) -> None:
        """End the zygote; its workers end when the server hangs up on them."""
        if self._control is not None and self._writer is not None:
            self._control.close()
            await _closed(self._writer)
        if self._zygote is not None and self._zygote.returncode is None:
            self._zygote.send_signal(signal.SIGKILL)
            await self._zygote.wait()

    def _order(self, message: Mapping[str, Any], *fds: int) -> None:
        if self._control is None:
            raise Gone("no worker can be started")
        try:
            socket.send_fds(self._control, [json.dumps(message).encode()], fds)
        except OSError as error:
            raise Gone(str(error)) from None

    async def _answer(self, patience_s: float) -> dict[str, Any]:
        if self._reader is None:
            raise Gone("no worker can be started")
        try:
            async with asyncio.timeout(patience_s):
                line = await self._reader.readline()
        except TimeoutError:
            raise Gone(f"torch was not ready after {patience_s:g} s") from None
        if not line:
            raise Gone("the process that starts the workers has ended")
        return json.loads(line)


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
