"""A lab that nobody visits ends; one that somebody visits, or that a script tells of itself, does not."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys

from trueloop.lab import idle_shutdown as module
from trueloop.lab.idle_shutdown import Lively


def test_an_open_connection_is_a_visitor():
    async def check():
        door = asyncio.Event()

        async def app(scope, receive, send):
            await door.wait()

        lively = Lively(app)
        visit = asyncio.create_task(lively({"type": "websocket"}, None, None))
        await asyncio.sleep(0)
        assert lively.idle_s == 0.0
        waits = asyncio.create_task(lively.until_idle(0.01, lambda: False))
        await asyncio.sleep(0.05)
        assert not waits.done()
        door.set()
        await visit
        assert lively.idle_s >= 0.0
        await asyncio.wait_for(waits, 10)

    asyncio.run(check())


def test_a_reason_to_stay_keeps_it(monkeypatch):
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    asked = []

    def busy():
        asked.append(True)
        return len(asked) < 4

    async def app(scope, receive, send):
        raise AssertionError

    asyncio.run(asyncio.wait_for(Lively(app).until_idle(0.001, busy), 10))
    assert len(asked) == 4


def test_a_failed_request_was_a_visit_too():
    async def app(scope, receive, send):
        raise ValueError

    async def check():
        lively = Lively(app)
        try:
            await lively({"type": "http"}, None, None)
        except ValueError:
            assert lively.idle_s >= 0.0
        else:
            raise AssertionError

    asyncio.run(check())


def test_a_question_that_the_end_cuts_off_is_told_so():
    async def never(scope, receive, send):
        await asyncio.Event().wait()

    async def check():
        sent = []

        async def send(message):
            sent.append(message)

        question = asyncio.create_task(Lively(never)({"type": "http"}, None, send))
        await asyncio.sleep(0)
        question.cancel()
        await question
        assert sent[0]["status"] == 503
        assert json.loads(sent[1]["body"])["stopping"] is True

    asyncio.run(check())


def test_a_lab_of_a_moment_ends_by_itself(tmp_path):
    script = (
        "from pathlib import Path\n"
        "from trueloop.lab.serving import listening, serve\n"
        f"serve(listening(0), Path({str(tmp_path)!r}), opened=False, say=print, idle_s=0.2)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "http://127.0.0.1:" in done.stdout
