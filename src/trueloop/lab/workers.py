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
from time import monotonic
from typing import Any, Final

from trueloop.app.web.wire_format import LENGTH, TEXT
from trueloop.runs.live.process_alive import is_alive, process_start_ticks

READY_TIMEOUT_S: Final = 120.0  # torch's import on a busy machine
REPLY_TIMEOUT_S: Final = 10.0  # a fork, or a kill, on one
RESTART_DELAY_S: Final = 5.0  # after a process that never came so far as to fork: the next one will not either, most likely
MAX_MESSAGE_BYTES: Final = 16 << 20  # bytes of one message of a worker
THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class WorkerLost(Exception):
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
            raise WorkerLost(str(error)) from None

    async def receive(self) -> str | bytes:
        """Wait for what it sends next: JSON text, or a frame.

        Raises:
            Gone: the worker has ended.
        """
        try:
            length, kind = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            if length > MAX_MESSAGE_BYTES:
                raise WorkerLost(f"a message of {length} bytes")
            data = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise WorkerLost("it has hung up") from None
        return data.decode() if kind == TEXT else data

    async def end(self, grace_s: float = 1.0) -> None:
        """Hang up; a worker that does not hear it is killed."""
        try:
            async with asyncio.timeout(grace_s):
                self._writer.write_eof()
                while await self._reader.read(1 << 16):
                    pass
        except (TimeoutError, OSError):
            await self._workers.kill(self.pid)
        self._workers.forget(self.pid)
        await _close(self._writer)


class Workers:
    """All workers of one server. `start` it first; nothing else of it may be called before.

    Should the process that they are forked from end, or answer no more, the next `fork` starts another one; the workers
    that are there go on.
    """

    def __init__(self) -> None:
        self._zygote: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None  # kept: it closes the connection when it is let go
        self._control: socket.socket | None = None
        self._control_lock = asyncio.Lock()
        self._ready = self._stopped = False
        self._children: dict[int, str] = {}
        """Workers by process, with the mark that tells them from another process of that number."""
        self._restart_after_s = 0.0
        self._ended_zygotes: list[asyncio.subprocess.Process] = []

    async def start(self) -> None:
        """Start the process that has torch imported; returns before it is ready."""
        ours, theirs = socket.socketpair()
        environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")}
        # -P: a user's folder with a random.py in it is not to be imported from
        command = (sys.executable, "-P", "-m", "trueloop.lab.zygote", str(theirs.fileno()))
        self._zygote = await asyncio.create_subprocess_exec(
            *command,
            pass_fds=(theirs.fileno(),),
            stdin=asyncio.subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the server, which then hangs up
        )
        theirs.close()
        ours.setblocking(False)
        self._control, self._ready = ours, False
        self._reader, self._writer = await asyncio.open_connection(sock=ours.dup())

    async def ready(self) -> None:
        """Wait until torch is imported.

        Raises:
            Gone: the process has ended, or is not ready after `READY_TIMEOUT_S`.
        """
        async with self._control_lock:
            await self._await_ready()

    async def fork(self, kind: str) -> Worker:
        """Start a worker.

        Raises:
            Gone: there is no process to fork from, and none can be started.
        """
        async with self._control_lock:
            try:
                try:
                    return await self._fork(kind)
                except WorkerLost:
                    if self._zygote is not None:  # it is there, and cannot
                        raise
                return await self._fork(kind)
            except OSError as error:  # no more files or processes
                raise WorkerLost(str(error)) from None

    async def kill(self, pid: int) -> None:
        """End a worker of ours at once, if it is still there."""
        async with self._control_lock:
            killed = False
            with contextlib.suppress(WorkerLost):
                killed = (await self._send_command({"kill": pid}))["killed"]
            if not killed and (mark := self._children.get(pid)) and is_alive(pid, mark):
                os.kill(pid, signal.SIGKILL)  # of a process that is gone itself: nobody else can end it

    def forget(self, pid: int) -> None:
        """Take note that a worker was ended."""
        self._children.pop(pid, None)

    async def stop(self) -> None:
        """End the zygote; its workers end when the server hangs up on them."""
        self._stopped = True
        self._discard_zygote()
        for zygote in self._ended_zygotes:
            await zygote.wait()

    async def _await_ready(self) -> None:
        if self._stopped or monotonic() < self._restart_after_s:
            raise WorkerLost("no worker can be started")
        if self._zygote is None or self._zygote.returncode is not None:
            self._discard_zygote()
            await self.start()
        if not self._ready:
            try:
                await self._read_reply(READY_TIMEOUT_S)
            except WorkerLost:
                self._restart_after_s = monotonic() + RESTART_DELAY_S
                raise
            self._ready = True

    async def _fork(self, kind: str) -> Worker:
        await self._await_ready()
        ours, theirs = socket.socketpair()
        try:
            answer = await self._send_command({"fork": kind}, theirs.fileno())
            if "pid" not in answer:
                raise WorkerLost(answer["failed"])
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        pid = answer["pid"]
        self._children[pid] = process_start_ticks(pid)
        reader, writer = await asyncio.open_connection(sock=ours)
        return Worker(pid, reader, writer, self)

    async def _send_command(self, order: Mapping[str, Any], *fds: int) -> dict[str, Any]:
        if self._control is None:
            raise WorkerLost("no worker can be started")
        try:
            socket.send_fds(self._control, [json.dumps(order).encode()], fds)
        except OSError as error:
            self._discard_zygote()
            raise WorkerLost(str(error)) from None
        return await self._read_reply(REPLY_TIMEOUT_S)

    async def _read_reply(self, timeout_s: float) -> dict[str, Any]:
        assert self._reader is not None
        try:
            async with asyncio.timeout(timeout_s):
                line = await self._reader.readline()
            if not line:
                raise WorkerLost("the process that starts the workers has ended")
            return json.loads(line)
        except BaseException as error:
            self._discard_zygote()  # an answer that is still to come would be taken for that of the next question
            if isinstance(error, TimeoutError):
                raise WorkerLost(f"the process that starts the workers said nothing for {timeout_s:g} s") from None
            if isinstance(error, OSError):
                raise WorkerLost(str(error)) from None
            raise

    def _discard_zygote(self) -> None:
        """Have no process to fork from any more."""
        if self._zygote is not None:
            self._ended_zygotes.append(self._zygote)
            if self._zygote.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._zygote.kill()
        if self._control is not None and self._writer is not None:
            self._control.close()
            self._writer.close()
        self._zygote = self._reader = self._writer = self._control = None


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
