"""The worker of "It does not learn": a script's own run, then experiments one by one, and their ranking."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trueloop.app.web.wire_format import LENGTH
from trueloop.failures.load import catalogue
from trueloop.lab import diagnosis
from trueloop.lab.diagnosis import learning_failures

Message = dict[str, Any]


class Page:
    """The page's end of the connection."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def send(self, **command: Any) -> None:
        self._channel.sendall(json.dumps(command).encode() + b"\n")

    def receive(self) -> Message:
        length, _ = LENGTH.unpack(self._read(LENGTH.size))
        return json.loads(self._read(length), parse_constant=pytest.fail)

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self._channel.recv(count - len(data))
            assert part, "the worker has ended"
            data += part
        return data

    def until(self, kind: str, **values: Any) -> tuple[Message, list[Message]]:
        """Return the first such message, and those before it."""
        before: list[Message] = []
        while True:
            message = self.receive()
            if message["kind"] == kind and values.items() <= message.items():
                return message, before
            before.append(message)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(diagnosis.tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def page(folder: Path) -> Iterator[Page]:
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        try:
            diagnosis.serve(theirs.fileno(), theirs.fileno())
        finally:
            os._exit(0)
    theirs.close()
    yield Page(ours)
    ours.close()
    _, status = os.waitpid(pid, 0)
    assert status == 0


def test_the_scripts_are_those_of_the_family():
    assert set(learning_failures()) == {code for code in catalogue() if code.startswith("LRN")}


def test_the_run_and_every_experiment_are_sent_with_their_curves(page: Page, folder: Path):
    page.send(do="open", code="LRN003")
    script = page.receive()
    text = ["".join(part for _, part in line) for line in script["lines"]]
    assert text == catalogue()["LRN003"].failure.bad.strip().splitlines()
    run = page.receive()
    assert run["kind"] == "run"
    assert len(run["values"]) == 300
    assert run["values"][-1] > 0.5 * run["constant"], "it does not learn"
    assert (run["finding"]["code"], run["finding"]["path"]) == ("LRN003", "train.py")
    assert "weight_decay=0.5" in text[run["finding"]["line"] - 1]
    page.send(do="diagnose")
    last, before = page.until("ranking", done=True)
    trials = [message for message in before if message["kind"] == "trial"]
    assert trials[0]["key"] == ""
    assert {trial["key"] for trial in trials[1:]} == {outcome["key"] for outcome in last["outcomes"]}
    assert all(trial["curve"]["updates"][-1] == 99 for trial in trials)
    rankings = [len(message["outcomes"]) for message in before if message["kind"] == "ranking"]
    assert rankings == list(range(len(trials))), "the ranking grows by one experiment at a time"
    best = last["outcomes"][0]
    assert (best["title"], best["effect"]) == ("no weight decay", "helps")
    assert best["after"] < 0.5 * best["before"]
    assert best["line"] == f"train.py:{run['finding']['line']}"
    assert best["advice"] == "weight_decay=0 instead of 0.5"
    assert last["headline"] == "It can learn: no weight decay."


def test_other_commands_are_refused(page: Page):
    for command in ({"do": "diagnose"}, {"do": "open", "code": "GRD001"}, {"do": "open"}, {"do": "run"}):
        page.send(**command)
        assert page.receive()["kind"] == "refused"
    page.send(do="open", code="LRN001")
    page.until("run")
    page.send(do="open", code="LRN002")
    assert page.receive()["kind"] == "refused", "one session has one script"


def test_nothing_is_left_when_the_page_disconnects_during_an_experiment(folder: Path):
    left = folder / f"trueloop-lab-{2**22 + 1}-x"  # above the largest process id
    left.mkdir()
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        diagnosis.serve(theirs.fileno(), theirs.fileno())
        os._exit(0)
    theirs.close()
    page = Page(ours)
    page.send(do="open", code="LRN006")
    page.until("run")
    assert not left.exists(), "the folder of a worker that was killed"
    assert list(folder.glob("trueloop-lab-*"))
    page.send(do="diagnose")
    page.until("trying")
    ours.close()
    _, status = os.waitpid(pid, 0)
    assert status == 0
    assert not list(folder.glob("trueloop-lab-*"))
