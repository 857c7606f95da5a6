"""The simulator's worker in its own process: JSON lines go in, JSON messages and frames come out."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trueloop.app.web.wire_format import LENGTH, TEXT, decode_frame
from trueloop.lab.serving import STATIC

Message = dict[str, Any]
QUICK = {"samples": 40, "batch": 8, "epochs": 3, "hidden": [4]}


class Page:
    """A page that talks to a worker and paints every frame immediately."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.paints = True
        self.frames: list[tuple[Message, bytes]] = []

    def send(self, *messages: Message | str) -> None:
        assert self.process.stdin is not None
        for message in messages:
            line = message if isinstance(message, str) else json.dumps(message)
            self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def receive(self) -> Message:
        """Return the next text, or the header of the next frame."""
        assert self.process.stdout is not None
        head = self.process.stdout.read(LENGTH.size)
        assert head, "the worker has ended"
        length, kind = LENGTH.unpack(head)
        data = self.process.stdout.read(length)
        if kind == TEXT:
            return json.loads(data, parse_constant=pytest.fail)
        header, planes = decode_frame(data)
        assert len(planes) == sum(plane["width"] * plane["height"] for plane in header["planes"])
        self.frames.append((header, planes))
        if self.paints:
            self.send({"do": "ack", "frame": header["frame"]})
        return header

    def until(self, is_wanted: Callable[[Message], bool]) -> tuple[Message, list[Message]]:
        """Return the first wanted message, and all messages before it."""
        before: list[Message] = []
        while not is_wanted(message := self.receive()):
            before.append(message)
        return message, before

    def kind(self, kind: str) -> Message:
        return self.until(lambda message: message.get("kind") == kind)[0]

    def state(self, state: str) -> Message:
        return self.until(lambda message: message.get("state") == state and "frame" in message)[0]

    def begin(self, *bugs: str, **config: Any) -> Message:
        self.send({"do": "start", "config": QUICK | config, "bugs": bugs})
        return self.until(lambda message: message.get("kind") in {"started", "refused"})[0]


@pytest.fixture(scope="module")
def worker() -> Iterator[Page]:
    command = [sys.executable, "-P", "-m", "trueloop.lab.simulator"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        page = Page(process)
        assert page.receive() == {"kind": "ready"}
        yield page
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 0


@pytest.fixture
def page(worker: Page) -> Page:
    worker.paints = True
    worker.frames.clear()
    worker.send({"do": "show_neurons", "neurons": False})
    return worker


def test_a_run_from_start_to_end(page: Page):
    started = page.begin()
    assert "".join(text for _, text in started["script"][0]) == started["text"].splitlines()[0]
    assert (len(started["points"]["train"]), len(started["points"]["held_out"])) == (32, 8)
    assert started["layers"][0] == {
        "name": "layers.0", "weight": "layers.0.weight", "bias": "layers.0.bias", "inputs": 2, "neurons": 4,
    }  # fmt: skip
    assert max(abs(number) for *point, _ in started["points"]["train"] for number in point) < started["span"][1]
    paused = page.state("paused")
    assert (paused["update"], paused["run"]) == (0, started["run"])
    page.send({"do": "run"})
    ended = page.kind("ended")
    assert (ended["why"], ended["updates"], ended["run"]) == ("finished", 12, started["run"])
    assert started["updates"] == 12
    frames = [header for header, _ in page.frames if header["run"] == started["run"]]
    assert [update for header in frames for update in header["points"]["update"]] == list(range(12))
    assert len([each for header in frames for each in header["evaluations"]]) == 3
    assert frames[-1]["state"] == "ended"
    assert frames[-1]["graphs"] <= 2
    assert len(frames[-1]["weights"]["layers.0.weight"]) == 4
    header, planes = page.frames[-1]
    boundary = header["planes"][0]
    assert (boundary["name"], boundary["width"], boundary["steps"]) == ("boundary", 64, 127)
    assert len(set(planes)) > 10


def test_the_recorded_run_is_the_run_of_the_default_settings(page: Page):
    data = gzip.decompress((STATIC / "pages" / "simulator" / "opening_run.bin").read_bytes())
    messages: list[bytes] = []
    while data:
        length, _ = LENGTH.unpack_from(data)
        messages.append(data[LENGTH.size : LENGTH.size + length])
        data = data[LENGTH.size + length :]
    recorded = json.loads(messages[0])
    page.send({"do": "start", "train": True})
    started = page.kind("started")
    assert {name: recorded[name] for name in ("config", "text", "layers")} == {
        name: started[name] for name in ("config", "text", "layers")
    }
    page.until(lambda message: message.get("update", 0) >= 20)
    losses = [loss for header, _ in page.frames if header["run"] == started["run"] for loss in header["points"]["loss"]]
    frames = [decode_frame(message)[0] for message in messages[1:]]
    recorded_losses = [loss for header in frames for loss in header["points"]["loss"]]
    assert recorded_losses[:20] == pytest.approx(losses[:20], rel=1e-3)
    assert [update for header in frames for update in header["points"]["update"]] == list(range(frames[-1]["update"]))
    assert recorded_losses[-1] < 0.5 < recorded_losses[0]


def test_a_run_trains_from_its_start_if_requested(page: Page):
    page.send({"do": "start", "config": QUICK, "train": True, "request": 7})
    assert page.kind("started")["request"] == 7
    assert page.kind("ended")["updates"] == 12


def test_points_of_a_random_split_cannot_change(page: Page):
    started = page.begin("DAT001", epochs=40)
    points = {kind: {tuple(point) for point in started["points"][kind]} for kind in ("train", "held_out")}
    assert points["train"] & points["held_out"]
    page.send({"do": "add_point", "x": 0.5, "y": 0.5, "label": 1})
    assert "part of another dataset" in page.kind("refused")["what"]


def test_steps_run_until_and_neuron_maps(page: Page):
    page.begin(epochs=50)
    page.state("paused")
    page.send({"do": "step"})
    assert page.until(lambda message: message.get("update") == 1)[0]["state"] == "paused"
    page.send({"do": "step", "updates": 3})
    assert page.until(lambda message: message.get("update", 0) >= 4)[0]["update"] == 4
    page.send({"do": "run_until", "update": 30})
    page.until(lambda message: message.get("state") == "paused" and message["update"] == 30)
    page.send({"do": "show_neurons", "neurons": True})
    header = page.state("paused")
    assert [plane["name"] for plane in header["planes"]] == ["boundary", "0:0", "0:1", "0:2", "0:3"]
    assert all(plane["scale"] > 0 for plane in header["planes"][1:])


@pytest.mark.parametrize("code", ["GRD001", "GRD003", "EVL001", "DAT001", "SCH006"])
def test_an_injected_failure_is_found_and_its_settings_are_changed(page: Page, code: str):
    started = page.begin(code, epochs=40)
    assert started["broken"]
    assert set(started["changed"]) == {
        "GRD003": {"accumulation"},
        "EVL001": {"dropout"},
        "SCH006": {"schedule", "epochs"},
    }.get(code, set())
    page.send({"do": "run"})
    found, _ = page.until(lambda message: message.get("kind") == "finding")
    assert (found["finding"]["code"], found["run"]) == (code, started["run"])
    assert found["finding"]["fix"]
    fault = next(line for line in found["excerpt"] if line["fault"])
    assert fault["number"] == found["line"]
    assert fault["text"].strip() == started["text"].splitlines()[found["line"] - 1].strip()


def test_weights_and_points_can_be_edited(page: Page):
    page.begin(epochs=50)
    page.state("paused")
    page.send({"do": "edit", "parameter": "head.bias", "index": [1], "value": 2.5})
    edited = page.kind("script")
    assert edited["text"].splitlines()[-1] == "# update 0: head.bias[1] = 2.5"
    assert page.state("paused")["weights"]["head.bias"][1] == 2.5
    page.send({"do": "add_point", "x": 0.5, "y": 0.5, "label": 1}, {"do": "remove_point", "x": 0, "y": 0})
    page.send({"do": "run"})
    page.kind("script")
    assert "removed" in page.kind("script")["text"]
    page.send({"do": "start", "config": QUICK, "points": [[0.25, -0.5, 1], [1, 1, 0]]})
    started = page.kind("started")
    assert [0.25, -0.5, 1] in started["points"]["train"]
    assert len(started["points"]["train"]) == 34


def test_points_added_after_the_end_are_not_in_the_script(page: Page):
    page.begin(epochs=1)
    page.send({"do": "run"})
    page.kind("ended")
    page.send({"do": "add_point", "x": 0.5, "y": 0.5, "label": 1}, {"do": "remove_point", "x": 0.0, "y": 0.0})
    page.send({"do": "edit", "parameter": "head.bias", "index": [0], "value": 1.5})
    script = page.kind("script")["text"]
    assert "head.bias[0] = 1.5" in script
    assert "a point" not in script


def test_a_new_run_replaces_the_running_one(page: Page):
    first = page.begin(epochs=1000)["run"]
    page.send({"do": "run"})
    page.state("running")
    page.send({"do": "start", "config": QUICK}, {"do": "run"})
    ended = page.kind("ended")
    assert (ended["run"], ended["why"]) == (first, "another run")
    assert page.kind("started")["run"] == first + 1
    assert page.kind("ended")["why"] == "finished"


def test_a_page_that_paints_nothing_gets_at_most_two_frames_until_the_end(page: Page):
    page.begin(epochs=40)
    page.paints = False
    page.send({"do": "run"})
    ended, before = page.until(lambda message: message.get("kind") == "ended")
    unpainted = [message for message in before if "frame" in message and message["state"] == "running"]
    assert len(unpainted) <= 2
    headers = [header for header, _ in page.frames if header["run"] == ended["run"]]
    assert [update for header in headers for update in header["points"]["update"]] == list(range(160))
    page.send({"do": "ack", "frame": 10**6})


def test_non_finite_losses_are_sent_as_words(page: Page):
    page.begin(learning_rate=1000.0, optimizer="momentum", activation="linear", hidden=[8, 8, 8], epochs=40)
    page.send({"do": "run"})
    page.kind("ended")
    losses = [loss for header, _ in page.frames for loss in header["points"]["loss"]]
    assert {"nan"} <= {loss for loss in losses if isinstance(loss, str)} <= {"nan", "inf", "-inf"}


HOSTILE: list[Message | str] = [
    "", "nonsense", "[1]", "{", '{"do": NaN}', {}, {"do": "exec"}, {"do": ["run"]},
    {"do": "start", "code": "import os"},
    {"do": "start", "config": {"hidden": [10**9]}}, {"do": "start", "config": {"__class__": 1}},
    {"do": "start", "bugs": ["XXX999"]}, {"do": "start", "bugs": ["CKP003"]},
    '{"do": "start", "points": [[1e400, 0, 0]]}',
    {"do": "start", "points": [[0, 0, 9]]}, {"do": "step", "updates": -1}, {"do": "edit", "parameter": "x"},
    {"do": "edit", "parameter": "__class__", "index": [0], "value": 1.0},
    {"do": "edit", "parameter": "head.bias", "index": [7], "value": 1.0},
    {"do": "edit", "parameter": "head.bias", "index": [-1], "value": 1.0},
    {"do": "add_point", "x": 0, "y": 0, "label": 5}, {"do": "scenario", "name": "../../etc/passwd"},
    {"do": "ack", "frame": -1},
]  # fmt: skip


def test_hostile_lines_are_refused_and_the_run_continues(page: Page):
    run = page.begin()["run"]
    page.state("paused")
    for line in HOSTILE:
        page.send(line)
        refused = page.kind("refused")
        assert refused["what"], line
        assert refused["fix"], line
    page.send({"do": "run"})
    assert page.kind("ended")["run"] == run


def test_an_experiment_runs_and_its_claim_is_checked(page: Page):
    page.send({"do": "scenario", "name": "no_grad"})
    done, before = page.until(lambda message: message.get("state") == "done")
    assert {message["state"] for message in before if message.get("kind") == "scenario"} == {"running"}
    assert done["holds"] is True
    assert "KiB" in done["measured"]
    assert [run["label"] for run in done["runs"]] == ["no_grad", "without"]
    assert len(done["runs"][0]["loss"]) == 200
    page.send({"do": "run"})
    assert "no run" in page.kind("refused")["what"]


def test_the_worker_ends_when_the_page_disconnects_during_a_run():
    from trueloop.lab import simulator

    read_end, write_end = os.pipe()
    replies, replies_end = os.pipe()
    os.write(write_end, json.dumps({"do": "start", "config": QUICK}).encode() + b'\n{"do": "run"}\n')
    os.close(write_end)
    simulator.serve(read_end, replies_end)
    assert b'"ready"' in os.read(replies, 1 << 16)
    for fd in (read_end, replies, replies_end):
        os.close(fd)


def test_trueloop_run_reports_the_same_finding_for_the_script(page: Page, tmp_path: Path):
    started = page.begin("GRD002", epochs=4)
    page.send({"do": "run"})
    live, _ = page.until(lambda message: message.get("kind") == "finding")
    copied = tmp_path / "copied.py"
    copied.write_text(started["text"])
    command = [sys.executable, "-m", "trueloop", "run", "--json", "report.json", "copied.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100)
    assert "epoch 4: held-out loss" in done.stdout
    (found,) = json.loads((tmp_path / "report.json").read_text())["findings"]
    live_finding = live["finding"]
    for name in ("code", "line", "message", "first_update", "fix"):
        assert found[name] == live_finding[name]


def test_a_script_that_torch_refuses_ends_with_its_error_message(page: Page):
    before = page.begin()["run"]  # messages about the run of an earlier test come first
    page.send({"do": "start", "config": QUICK, "bugs": ["MDL001", "OPT001"]})
    ended, _ = page.until(lambda message: message.get("kind") == "ended" and message["run"] != before)
    assert ended["why"] == "ValueError: optimizer got an empty parameter list"
    assert ended["updates"] == 0
    assert page.begin()["kind"] == "started"
