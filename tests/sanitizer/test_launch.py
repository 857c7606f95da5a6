"""Running a program with the sanitizer: the hooks are attached late, findings are reported once, errors stay errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from trueloop.core.findings import Finding
from trueloop.failures.selection import FailureSelection
from trueloop.sanitizer.launch import FINDINGS_EXIT_CODE, NEVER_IMPORTED, LaunchResult, launch
from trueloop.sanitizer.run_program import ProgramCommand

pytestmark = pytest.mark.usefixtures("made_up")

MODEL = "import torch\nmodel = torch.nn.Linear(2, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"


def launch_program(path: Path, **options: object) -> LaunchResult:
    return launch(ProgramCommand(target=str(path)), FailureSelection(), **options)  # pyright: ignore[reportArgumentType]


def found_codes(launched: LaunchResult) -> list[str]:
    return [finding.code for finding in launched.report.findings]


def test_findings_are_published_immediately_and_reported(
    program: Callable[..., Path], capsys: pytest.CaptureFixture[str]
):
    path = program(MODEL + "optimizer.zero_grad()\nprint('after')\nmodel.zero_grad()\n")
    reported: list[tuple[str, str]] = []
    zero_grad = torch.optim.Optimizer.zero_grad

    def found(finding: Finding) -> None:
        reported.append((finding.code, capsys.readouterr().out))

    ended = launch_program(path, on_finding=found)
    assert ended.code == 0
    assert not ended.not_judged_reason
    assert reported == [("GRD901", ""), ("MEM901", "after\n")]
    assert [(each.code, each.location and each.location.line) for each in ended.report.findings] == [
        ("GRD901", 4),
        ("MEM901", 6),
    ]
    assert torch.optim.Optimizer.zero_grad is zero_grad


def test_a_program_without_torch_has_nothing_to_judge(program: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
    path = program("import sys\nsys.exit(5)\n")
    monkeypatch.delitem(sys.modules, "torch")
    finders = list(sys.meta_path)
    ended = launch_program(path)
    assert ended == LaunchResult(5, ended.report, NEVER_IMPORTED, forked=False)
    assert not ended.report.findings
    assert sys.meta_path == finders


def test_a_failing_program_keeps_its_traceback_and_is_explained(
    program: Callable[..., Path], capsys: pytest.CaptureFixture[str]
):
    path = program(MODEL + "optimizer.zero_grad(nonsense=1)\n")
    ended = launch_program(path)
    assert ended.code == 1
    assert found_codes(ended) == ["GRD901", "ENV901"]
    assert ended.report.findings[1].location is not None
    assert ended.report.findings[1].location.line == 4
    err = capsys.readouterr().err
    assert err.endswith("got an unexpected keyword argument 'nonsense'\n")
    assert "trueloop" not in err


def test_an_exit_or_an_interruption_is_no_error_to_explain(program: Callable[..., Path]):
    assert found_codes(launch_program(program(MODEL + "raise SystemExit(4)\n"))) == []
    ended = launch_program(program(MODEL + "raise KeyboardInterrupt\n"))
    assert (ended.code, found_codes(ended)) == (130, [])


def test_it_stops_at_the_first_error(program: Callable[..., Path], capsys: pytest.CaptureFixture[str]):
    path = program(
        MODEL + "model.zero_grad()\n"
        "try:\n    optimizer.zero_grad()\n    print('never')\n"
        "except Exception:\n    print('no exception of the kind that programs catch')\n"
        "finally:\n    print('tidied up')\n"
    )
    ended = launch_program(path, stop_on_error=True)
    assert ended.code == FINDINGS_EXIT_CODE
    assert found_codes(ended) == ["GRD901", "MEM901"]
    out, err = capsys.readouterr()
    assert (out, err) == ("tidied up\n", "")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # Python says nothing of an exit
def test_it_stops_a_program_that_trains_in_a_thread(program: Callable[..., Path], capsys: pytest.CaptureFixture[str]):
    path = program(
        MODEL + "import threading, time\n"
        "def train():\n    try:\n        optimizer.zero_grad()\n        print('never')\n"
        "    finally:\n        time.sleep(0.2)  # outlives the main thread\n"
        "thread = threading.Thread(target=train)\nthread.start()\n"
        "for _ in range(1000):\n    time.sleep(0.01)\nprint('never')\n"
    )
    ended = launch_program(path, stop_on_error=True)
    assert ended.code == FINDINGS_EXIT_CODE
    assert capsys.readouterr().out == ""


def test_a_program_that_watches_itself_is_watched_twice(
    program: Callable[..., Path], capsys: pytest.CaptureFixture[str]
):
    path = program(
        MODEL + "import trueloop\n"
        "with trueloop.watch() as report:\n    optimizer.zero_grad()\n"
        "print([finding.code for finding in report.findings])\noptimizer.zero_grad()\n"
    )
    ended = launch_program(path)
    assert capsys.readouterr().out == "['GRD901']\n"
    assert [finding.location and finding.location.line for finding in ended.report.findings] == [6, 8]


def test_a_failed_attachment_is_reported_and_the_program_runs(
    program: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def broken() -> None:
        raise RuntimeError("no such torch")

    monkeypatch.setattr("trueloop.sanitizer.watch._attachment", broken)
    ended = launch_program(program(MODEL + "optimizer.zero_grad()\nprint('ran')\n"))
    assert ended.code == 0
    assert capsys.readouterr().out == "ran\n"
    assert ended.not_judged_reason == "cannot judge: trueloop could not attach to torch (RuntimeError: no such torch)"
    assert ended.report.problems == (ended.not_judged_reason,)


def test_a_failing_listener_does_not_break_the_program(program: Callable[..., Path]):
    def broken(finding: Finding) -> None:
        raise RuntimeError("cannot print")

    ended = launch_program(program(MODEL + "optimizer.zero_grad()\n"), on_finding=broken)
    assert ended.code == 0
    assert found_codes(ended) == ["GRD901"]
    assert ended.report.problems


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_does_not_report(program: Callable[..., Path]):
    path = program(
        MODEL + "import os\nchild = os.fork()\noptimizer.zero_grad()\n"
        "if child:\n    _, status = os.waitpid(child, 0)\n    raise SystemExit(os.waitstatus_to_exitcode(status))\n"
    )
    process = os.getpid()
    ended = launch_program(path)
    if os.getpid() != process:  # the child, which must not go on as a second test run
        os._exit(7 if ended.forked and not ended.report.findings else 8)
    assert not ended.forked
    assert ended.code == 7
    assert found_codes(ended) == ["GRD901"]


def test_loader_workers_are_not_traced(program: Callable[..., Path]):
    path = program(
        """\
        import torch

        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 4
            def __getitem__(self, index):
                torch.nn.Linear(1, 1).zero_grad()
                return float(index)

        if __name__ == "__main__":
            for start in ("fork", "spawn"):
                loader = torch.utils.data.DataLoader(Data(), num_workers=1, multiprocessing_context=start)
                print(start, sum(batch.item() for batch in loader))
        """
    )
    ended = launch_program(path)
    assert ended.code == 0
    assert found_codes(ended) == []
