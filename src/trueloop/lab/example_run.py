"""Run an example script under `trueloop run --lab`, for a user who has no run to watch yet."""

import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final, NamedTuple

from trueloop.failures.load import catalogue
from trueloop.lab.teaching.signatures import write_pair

FAILURE: Final = "GRD001"  # the failure in the script, which the sanitizer finds after two updates
EPOCHS: Final = 120  # about half a minute under the sanitizer


class _Example(NamedTuple):
    process: subprocess.Popen[bytes]
    folder: tempfile.TemporaryDirectory[str]


_lock = threading.Lock()
_examples: list[_Example] = []


def example_script() -> str:
    """Return the script: plain PyTorch, with a failure."""
    inject = catalogue()[FAILURE].failure.inject
    assert inject is not None
    return write_pair(inject, epochs=EPOCHS).broken


def start_example() -> None:
    """Start the example unless it is running."""
    with _lock:
        if _examples and _examples[-1].process.poll() is None:
            return
        folder = tempfile.TemporaryDirectory(prefix="trueloop-example-")
        path = Path(folder.name) / "example.py"
        path.write_text(example_script(), encoding="utf-8")
        # -P keeps the working directory, which may contain a random.py, off the import path.
        process = subprocess.Popen(  # noqa: S603 - our own command
            (sys.executable, "-P", "-m", "trueloop", "run", "--lab", path.name),
            cwd=path.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _examples.append(_Example(process, folder))


def stop_examples() -> None:
    """End the example and delete its files."""
    with _lock:
        for process, folder in _examples:
            process.kill()
            process.wait()
            folder.cleanup()
        _examples.clear()
