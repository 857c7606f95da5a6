"""Record the run that the lab's simulator plays until PyTorch has started: `python tools/record_opening_run.py`.

The file holds what a worker has sent for the default settings, compressed: the message "started", then frames at
regular distances, which have the points of the curves of the frames between them as well. It is a part of the page's
first download, so its numbers have four digits, and its pictures a quarter of the shades.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final, cast

from trueloop.app.web.wire_format import FRAME, LENGTH, decode_frame, encode_frame
from trueloop.lab.serving import STATIC
from trueloop.lab.teaching.decision_planes import NOT_FINITE

FILE: Final = STATIC / "pages" / "simulator" / "opening_run.bin"
FRAMES: Final = 16
UPDATES_PER_FRAME: Final = 50
MAPS_INTERVAL: Final = 3  # every third frame has the maps of the neurons, as in a live run
DIGITS: Final = 4  # significant digits of a number
SHADE: Final = 4  # width of a shade of a picture, in units of its bytes


def record() -> Iterator[bytes]:
    """Run the simulator's worker, and yield its messages with their prefixes, until enough frames are recorded."""
    command = [sys.executable, "-P", "-m", "trueloop.lab.simulator"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:  # noqa: S603
        assert worker.stdin is not None
        assert worker.stdout is not None

        def send(**command: Any) -> None:
            assert worker.stdin is not None
            worker.stdin.write(json.dumps(command).encode() + b"\n")
            worker.stdin.flush()

        send(do="show_neurons", neurons=True)
        send(do="start", config={}, bugs=[], points=[])
        recorded, skipped = 0, dict[str, Any]()
        while recorded <= FRAMES:
            prefix = worker.stdout.read(LENGTH.size)
            length, kind = LENGTH.unpack(prefix)
            data = worker.stdout.read(length)
            if kind != FRAME:
                if json.loads(data)["kind"] == "started":
                    yield prefix + data
                continue
            header, planes = decode_frame(data)
            send(do="ack", frame=header["frame"])
            skipped = _append_points(skipped, header)
            if header["update"] == recorded * UPDATES_PER_FRAME:
                if recorded:  # the first picture is one of a trained network
                    frame = encode_frame(_round(header | skipped), _round_pictures(header["planes"], planes))
                    yield LENGTH.pack(len(frame), FRAME) + frame
                    skipped = {}
                recorded += 1
                send(do="show_neurons", neurons=recorded % MAPS_INTERVAL == 1)
                send(do="run_until", update=recorded * UPDATES_PER_FRAME)
        worker.stdin.close()


def _append_points(skipped: dict[str, Any], header: dict[str, Any]) -> dict[str, Any]:
    """Return the points of the curves of skipped frames, followed by those of a frame."""
    points = skipped.get("points", {name: [] for name in header["points"]})
    return {
        "points": {name: points[name] + values for name, values in header["points"].items()},
        "evaluations": skipped.get("evaluations", []) + header["evaluations"],
    }


def _round(value: Any) -> Any:
    """Return a JSON value with all its numbers rounded."""
    if isinstance(value, dict):
        return {name: _round(each) for name, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_round(each) for each in cast("list[Any]", value)]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _round_pictures(planes: list[dict[str, Any]], data: bytes) -> list[bytes]:
    """Return the bytes of each picture with fewer shades; the class of a pixel of the decision stays."""
    pictures: list[bytes] = []
    for plane in planes:
        size, steps = plane["width"] * plane["height"], plane.get("steps", NOT_FINITE + 1)
        picture, data = data[:size], data[size:]
        pictures.append(bytes(each if each == NOT_FINITE else each - each % steps % SHADE for each in picture))
    return pictures


def main() -> None:
    """Write the file."""
    FILE.write_bytes(gzip.compress(b"".join(record()), compresslevel=9, mtime=0))
    print(f"{FILE}: {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
