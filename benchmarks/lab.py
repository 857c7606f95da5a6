"""Measure the response times of the lab's page: painted updates per second, first paint, time until a bug is reported.

A real server and a real headless Chromium run on this machine. A painted update is an acknowledged frame: a page
acknowledges a frame after it has painted it. Then twenty sessions run concurrently, as in a class, and acknowledge
frames as a page does. The time to a finding is from the click on a switch of the page until its card is painted.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from measure import console, options, table, write
from playwright.sync_api import Page, sync_playwright
from playwright.sync_api import TimeoutError as BrowserTimeout
from websockets.sync.client import ClientConnection, connect

from trueloop.app.web.wire_format import decode_frame
from trueloop.lab.teaching.inject import WRONG_DEVICE, injectables

CHROMIUM = "/usr/bin/chromium"
NAMED_WITHIN_S = 0.5
GOALS = {
    "painted updates/s": 25.0,
    "frame gap p95, ms": 50.0,
    "first paint, s": 1.0,
    "first moving picture, server just started, s": 1.5,
    "first moving picture, server running, s": 1.5,
    "words on screen": 120,
    "bugs named within 0.5 s": 40,
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
  for (const { dataset } of document.querySelectorAll(".finding"))
    window.named_ms[dataset.code ?? "raised"] ??= performance.now();
  requestAnimationFrame(look);
};
requestAnimationFrame(look);
window.named_ms = {};
addEventListener("click", ({ target }) => {
  if (!target.matches("[role=switch]")) return;
  window.named_ms = {};
  window.clicked_ms = performance.now();
}, true);
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


def measure_page(seconds: float) -> tuple[dict[str, float], dict[str, float | str]]:
    """Open the page immediately after the server has started, train in it, and switch on one failure after another."""
    with run_lab() as (lab, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        found: dict[str, float] = {}
        delays: dict[str, float | str] = {}
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
                delays = findings(page, timeout_s=10.0)
            page.close()
        browser.close()
    return found, delays


def count_painted(socket: ClientConnection, seconds: float) -> int:
    """Receive and acknowledge frames as a page that paints 30 times per second; return how many there were."""
    count, painted_at, until = 0, 0.0, time.perf_counter() + seconds
    while (remaining_s := until - time.perf_counter()) > 0:
        try:
            message = socket.recv(timeout=remaining_s)
        except TimeoutError:
            break
        if isinstance(message, str):
            continue
        header, _ = decode_frame(message)
        time.sleep(max(0.0, painted_at + 1 / 30 - time.perf_counter()))
        painted_at = time.perf_counter()
        socket.send(json.dumps({"do": "ack", "frame": header["frame"]}))
        count += 1
    return count


def findings(page: Page, timeout_s: float) -> dict[str, float | str]:
    """Return, for each failure, the seconds from the click on its switch until the card that names it is painted."""
    delays: dict[str, float | str] = {}
    for code in injectables():
        page.get_by_role("searchbox").fill(code)
        page.wait_for_timeout(700)  # the run without failures trains again
        page.locator(f"label:has(#bug-{code})").click()
        name = "raised" if code == WRONG_DEVICE.code else code
        with contextlib.suppress(BrowserTimeout):
            page.wait_for_function("(name) => window.named_ms[name]", arg=name, timeout=timeout_s * 1000)
        delay_ms = page.evaluate("(name) => window.named_ms[name] - window.clicked_ms", name)
        delays[code] = delay_ms / 1000 if delay_ms is not None and delay_ms > 0 else f"not within {timeout_s:g} s"
        page.get_by_role("button", name="Fix all").click()
    return delays


def measure_class(sessions: int, seconds: float) -> dict[str, float]:
    """Train in many sessions concurrently; measure what each paints, and how fast the server answers requests."""
    with run_lab() as (lab, pid):
        counts: list[int] = []
        all_train = threading.Barrier(sessions + 1, timeout=120)

        def run_session(seed: int) -> None:
            with session(lab) as socket:
                config = {"seed": seed, "epochs": 1000}
                socket.send(json.dumps({"do": "start", "config": config, "bugs": [], "points": [], "train": True}))
                while not count_painted(socket, 1.0):
                    continue
                all_train.wait()
                counts.append(count_painted(socket, seconds))

        threads = [threading.Thread(target=run_session, args=(seed,)) for seed in range(sessions)]
        for each in threads:
            each.start()
        all_train.wait()
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
    browser, delays = measure_page(5 if arguments.quick else 20)
    times = [value for value in delays.values() if isinstance(value, float)]
    late = [code for code, value in delays.items() if isinstance(value, str) or value > NAMED_WITHIN_S]
    browser |= {
        "bug to finding, median, s": statistics.median(times),
        "bug to finding, worst, s": max(times),
        f"bugs named within {NAMED_WITHIN_S} s": len(delays) - len(late),
    }
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
