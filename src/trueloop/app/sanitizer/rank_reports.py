"""Merge the reports of several processes under torchrun into one report.

The processes exchange files in a temporary folder. They do not use collectives, because ranks end at different times,
and some never end. Each machine has its own report, which its first rank prints.
"""

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

REPORT_TIMEOUT_S: Final = 60.0  # maximum wait of the first rank for the reports of others, if it did not fail
FAILURE_TIMEOUT_S: Final = 3.0  # maximum wait of a failed rank: short, so that torchrun soon notices the failure


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReports:
    """The exchange of reports between the processes of one run on this machine, for one of these processes."""

    rank: int
    local_rank: int
    """Rank of this process among the processes on this machine, from 0."""
    local_size: int
    """Number of processes on this machine."""
    folder: Path

    def write_marker(self) -> None:
        """Write the pid of this process to the folder, and remove this process's files of an earlier run."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        if self.folder.stat().st_uid != getattr(os, "getuid", lambda: 0)():
            raise PermissionError(f"{self.folder} belongs to another user.")
        for name in (f"{self.local_rank}.json", *(("printed", "claimed") if self.local_rank == 0 else ())):
            (self.folder / name).unlink(missing_ok=True)
        self._write_file(f"{self.local_rank}.pid", str(os.getpid()))

    def print_or_send(self, own: Report, *, failed: bool, print_report: Callable[[Report], None]) -> None:
        """On the first rank, print the merged report of all ranks; on other ranks, send the report to the first rank.

        Args:
            own: the report of this process.
            failed: True if this process ended with an error. A failed rank prints its own report if the first rank
                cannot, because torchrun kills the ranks that are still training.
            print_report: function that prints a report; it is called at most once per machine.
        """
        if self.local_rank == 0:
            others = self._collect_others(FAILURE_TIMEOUT_S if failed else REPORT_TIMEOUT_S)
            ranks_here = range(self.rank, self.rank + self.local_size)
            print_report(
                merge_reports({self.rank: own, **others}, missing=sorted({*ranks_here} - {self.rank, *others}))
            )
            self._write_file("printed", "")
            # after a failure, another rank may still read the folder; the next run with this key removes the files
            if not failed:
                shutil.rmtree(self.folder, ignore_errors=True)
            return
        self._write_file(f"{self.local_rank}.json", json.dumps([self.rank, to_json(own)]))
        if failed and not self._wait_until(self._is_printed, FAILURE_TIMEOUT_S) and self._try_claim():
            print_report(own)

    def _is_printed(self) -> bool:
        return not self.folder.exists() or (self.folder / "printed").exists()

    def _collect_others(self, timeout_s: float) -> dict[int, Report]:
        missing = set(range(1, self.local_size))
        reports: dict[int, Report] = {}

        def collect() -> bool:
            for local_rank in sorted(missing):
                is_done = not self._is_alive(local_rank)  # checked first: a process writes its file before it ends
                with suppress(OSError):
                    rank, report = json.loads((self.folder / f"{local_rank}.json").read_text())
                    reports[rank] = from_json(report)
                    is_done = True
                if is_done:
                    missing.remove(local_rank)
            return not missing

        self._wait_until(collect, timeout_s)
        return reports

    def _is_alive(self, local_rank: int) -> bool:
        """Return False only if it is certain that a process has ended."""
        with suppress(OSError, ValueError):
            try:
                os.kill(int((self.folder / f"{local_rank}.pid").read_text()), 0)
            except ProcessLookupError:
                return False
        return True

    def _try_claim(self) -> bool:
        """Return True for the first rank that calls this: only that one prints its own report."""
        try:
            with (self.folder / "claimed").open("x"):
                return True
        except OSError:
            return False

    def _write_file(self, name: str, text: str) -> None:
        temporary = self.folder / f"{name}.{os.getpid()}"
        temporary.write_text(text)
        temporary.replace(self.folder / name)

    @staticmethod
    def _wait_until(done: Callable[[], bool], timeout_s: float) -> bool:
        deadline = monotonic() + timeout_s
        while not done():
            if monotonic() > deadline:
                return False
            sleep(0.05)
        return True


def rank_reports(environment: Mapping[str, str]) -> RankReports | None:
    """Return the exchange of reports for this process, from torchrun's variables.

    The result is None without torchrun, and if this is the only process on the machine.
    """
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    numbers = [environment.get(name, "") for name in names]
    if not all(number.isdigit() for number in numbers) or int(numbers[2]) < 2:
        return None
    rank, local_rank, local_size = map(int, numbers)
    run_names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    owner = getattr(os, "getuid", lambda: 0)()
    key = re.sub(r"[^\w-]+", "_", "-".join(environment.get(name, "") for name in run_names))
    folder = Path(tempfile.gettempdir()) / f"trueloop-{owner}-{key}"
    return RankReports(rank=rank, local_rank=local_rank, local_size=local_size, folder=folder)
