"""The lab's server as a user would start it, in a process of its own."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
from pathlib import Path
from types import TracebackType


class Served:
    """A lab that runs for as long as the block lasts; gives its address.

    Args:
        home: where it keeps what it keeps: caches, the scoreboard.
        words: of its command line, besides.
        port: 0 = one that is free.
    """

    def __init__(self, home: Path, *words: str, port: int = 0) -> None:
        kept = {
            "XDG_CACHE_HOME": str(home / "cache"),
            "XDG_DATA_HOME": str(home / "data"),
            "XDG_RUNTIME_DIR": str(home / "session"),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trueloop", "lab", *words, "--port", str(port), "--no-browser"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **kept, "COLUMNS": "200"},
        )

    def __enter__(self) -> str:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], 60)
        line = self.process.stdout.readline() if ready else ""
        found = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert found, f"the lab said {line!r}"
        return found[0]

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
