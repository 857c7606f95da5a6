"""What the lab's page does in a second: painted updates, gaps between them, first paint, how soon a bug is named.

A real server and a real headless Chromium on this machine; a painted update is an acknowledged frame, and a page
acknowledges after it has painted. Then twenty sessions at once, as in a class, each acknowledging as a page does.
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
from trueloop.failures.load import catalogue

CHROMIUM = "/usr/bin/chromium"
GOALS = {
    "painted updates/s": 25.0,
    "frame gap p95, ms": 70.0,
    "first paint, s": 1.5,
    "bug to finding, worst, s": 0.5,
}
RECORD = """
window.acks = [];
const send = WebSocket.prototype.send;
WebSocket.prototype.send = function (text) {
  if (text.includes('"ack"')) window.acks.push(performance.now());
  return send.call(this, text);
};
"""


@contextmanager
def served() -> Iterator[tuple[str, int]]:
    """Run a lab; its address and process."""
    command = [sys.executable, "-m", "trueloop", "lab", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://[\d.:]+/", process.stdout.readline())
        assert found
        try:
            yield found[0], process.pid
        finally:
            process.terminate()


@contextmanager
def session(lab: str) -> Iterator[ClientConnection]:
    """Open a live session as a page does."""
    address = lab.replace("http", "ws", 1) + "live/simulator"
    with connect(address, origin=lab.rstrip("/"), max_size=1 << 24) as socket:  # pyright: ignore[reportArgumentType]
        yield socket


def painted(page: Page, seconds: float) -> dict[str, float]:
    """Let the simulator train in the page, and count what it paints."""
    page.goto(page.url.split("#")[0] + "#/simulator?epochs=1000")
    page.get_by_role("button", name=re.compile("train|play", re.IGNORECASE)).first.click()
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


def in_the_browser(seconds: float) -> dict[str, float]:
    """Open the page right after the server is up, then train in it."""
    with served() as (lab, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.add_init_script(RECORD)
        page.goto(lab)
        page.wait_for_function("() => document.querySelector('#page > .page')?.children.length > 0")
        first = page.evaluate("() => performance.getEntriesByName('first-contentful-paint')[0].startTime") / 1000
        found = {"first paint, s": first, **painted(page, seconds)}
        browser.close()
    return found


def frames(socket: ClientConnection, until: float, code: str = "") -> tuple[int, list[dict[str, Any]]]:
    """Take frames and texts as a page does that paints 30 times a second, until a finding; count the frames."""
    count, messages, painted_at = 0, [], 0.0
    while (left := until - time.perf_counter()) > 0:
        try:
            message = socket.recv(timeout=left)
        except TimeoutError:
            break
        if isinstance(message, str):
            messages.append(json.loads(message))
            if code and (messages[-1]["kind"] == "refused" or messages[-1].get("finding", {}).get("code") == code):
                break
            continue
        header, _ = decode_frame(message)
        time.sleep(max(0.0, painted_at + 1 / 30 - time.perf_counter()))
        painted_at = time.perf_counter()
        socket.send(json.dumps({"do": "ack", "frame": header["frame"]}))
        count += 1
    return count, messages


def begin(socket: ClientConnection, config: Mapping[str, Any], *bugs: str) -> None:
    socket.send(json.dumps({"do": "start", "config": config, "bugs": bugs, "points": []}))
    socket.send(json.dumps({"do": "run"}))


def findings(patience: float) -> dict[str, float | str]:
    """Seconds from switching a bug on, in a session that trains, to the sanitizer's word for it."""
    found: dict[str, float | str] = {}
    with served() as (lab, _), session(lab) as socket:
        begin(socket, {})
        frames(socket, time.perf_counter() + 3)
        for code in [entry.code for entry in catalogue().values() if entry.failure.inject]:
            start = time.perf_counter()
            begin(socket, {}, code)
            _, messages = frames(socket, start + patience, code)
            codes = [each["finding"]["code"] for each in messages if each["kind"] == "finding"]
            refused = [each["what"] for each in messages if each["kind"] == "refused"]
            found[code] = time.perf_counter() - start if code in codes else (refused or ["not found"])[0]
    return found


def in_a_class(sessions: int, seconds: float) -> dict[str, float]:
    """Let many sessions train at once; what each paints, and how soon the server answers a question meanwhile."""
    with served() as (lab, pid):
        counts: list[int] = []

        def pupil(place: int) -> None:
            with session(lab) as socket:
                begin(socket, {"seed": place, "epochs": 1000})
                frames(socket, time.perf_counter() + 8)  # everybody has begun
                counts.append(frames(socket, time.perf_counter() + seconds)[0])

        pupils = [threading.Thread(target=pupil, args=(place,)) for place in range(sessions)]
        for each in pupils:
            each.start()
        time.sleep(9)
        waits, memory = [], held(pid)
        end = time.perf_counter() + seconds - 2
        while time.perf_counter() < end:
            start = time.perf_counter()
            body = json.dumps({}).encode()
            request = urllib.request.Request(f"{lab}api/arithmetic", body, {"content-type": "application/json"})
            urllib.request.urlopen(request).read()
            waits.append(1000 * (time.perf_counter() - start))
            time.sleep(0.05)
        for each in pupils:
            each.join()
    waits.sort()
    return {
        "sessions": sessions,
        "painted updates/s each, median": statistics.median(counts) / seconds,
        "painted updates/s each, least": min(counts) / seconds,
        "answer to a question p95, ms": waits[int(0.95 * len(waits))],
        "memory of all processes, MiB": memory,
    }


def held(pid: int) -> float:
    """Memory of a process and all below it, what they share counted once, in MiB."""
    total = 0
    for each in [pid, *below(pid)]:
        rollup = Path(f"/proc/{each}/smaps_rollup").read_text()
        total += int(re.search(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)[1])  # pyright: ignore[reportOptionalSubscript]
    return total / 1024


def below(pid: int) -> list[int]:
    children = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*children, *(inner for child in children for inner in below(child))]


def main() -> None:
    asked = options(__doc__)
    browser = in_the_browser(5 if asked.quick else 20)
    named = findings(10.0)
    times = [value for value in named.values() if isinstance(value, float)]
    browser |= {"bug to finding, median, s": statistics.median(times), "bug to finding, worst, s": max(times)}
    late = [
        code for code, value in named.items() if isinstance(value, str) or value > GOALS["bug to finding, worst, s"]
    ]
    many = in_a_class(4 if asked.quick else 20, 5 if asked.quick else 15)
    rows = [[name, f"{value:.3g}", f"{GOALS[name]:g}" if name in GOALS else ""] for name, value in browser.items()]
    table("One session", ["", "measured", "goal"], rows)
    table(
        "From a bug to its name",
        ["code", "s"],
        [[code, f"{v:.2f}" if isinstance(v, float) else v] for code, v in named.items()],
    )
    table("A class", ["", "measured"], [[name, f"{value:.3g}"] for name, value in many.items()])
    console.print(f"memory a session adds: {many['memory of all processes, MiB'] / many['sessions']:.0f} MiB")
    write(
        "lab",
        {
            "found": {"one session": browser, "findings": named, "later than the goal": late, "class": many},
            "goals": GOALS,
        },
        quick=asked.quick,
    )


if __name__ == "__main__":
    main()
