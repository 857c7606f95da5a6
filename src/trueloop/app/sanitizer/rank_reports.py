"""Several processes under torchrun that end in one report.

They exchange files in a folder of the machine's temporary ones, never a collective: ranks end at different times, and
some do not end at all. Each machine has its own report, told by its first rank.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from trueloop.core.findings import Report
from trueloop.reporting.json_report import from_json, to_json
from trueloop.reporting.merge import merge_reports

PATIENCE_S: Final = 60.0  # that the first rank waits for the last one, where all is well
HASTE_S: Final = 3.0  # that anybody waits where something failed: torchrun shall notice soon


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReports:
    """The processes of one run on this machine, seen from one of them."""

    rank: int
    local: int
    """Rank on this machine."""
    size: int
    """Processes on this machine."""
    folder: Path

    def write_marker(self) -> None:
        """Say that this process lives, and remove what one with its number has left behind."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        if self.folder.stat().st_uid != getattr(os, "getuid", lambda: 0)():
            raise PermissionError(f"{self.folder} belongs to somebody else.")
        for name in (f"{self.local}.json", *(("told", "claimed") if self.local == 0 else ())):
            (self.folder / name).unlink(missing_ok=True)
        self._put(f"{self.local}.pid", str(os.getpid()))

    def merged_report(self, own: Report, *, failed: bool, tell: Callable[[Report], None]) -> None:
        """Bring this process's report to where it is told once.

        Args:
            own: what this process found.
            failed: it ended with an error. Another rank of it tells its report itself where the first one cannot:
                torchrun kills whoever still trains.
            tell: prints; called at most once on a machine, by the first rank, or by the first one that failed.
        """
        if self.local == 0:
            others = self._others(HASTE_S if failed else PATIENCE_S)
            ranks_here = range(self.rank, self.rank + self.size)
            tell(merge_reports({self.rank: own, **others}, missing=sorted({*ranks_here} - {self.rank, *others})))
            self._put("told", "")
            if not failed:  # otherwise another one may still be looking; the next run with this key clears up
                shutil.rmtree(self.folder, ignore_errors=True)
            return
        self._put(f"{self.local}.json", json.dumps([self.rank, to_json(own)]))
        if failed and not self._wait(self._told, HASTE_S) and self._claim():
            tell(own)

    def _told(self) -> bool:
        return not self.folder.exists() or (self.folder / "told").exists()

    def _others(self, patience_s: float) -> dict[int, Report]:
        missing = set(range(1, self.size))
        found: dict[int, Report] = {}

        def complete() -> bool:
            for local in sorted(missing):
                dead = not self._lives(local)  # asked before the file is looked for: it may be the last thing written
                with suppress(OSError):
                    rank, packed = json.loads((self.folder / f"{local}.json").read_text())
                    found[rank] = from_json(packed)
                    dead = True
                if dead:
                    missing.remove(local)
            return not missing

        self._wait(complete, patience_s)
        return found

    def _lives(self, local: int) -> bool:
        try:
            os.kill(int((self.folder / f"{local}.pid").read_text()), 0)
        except ProcessLookupError:
            return False
        except (OSError, ValueError):
            return True
        return True

    def _claim(self) -> bool:
        try:
            with (self.folder / "claimed").open("x"):
                return True
        except OSError:
            return False

    def _put(self, name: str, text: str) -> None:
        part = self.folder / f"{name}.{os.getpid()}"
        part.write_text(text)
        part.replace(self.folder / name)

    @staticmethod
    def _wait(done: Callable[[], bool], patience_s: float) -> bool:
        deadline = monotonic() + patience_s
        while not done():
            if monotonic() > deadline:
                return False
            sleep(0.05)
        return True


def rank_reports(environment: Mapping[str, str]) -> RankReports | None:
    """Read from torchrun's variables which process this is; None = the only one on its machine, or not under it."""
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    numbers = [environment.get(name, "") for name in names]
    if not all(number.isdigit() for number in numbers) or int(numbers[2]) < 2:
        return None
    rank, local, size = map(int, numbers)
    run = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    owner = getattr(os, "getuid", lambda: 0)()
    key = re.sub(r"[^\w-]+", "_", "-".join(environment.get(name, "") for name in run))
    return RankReports(
        rank=rank, local=local, size=size, folder=Path(tempfile.gettempdir()) / f"trueloop-{owner}-{key}"
    )
