"""Record the run that the lab's simulator plays until PyTorch has started: `python tools/record_opening_run.py`.

The file holds what a worker has sent for the default settings, compressed: the message "started", then frames at regular
distances. Nothing in it is edited.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

from trueloop.app.web.wire_format import FRAME, LENGTH, decode_frame
from trueloop.lab.serving import STATIC

FILE: Final = STATIC / "pages" / "simulator" / "opening_run.bin"
FRAMES: Final = 16
UPDATES_PER_FRAME: Final = 50
MAPS_INTERVAL: Final = 3  # every third frame has the maps of the neurons, as in a live run


def record() -> Iterator[bytes]:
    """Run the simulator's worker, and yield its messages with their prefixes, until enough frames are recorded."""
    command = [sys.executable, "-P", "-m", "trueloop.lab.simulator"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None

        def send(**command: Any) -> None:
            assert worker.stdin is not None
            worker.stdin.write(json.dumps(command).encode() + b"\n")
            worker.stdin.flush()

        send(do="show_neurons", neurons=True)
        send(do="start", config={}, bugs=[], points=[])
        recorded = 0
        while recorded <= FRAMES:
            prefix = worker.stdout.read(LENGTH.size)
            length, kind = LENGTH.unpack(prefix)
            data = worker.stdout.read(length)
            if kind != FRAME:
                if json.loads(data)["kind"] == "started":
                    yield prefix + data
                continue
            header = decode_frame(data)[0]
            send(do="ack", frame=header["frame"])
            if header["update"] == recorded * UPDATES_PER_FRAME:
                if recorded:  # the first picture is one of a trained network
                    yield prefix + data
                recorded += 1
                send(do="show_neurons", neurons=recorded % MAPS_INTERVAL == 1)
                send(do="run_until", update=recorded * UPDATES_PER_FRAME)
        worker.stdin.close()


def main() -> None:
    """Write the file."""
    FILE.write_bytes(gzip.compress(b"".join(record()), compresslevel=9, mtime=0))
    print(f"{FILE}: {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
