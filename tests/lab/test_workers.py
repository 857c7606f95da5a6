"""Workers are forked from a process that has torch, answer, are killed when they hang, and end with the server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trueloop.lab.workers import Worker, WorkerLost, Workers


@contextlib.asynccontextmanager
async def running() -> AsyncGenerator[Workers]:
    workers = Workers()
    await workers.start()
    try:
        await workers.ready()
        yield workers
    finally:
        await workers.stop()


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def gone(pid: int) -> None:
    end = time.monotonic() + 20
    while alive(pid):
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


async def answers(worker: Worker) -> None:
    await worker.send(json.dumps({"view": "arithmetic", "query": {"wrong": 1}}))
    reply = json.loads(await worker.receive())
    assert "wrong" in reply["error"]["what"]


async def question(workers: Workers) -> None:
    one, two = await workers.fork("calculator"), await workers.fork("calculator")
    assert one.pid != two.pid
    assert os.getsid(one.pid) != os.getsid(0), "Ctrl-C is for the server"
    for worker in (one, two):
        await answers(worker)
    await one.end()
    await gone(one.pid)
    assert alive(two.pid)
    await two.end()


async def hang(workers: Workers) -> None:
    worker = await workers.fork("calculator")
    os.kill(worker.pid, signal.SIGSTOP)
    await worker.end(0.1)
    await gone(worker.pid)


async def death(workers: Workers) -> None:
    worker = await workers.fork("calculator")
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerLost):
        await worker.receive()
    await worker.end()


async def bounds(workers: Workers) -> None:
    worker = await workers.fork("calculator")
    await answers(worker)  # it has come so far
    limits = Path(f"/proc/{worker.pid}/limits").read_text()
    (line,) = [line for line in limits.splitlines() if line.startswith("Max address space")]
    assert int(line.split()[3]) < 64 << 30
    assert int(Path(f"/proc/{worker.pid}/oom_score_adj").read_text()) >= 500
    assert int(Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[16]) > 0, "behind the server"
    await worker.end()


async def orphans(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    idle, hung = await workers.fork("calculator"), await workers.fork("calculator")
    await dies(workers, signal.SIGSTOP, monkeypatch)
    new = await workers.fork("calculator")  # from another one
    for worker in (new, idle):
        await answers(worker)
    os.kill(hung.pid, signal.SIGSTOP)
    for worker in (idle, hung, new):
        await worker.end(0.5)
        await gone(worker.pid)
    await dies(workers, signal.SIGKILL, monkeypatch)


async def dies(workers: Workers, of: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """End the process that forks, where no other can be started; it is not waited for long."""

    async def refuse(workers: Workers) -> None:
        raise OSError("Too many open files")

    zygote = workers._zygote
    assert zygote is not None
    zygote.send_signal(of)
    with monkeypatch.context() as patched:
        patched.setattr("trueloop.lab.workers.REPLY_TIMEOUT_S", 0.2)
        patched.setattr(Workers, "start", refuse)
        with pytest.raises(WorkerLost, match="Too many open files"):
            await workers.fork("calculator")
    await zygote.wait()


async def leaks(workers: Workers) -> None:
    """A worker has its own line, its standard streams, and nothing of the server's or of other workers'."""
    several = [await workers.fork("calculator") for _ in range(3)]
    for worker in several:
        await answers(worker)
        files = [os.readlink(each) for each in Path(f"/proc/{worker.pid}/fd").iterdir() if int(each.name) > 2]
        assert len([file for file in files if file.startswith("socket:")]) == 1, files
        await worker.end()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="looks at /proc")
def test_workers_live_and_die_as_they_should(monkeypatch: pytest.MonkeyPatch):
    async def all_of_it(*parts: Callable[[Workers], Awaitable[None]]) -> None:
        async with running() as workers:
            for part in parts:
                await part(workers)

    with ThreadPoolExecutor(1) as thread:  # where a browser is tested, this one has a loop of its own already
        thread.submit(
            asyncio.run, all_of_it(question, hang, death, bounds, leaks, lambda workers: orphans(workers, monkeypatch))
        ).result()


def test_a_process_that_cannot_start_is_not_started_again_and_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trueloop.lab.workers.sys.executable", shutil.which("false"))
    starts: list[Workers] = []
    start = Workers.start

    async def counted(workers: Workers) -> None:
        starts.append(workers)
        await start(workers)

    monkeypatch.setattr(Workers, "start", counted)

    async def several() -> None:
        workers = Workers()
        await workers.start()
        for _ in range(6):
            with pytest.raises(WorkerLost):
                await workers.fork("calculator")
        await workers.stop()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, several()).result()
    assert len(starts) <= 2, "the first one may have ended before anybody asked"
