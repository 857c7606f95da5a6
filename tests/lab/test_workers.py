"""Workers are forked from a process with torch; they answer, are killed when they hang, and end with the server."""

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


async def wait_until_ended(pid: int) -> None:
    end = time.monotonic() + 20
    while alive(pid):
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


async def check_answer(worker: Worker) -> None:
    await worker.send(json.dumps({"view": "arithmetic", "query": {"wrong": 1}}))
    reply = json.loads(await worker.receive())
    assert "wrong" in reply["error"]["what"]


async def check_two_workers(workers: Workers) -> None:
    one, two = await workers.fork("calculator"), await workers.fork("calculator")
    assert one.pid != two.pid
    assert os.getsid(one.pid) != os.getsid(0), "Ctrl-C is for the server"
    for worker in (one, two):
        await check_answer(worker)
    await one.end()
    await wait_until_ended(one.pid)
    assert alive(two.pid)
    await two.end()


async def check_hanging_worker(workers: Workers) -> None:
    worker = await workers.fork("calculator")
    os.kill(worker.pid, signal.SIGSTOP)
    await worker.end(0.1)
    await wait_until_ended(worker.pid)


async def check_killed_worker(workers: Workers) -> None:
    worker = await workers.fork("calculator")
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerLost):
        await worker.receive()
    await worker.end()


async def check_limits(workers: Workers) -> None:
    worker = await workers.fork("calculator")
    await check_answer(worker)  # its limits are set before it answers
    limits = Path(f"/proc/{worker.pid}/limits").read_text()
    (line,) = [line for line in limits.splitlines() if line.startswith("Max address space")]
    assert int(line.split()[3]) < 64 << 30
    assert int(Path(f"/proc/{worker.pid}/oom_score_adj").read_text()) >= 500
    assert int(Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[16]) > 0, (
        "its priority is below the server's"
    )
    await worker.end()


async def check_orphans(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    idle, hung = await workers.fork("calculator"), await workers.fork("calculator")
    await end_zygote(workers, signal.SIGSTOP, monkeypatch)
    new = await workers.fork("calculator")  # from another zygote
    for worker in (new, idle):
        await check_answer(worker)
    os.kill(hung.pid, signal.SIGSTOP)
    for worker in (idle, hung, new):
        await worker.end(0.5)
        await wait_until_ended(worker.pid)
    await end_zygote(workers, signal.SIGKILL, monkeypatch)


async def end_zygote(workers: Workers, signal_number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """End the zygote while no other one can be started; a fork then fails soon."""

    async def refuse(workers: Workers) -> None:
        raise OSError("Too many open files")

    zygote = workers._zygote
    assert zygote is not None
    zygote.send_signal(signal_number)
    with monkeypatch.context() as patched:
        patched.setattr("trueloop.lab.workers.REPLY_TIMEOUT_S", 0.2)
        patched.setattr(Workers, "start", refuse)
        with pytest.raises(WorkerLost, match="Too many open files"):
            await workers.fork("calculator")
    await zygote.wait()


async def check_open_files(workers: Workers) -> None:
    """A worker has its own socket and its standard streams, and no open files of the server or of other workers."""
    forked = [await workers.fork("calculator") for _ in range(3)]
    for worker in forked:
        await check_answer(worker)
        files = [os.readlink(each) for each in Path(f"/proc/{worker.pid}/fd").iterdir() if int(each.name) > 2]
        assert len([file for file in files if file.startswith("socket:")]) == 1, files
        await worker.end()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="looks at /proc")
def test_the_life_of_workers(monkeypatch: pytest.MonkeyPatch):
    async def run_all(*parts: Callable[[Workers], Awaitable[None]]) -> None:
        async with running() as workers:
            for part in parts:
                await part(workers)

    with ThreadPoolExecutor(1) as thread:  # the browser tests have an event loop in this thread
        thread.submit(
            asyncio.run,
            run_all(
                check_two_workers,
                check_hanging_worker,
                check_killed_worker,
                check_limits,
                check_open_files,
                lambda workers: check_orphans(workers, monkeypatch),
            ),
        ).result()


def test_a_zygote_that_cannot_start_is_not_restarted_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trueloop.lab.workers.sys.executable", shutil.which("false"))
    starts: list[Workers] = []
    start = Workers.start

    async def counted_start(workers: Workers) -> None:
        starts.append(workers)
        await start(workers)

    monkeypatch.setattr(Workers, "start", counted_start)

    async def fork_repeatedly() -> None:
        workers = Workers()
        await workers.start()
        for _ in range(6):
            with pytest.raises(WorkerLost):
                await workers.fork("calculator")
        await workers.stop()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, fork_repeatedly()).result()
    assert len(starts) <= 2, "the first zygote may end before the first fork"
