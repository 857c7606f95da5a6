"""Start the zygote process, fork workers from it, and exchange messages with them."""

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

READY_TIMEOUT_S: Final = 120.0  # enough to import torch on a busy machine
REPLY_TIMEOUT_S: Final = 10.0  # enough for a fork or a kill on a busy machine
RESTART_DELAY_S: Final = 5.0  # time between a failed start of a zygote and the next one
MAX_MESSAGE_BYTES: Final = 16 << 20  # maximum size of one message from a worker
THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class WorkerLost(Exception):
    """The worker has ended or does not answer."""


class Worker:
    """A forked process and the connection to it."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, workers: Workers) -> None:
        self.pid = pid
        self._reader, self._writer, self._workers = reader, writer, workers

    async def send(self, line: str) -> None:
        """Send one JSON object, waiting while the worker is behind.

        Raises:
            WorkerLost: the worker has ended.
        """
        try:
            self._writer.write(line.replace("\n", " ").encode() + b"\n")
            await self._writer.drain()
        except (ConnectionError, RuntimeError) as error:
            raise WorkerLost(str(error)) from None

    async def receive(self) -> str | bytes:
        """Wait for the next message: JSON text or a frame.

        Raises:
            WorkerLost: the worker has ended.
        """
        try:
            length, kind = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            if length > MAX_MESSAGE_BYTES:
                raise WorkerLost(f"a message of {length} bytes")
            data = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise WorkerLost("it disconnected") from None
        return data.decode() if kind == TEXT else data

    async def end(self, grace_s: float = 1.0) -> None:
        """Disconnect; a worker that does not end by itself is killed."""
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
    """All workers of one server; `start` must be called first.

    If the zygote ends or stops answering, the next `fork` starts another one; existing workers continue.
    """

    def __init__(self) -> None:
        self._zygote: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None  # closes the connection when it is garbage-collected
        self._control: socket.socket | None = None
        self._control_lock = asyncio.Lock()
        self._ready = self._stopped = False
        self._children: dict[int, str] = {}
        """Process id -> start ticks of the worker, which reveal that an id was reused."""
        self._restart_after_s = 0.0
        self._ended_zygotes: list[asyncio.subprocess.Process] = []

    async def start(self) -> None:
        """Start the zygote, without waiting until it is ready."""
        own_end, worker_end = socket.socketpair()
        environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")}
        # -P keeps the working directory, which may contain a random.py, off the import path.
        command = (sys.executable, "-P", "-m", "trueloop.lab.zygote", str(worker_end.fileno()))
        self._zygote = await asyncio.create_subprocess_exec(
            *command,
            pass_fds=(worker_end.fileno(),),
            stdin=asyncio.subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the server, which then disconnects
        )
        worker_end.close()
        own_end.setblocking(False)
        self._control, self._ready = own_end, False
        self._reader, self._writer = await asyncio.open_connection(sock=own_end.dup())

    async def ready(self) -> None:
        """Wait until torch is imported.

        Raises:
            WorkerLost: the process has ended or is not ready after `READY_TIMEOUT_S`.
        """
        async with self._control_lock:
            await self._await_ready()

    async def fork(self, kind: str) -> Worker:
        """Start a worker.

        Raises:
            WorkerLost: there is no zygote and none can be started.
        """
        async with self._control_lock:
            try:
                try:
                    return await self._fork(kind)
                except WorkerLost:
                    if self._zygote is not None:  # it is running but cannot fork
                        raise
                return await self._fork(kind)
            except OSError as error:  # no more files or processes
                raise WorkerLost(str(error)) from None

    async def kill(self, pid: int) -> None:
        """Kill a worker if it is still running."""
        async with self._control_lock:
            killed = False
            with contextlib.suppress(WorkerLost):
                killed = (await self._send_command({"kill": pid}))["killed"]
            if not killed and (start_ticks := self._children.get(pid)) and is_alive(pid, start_ticks):
                os.kill(pid, signal.SIGKILL)  # its zygote has ended, so only this process can

    def forget(self, pid: int) -> None:
        """Remove a worker that has ended."""
        self._children.pop(pid, None)

    async def stop(self) -> None:
        """End the zygote; its workers end when the server disconnects."""
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
        own_end, worker_end = socket.socketpair()
        try:
            answer = await self._send_command({"fork": kind}, worker_end.fileno())
            if "pid" not in answer:
                raise WorkerLost(answer["failed"])
        except BaseException:
            own_end.close()
            raise
        finally:
            worker_end.close()
        pid = answer["pid"]
        self._children[pid] = process_start_ticks(pid)
        reader, writer = await asyncio.open_connection(sock=own_end)
        return Worker(pid, reader, writer, self)

    async def _send_command(self, command: Mapping[str, Any], *fds: int) -> dict[str, Any]:
        if self._control is None:
            raise WorkerLost("no worker can be started")
        try:
            socket.send_fds(self._control, [json.dumps(command).encode()], fds)
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
            self._discard_zygote()  # a late reply would be read as the reply to the next command
            if isinstance(error, TimeoutError):
                raise WorkerLost(f"the process that starts the workers did not answer for {timeout_s:g} s") from None
            if isinstance(error, OSError):
                raise WorkerLost(str(error)) from None
            raise

    def _discard_zygote(self) -> None:
        """Kill the zygote if it is running, and forget it."""
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
