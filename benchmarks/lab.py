"""Measure the response times of the lab's page: painted updates per second, first paint, time until a bug is reported.

A real server and a real headless Chromium run on this machine. A painted update is an acknowledged frame: a page
acknowledges a frame after it has painted it. Then twenty sessions run concurrently, as in a class, and acknowledge
frames as a page does.
"""

from __future__ import annotations

import itertools
import json
import re
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measure import console, options, table, write
from playwright.sync_api import Page, sync_playwright
from websockets.sync.client import ClientConnection, connect

from trueloop.app.web.wire_format import decode_frame
from trueloop.lab.teaching.inject import WRONG_DEVICE, injectables

CHROMIUM = "/usr/bin/chromium"
GOALS = {
    "painted updates/s": 25.0,
    "frame gap p95, ms": 50.0,
    "first paint, s": 1.0,
    "first moving picture, server just started, s": 1.5,
    "first moving picture, server running, s": 1.5,
    "words on screen": 120,
    "bug to finding, worst, s": 0.5,
}
RECORD = """
window.acks = [];
const send = WebSocket.prototype.send;
WebSocket.prototype.send = function (text) {
  if (text.includes('"ack"')) window.acks.push(performance.now());
  return send.call(this, text);
};
const look = () => {
  const updates = parseInt(document.querySelector("dl.live dd[data-k=update]")?.textContent);
  if (updates >= 1 && document.querySelector(".board-decision")?.width === 64) window.trained_ms ??= performance.now();
  requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""
WORDS = (Path(__file__).parent / "words_on_screen.js").read_text()


@contextmanager
def run_lab() -> Iterator[tuple[str, int]]:
    """Run a lab, and yield its address and process id."""
    command = [sys.executable, "-m", "trueloop", "lab", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = re.search(r"http://[\d.:]+/", process.stdout.readline())
        assert address
        try:
            yield address[0], process.pid
        finally:
            process.terminate()


@contextmanager
def session(lab: str) -> Iterator[ClientConnection]:
    """Open a live session as a page does."""
    address = lab.replace("http", "ws", 1) + "live/simulator"
    with connect(address, origin=lab.rstrip("/"), max_size=1 << 24) as socket:  # pyright: ignore[reportArgumentType]
        yield socket


def measure_painting(page: Page, seconds: float) -> dict[str, float]:
    """Let the simulator train in the page, which it does when it opens, and measure its painted updates."""
    page.wait_for_function("() => window.acks.length > 20", timeout=60_000)
    page.evaluate("() => { window.acks.length = 0; }")
    page.wait_for_timeout(seconds * 1000)
    acks = page.evaluate("() => window.acks")
    gaps = sorted(later - earlier for earlier, later in itertools.pairwise(acks))
    return {
        "painted updates/s": 1000 * len(gaps) / sum(gaps),
        "frame gap median, ms": statistics.median(gaps),
        "frame gap p95, ms": gaps[int(0.95 * len(gaps))],
        "frame gap worst, ms": gaps[-1],
    }


def measure_page(seconds: float) -> dict[str, float]:
    """Open the page immediately after the server has started, then train in it."""
    with run_lab() as (lab, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        found: dict[str, float] = {}
        for state in ("server just started", "server running"):
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.add_init_script(RECORD)
            page.goto(lab)
            page.wait_for_function("() => window.trained_ms")
            paint = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"
            found["first paint, s"] = page.evaluate(paint) / 1000  # the later one counts: that of a running server
            found[f"first moving picture, {state}, s"] = page.evaluate("() => window.trained_ms") / 1000
            page.wait_for_function("() => document.querySelector('.state').textContent === 'training'", timeout=60_000)
            if state == "server running":
                found |= {"words on screen": len(page.evaluate(WORDS)), **measure_painting(page, seconds)}
            page.close()
        browser.close()
    return found


def frames(socket: ClientConnection, until: float, code: str = "") -> tuple[int, list[dict[str, Any]]]:
    """Receive and acknowledge frames as a page that paints 30 times per second, until a finding with this code arrives.

    Returns:
        The number of frames, and the received messages.
    """
    count, messages, painted_at = 0, [], 0.0
    while (remaining_s := until - time.perf_counter()) > 0:
        try:
            message = socket.recv(timeout=remaining_s)
        except TimeoutError:
            break
        if isinstance(message, str):
            messages.append(json.loads(message))
            if code and _names(messages[-1], code):
                break
            continue
        header, _ = decode_frame(message)
        time.sleep(max(0.0, painted_at + 1 / 30 - time.perf_counter()))
        painted_at = time.perf_counter()
        socket.send(json.dumps({"do": "ack", "frame": header["frame"]}))
        count += 1
    return count, messages


def _names(message: Mapping[str, Any], code: str) -> bool:
    """Return True if a message names the failure, as a finding or as the error that ended the run, or refuses it."""
    if message["kind"] == "ended":
        return code == WRONG_DEVICE.code and message["explained"] is not None
    return message["kind"] == "refused" or message.get("finding", {}).get("code") == code


def start_training(socket: ClientConnection, config: Mapping[str, Any], *bugs: str) -> None:
    socket.send(json.dumps({"do": "start", "config": config, "bugs": bugs, "points": [], "train": True}))


def findings(timeout_s: float) -> dict[str, float | str]:
    """Return, for each injectable failure, the seconds from its injection into a running session to its finding."""
    delays: dict[str, float | str] = {}
    with run_lab() as (lab, _), session(lab) as socket:
        start_training(socket, {})
        frames(socket, time.perf_counter() + 3)
        for code in injectables():
            start = time.perf_counter()
            start_training(socket, {}, code)
            _, messages = frames(socket, start + timeout_s, code)
            refused = [each["what"] for each in messages if each["kind"] == "refused"]
            is_found = messages and _names(messages[-1], code) and not refused
            delays[code] = time.perf_counter() - start if is_found else (refused or ["not found"])[0]
    return delays


def measure_class(sessions: int, seconds: float) -> dict[str, float]:
    """Train in many sessions concurrently; measure what each paints, and how fast the server answers requests."""
    with run_lab() as (lab, pid):
        counts: list[int] = []

        def run_session(seed: int) -> None:
            with session(lab) as socket:
                start_training(socket, {"seed": seed, "epochs": 1000})
                frames(socket, time.perf_counter() + 8)  # all sessions have started
                counts.append(frames(socket, time.perf_counter() + seconds)[0])

        threads = [threading.Thread(target=run_session, args=(seed,)) for seed in range(sessions)]
        for each in threads:
            each.start()
        time.sleep(9)
        waits, memory = [], memory_mib(pid)
        end = time.perf_counter() + seconds - 2
        while time.perf_counter() < end:
            start = time.perf_counter()
            body = json.dumps({}).encode()
            request = urllib.request.Request(f"{lab}api/arithmetic", body, {"content-type": "application/json"})
            urllib.request.urlopen(request).read()
            waits.append(1000 * (time.perf_counter() - start))
            time.sleep(0.05)
        for each in threads:
            each.join()
    waits.sort()
    return {
        "sessions": sessions,
        "painted updates/s each, median": statistics.median(counts) / seconds,
        "painted updates/s each, least": min(counts) / seconds,
        "answer to a question p95, ms": waits[int(0.95 * len(waits))],
        "memory of all processes, MiB": memory,
    }


def memory_mib(pid: int) -> float:
    """Return the memory of a process and its descendants in MiB; shared memory is counted once."""
    total = 0
    for process in [pid, *descendants(pid)]:
        rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
        total += int(re.search(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)[1])  # pyright: ignore[reportOptionalSubscript]
    return total / 1024


def descendants(pid: int) -> list[int]:
    children = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*children, *(inner for child in children for inner in descendants(child))]


def main() -> None:
    arguments = options(__doc__)
    browser = measure_page(5 if arguments.quick else 20)
    delays = findings(10.0)
    times = [value for value in delays.values() if isinstance(value, float)]
    browser |= {"bug to finding, median, s": statistics.median(times), "bug to finding, worst, s": max(times)}
    late = [
        code for code, value in delays.items() if isinstance(value, str) or value > GOALS["bug to finding, worst, s"]
    ]
    class_results = measure_class(4 if arguments.quick else 20, 5 if arguments.quick else 15)
    rows = [[name, f"{value:.3g}", f"{GOALS[name]:g}" if name in GOALS else ""] for name, value in browser.items()]
    table("One session", ["", "measured", "goal"], rows)
    table(
        "From an injected bug to its finding",
        ["code", "s"],
        [[code, f"{v:.2f}" if isinstance(v, float) else v] for code, v in delays.items()],
    )
    table("A class", ["", "measured"], [[name, f"{value:.3g}"] for name, value in class_results.items()])
    console.print(
        f"memory per session: {class_results['memory of all processes, MiB'] / class_results['sessions']:.0f} MiB"
    )
    write(
        "lab",
        {
            "found": {"one session": browser, "findings": delays, "later than the goal": late, "class": class_results},
            "goals": GOALS,
        },
        quick=arguments.quick,
    )


if __name__ == "__main__":
    main()
