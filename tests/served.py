"""Starts the lab's server as a user does, in a separate process."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
from pathlib import Path
from types import TracebackType


class Served:
    """A context manager that runs a lab and gives its address.

    Args:
        home: folder of the lab's caches, leaderboard and session files.
        arguments: additional arguments of its command line.
        port: the lab's port; 0 chooses a free one.
    """

    def __init__(self, home: Path, *arguments: str, port: int = 0) -> None:
        folders = {
            "XDG_CACHE_HOME": str(home / "cache"),
            "XDG_DATA_HOME": str(home / "data"),
            "XDG_RUNTIME_DIR": str(home / "session"),
        }
        session = home / "session"  # without it, the lab shows the watched programs of this machine
        session.mkdir(mode=0o700, exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trueloop", "lab", *arguments, "--port", str(port), "--no-browser"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **folders, "COLUMNS": "200"},
        )

    def __enter__(self) -> str:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], 60)
        line = self.process.stdout.readline() if ready else ""
        address = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert address, f"the lab printed {line!r}"
        return address[0]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
