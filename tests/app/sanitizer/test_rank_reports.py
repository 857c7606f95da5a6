"""Several processes, one report: who tells it, what is merged, and what happens where one is missing."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from trueloop.app.sanitizer import rank_reports as module
from trueloop.app.sanitizer.rank_reports import RankReports, rank_reports
from trueloop.core.findings import (
    FailureVerdict,
    Finding,
    Report,
    Series,
    Severity,
    SourceLocation,
    SuggestedChange,
    UpdateTiming,
    Verdict,
)
from trueloop.reporting.merge import merge_reports

SITE = SourceLocation("/project/train.py", 7, "train")
FINDING = Finding(
    code="GRD001",
    slug="never-cleared",
    title="Gradients are never cleared",
    severity=Severity.ERROR,
    message="4 gradients were used twice.",
    location=SITE,
    related=((SourceLocation("/project/train.py", 9), "added here"),),
    first_update=3,
    count=2,
    fix="Clear them.",
    change=SuggestedChange(SITE, "optimizer.zero_grad()"),
)
REPORT = Report(
    findings=(FINDING,),
    verdicts=(FailureVerdict("GRD001", Verdict.FIRED), FailureVerdict("MEM001", Verdict.PASSED)),
    suppressed=1,
    updates=10,
    updates_traced=8,
    seconds=2.0,
    overhead_s=0.1,
    timing=UpdateTiming(update_s=0.1, data_share=0.1, forward_share=0.2, backward_share=0.3, optimizer_share=0.1),
    series={"loss": Series(updates=(0, 1), values=(2.0, 1.0))},
    problems=("a source broke",),
)
CLEAN = replace(
    REPORT,
    findings=(),
    verdicts=(FailureVerdict("GRD001", Verdict.NOT_APPLICABLE), FailureVerdict("MEM001", Verdict.NOT_JUDGED, "why")),
    problems=(),
)


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "REPORT_TIMEOUT_S", 5.0)
    monkeypatch.setattr(module, "FAILURE_TIMEOUT_S", 0.3)


def processes(folder: Path, size: int = 2) -> list[RankReports]:
    return [RankReports(rank=rank, local_rank=rank, local_size=size, folder=folder / "shared") for rank in range(size)]


def test_ranks_are_read_from_torchruns_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    environment = {
        "RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "../odd id",
        "MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "TORCHELASTIC_RESTART_COUNT": "0",
    }  # fmt: skip
    group = rank_reports(environment)
    assert group is not None
    assert (group.rank, group.local_rank, group.local_size) == (3, 1, 2)
    assert group.folder.parent == tmp_path
    assert rank_reports({**environment, "TORCHELASTIC_RESTART_COUNT": "1"}) != group
    assert rank_reports({**environment, "LOCAL_WORLD_SIZE": "1"}) is None
    assert rank_reports({**environment, "RANK": "zero"}) is None
    assert rank_reports({}) is None


def test_the_first_rank_prints_the_report_of_all(tmp_path: Path):
    first, second = processes(tmp_path)
    first.write_marker()
    second.write_marker()
    printed: list[Report] = []
    second.print_or_send(REPORT, failed=False, print_report=printed.append)
    assert not printed
    first.print_or_send(CLEAN, failed=False, print_report=printed.append)
    assert printed == [merge_reports({0: CLEAN, 1: REPORT})]
    assert "rank 1 of 2" in printed[0].findings[0].message


def test_the_first_rank_waits_for_a_slow_one(tmp_path: Path):
    first, second = processes(tmp_path)
    first.write_marker()
    second.write_marker()
    printed: list[Report] = []
    thread = threading.Timer(0.3, lambda: second.print_or_send(REPORT, failed=False, print_report=printed.append))
    thread.start()
    first.print_or_send(REPORT, failed=False, print_report=printed.append)
    thread.join()
    assert [report.problems for report in printed] == [("rank 0: a source broke", "rank 1: a source broke")]


def test_a_rank_that_is_dead_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "REPORT_TIMEOUT_S", 1000.0)
    first, _ = processes(tmp_path)
    first.write_marker()
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(child, 0)
    (first.folder / "1.pid").write_text(str(child))
    printed: list[Report] = []
    first.print_or_send(CLEAN, failed=False, print_report=printed.append)
    assert printed[0].problems == ("rank 1 ended without a report",)


def test_waiting_for_a_silent_rank_has_a_timeout(tmp_path: Path):
    first, second = processes(tmp_path)
    first.write_marker()
    second.write_marker()
    printed: list[Report] = []
    first.print_or_send(CLEAN, failed=True, print_report=printed.append)
    assert printed[0].problems == ("rank 1 ended without a report",)


def test_a_failed_rank_prints_its_own_report_if_the_first_cannot(tmp_path: Path):
    _, second, third = group = processes(tmp_path, 3)
    for each in group:
        each.write_marker()
    printed: list[Report] = []
    second.print_or_send(REPORT, failed=True, print_report=printed.append)
    third.print_or_send(REPORT, failed=True, print_report=printed.append)
    assert printed == [REPORT]


def test_a_failed_rank_prints_nothing_if_the_first_reports(tmp_path: Path):
    first, second = processes(tmp_path)
    first.write_marker()
    second.write_marker()
    printed: list[Report] = []
    thread = threading.Thread(target=lambda: second.print_or_send(REPORT, failed=True, print_report=printed.append))
    thread.start()
    first.print_or_send(CLEAN, failed=True, print_report=printed.append)
    thread.join()
    assert len(printed) == 1


def test_files_of_an_earlier_run_are_not_read(tmp_path: Path):
    for each in reversed(processes(tmp_path)):
        each.write_marker()
        each.print_or_send(REPORT, failed=True, print_report=lambda report: None)
    first, second = processes(tmp_path)
    first.write_marker()
    second.write_marker()
    assert not list(first.folder.glob("*.json"))
    assert not (first.folder / "printed").exists()


def test_no_files_are_left_of_a_successful_run(tmp_path: Path):
    first, second = processes(tmp_path)
    first.write_marker()
    second.write_marker()
    second.print_or_send(REPORT, failed=False, print_report=lambda report: None)
    first.print_or_send(REPORT, failed=False, print_report=lambda report: None)
    assert not list(tmp_path.iterdir())


def test_a_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (first, _) = processes(tmp_path)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(PermissionError, match="belongs to another user"):
        first.write_marker()
