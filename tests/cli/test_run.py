"""`trueloop run` on the command line: options of trueloop, arguments of the script, and wrong usage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trueloop.app.sanitizer.run_command import RunOptions
from trueloop.cli import run as module
from trueloop.cli.app import main
from trueloop.sanitizer.run_program import ProgramCommand


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[ProgramCommand, RunOptions]]:
    """Calls of the sanitizer, which does not run."""
    received: list[tuple[ProgramCommand, RunOptions]] = []

    def sanitize(program: ProgramCommand, options: RunOptions) -> int:
        received.append((program, options))
        return 9

    monkeypatch.setattr(module, "sanitize", sanitize)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    return received


def script(*arguments: str) -> ProgramCommand:
    return ProgramCommand(target="train.py", arguments=arguments)


@pytest.mark.parametrize(
    ("words", "program", "options"),
    [
        (["train.py"], script(), {}),
        (["train.py", "--json", "x", "--help", "-m"], script("--json", "x", "--help", "-m"), {}),
        (["train.py", "--", "", "-3", "--version"], script("--", "", "-3", "--version"), {}),
        (["--", "train.py", "--strict"], script("--strict"), {}),
        (["--strict", "train.py", "--strict"], script("--strict"), {"strict": True}),
        (["--json", "r.json", "train.py"], script(), {"json": Path("r.json")}),
        (["--json=r.json", "--html", "h", "--sarif", "s", "train.py"], script(),
         {"json": Path("r.json"), "html": Path("h"), "sarif": Path("s")}),
        (["--select", "GRD,MEM001", "--select", "LOS", "train.py"], script(), {"select": ["GRD,MEM001", "LOS"]}),
        (["--ignore", "GRD", "--stop-on-error", "--quiet", "train.py"], script(),
         {"ignore": ["GRD"], "stop_on_error": True, "quiet": True}),
        (["-m", "package.job", "--strict", "-m", "x"],
         ProgramCommand(target="package.job", arguments=("--strict", "-m", "x"), module=True), {}),
        (["--strict", "-m", "package.job"], ProgramCommand(target="package.job", module=True), {"strict": True}),
    ],
)  # fmt: skip
def test_options_before_the_script_are_trueloops(
    calls: list[tuple[ProgramCommand, RunOptions]], words: list[str], program: ProgramCommand, options: dict[str, Any]
):
    assert main(["run", *words]) == 9
    ((actual_program, actual_options),) = calls
    assert actual_program == program
    values = {name: getattr(actual_options, name) for name in RunOptions.__slots__}  # pyright: ignore[reportAttributeAccessIssue]
    changed = {name: value for name, value in values.items() if value not in (None, False, (), [])}
    assert changed == options


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "The script is missing: trueloop run train.py."),
        (["--strict"], "The script is missing"),
        (["-m"], "The script is missing"),
        (["trian.py"], "There is no script 'trian.py'. Did you mean 'train.py'?"),
        (["nothing/like/it.py"], "There is no script 'nothing/like/it.py'."),
        (["--strct", "train.py"], "Unknown option: --strct."),
        (["--json"], "--json"),
    ],
)
def test_wrong_usage_exits_with_2_and_a_message(
    calls: list[tuple[ProgramCommand, RunOptions]], words: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["run", *words]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert message in err
    assert err.endswith("fix: trueloop run --help\n")
    assert not calls


@pytest.mark.parametrize(
    "words", [["--select", "NOPE"], ["--ignore", "NOPE"], ["--json", "missing/r.json"], ["--html", "."]]
)
def test_invalid_options_are_refused_before_the_script_starts(
    program: Callable[..., Path], words: list[str], capsys: pytest.CaptureFixture[str]
):
    program("print('started')")
    assert main(["run", *words, "train.py"]) == 1
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("error: ")


def test_help_lists_the_options(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--help"]) == 0
    out = capsys.readouterr().out
    assert "Usage: trueloop run [OPTIONS] SCRIPT [ARGUMENTS]" in out
    for word in ("--json", "--html", "--sarif", "--strict", "--select", "--ignore", "--stop-on-error", "--quiet"):
        assert f"│ {word} " in out


def trueloop(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trueloop", *words]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV_")}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, **options)


def test_a_script_without_torch_does_not_import_it(program: Callable[..., Path]):
    program("import sys\nprint('torch' in sys.modules, sys.argv, input())\nsys.exit(7)\n")
    process = trueloop("run", "--strict", "train.py", "--lr", "1", input="typed\n")
    assert (process.returncode, process.stdout) == (7, "False ['train.py', '--lr', '1'] typed\n")
    assert process.stderr == "trueloop: nothing to judge: the program never imported torch\n"


def test_a_script_may_close_standard_output(program: Callable[..., Path]):
    program("import sys\nprint('x')\nsys.stdout.close()\n")
    process = trueloop("run", "--quiet", "train.py")
    assert (process.returncode, process.stdout, process.stderr) == (0, "x\n", "")


def test_os_exit_ends_without_a_report(program: Callable[..., Path]):
    program("import os, torch\nos._exit(6)\n")
    process = trueloop("run", "train.py")
    assert (process.returncode, process.stdout, process.stderr) == (6, "", "")


def test_ctrl_c_reaches_the_script_and_the_report_is_printed(program: Callable[..., Path]):
    program(
        """\
        import time, torch
        try:
            print("begun", flush=True)
            time.sleep(60)
        finally:
            print("tidied up")
        """
    )
    command = [sys.executable, "-m", "trueloop", "run", "train.py"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # A shell starts background jobs, such as these tests, with Ctrl-C ignored, and children inherit that.
    pipes["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "tidied up\n")
    assert err.index("KeyboardInterrupt\n") < err.index("trueloop: ")
    assert "run_command" not in err


DISTRIBUTED = """\
    import gc

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 + dist.get_rank())
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(4, 2)).square().mean().backward()
        optimizer.step()
    del model
    gc.collect()  # gloo's threads need Python to let a sum go: torch 2.13 aborts where one is held until Python ends
    dist.destroy_process_group()
"""


@pytest.mark.slow(reason="starts torchrun")
def test_ranks_of_torchrun_print_one_report(program: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
    folder = program(DISTRIBUTED).parent
    monkeypatch.setenv("TMPDIR", str(folder))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "trueloop", "run", "--json", "r.json", "train.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert process.returncode == 0, process.stderr
    assert len([line for line in process.stderr.splitlines() if line.startswith("trueloop: ")]) == 1
    report = json.loads((folder / "r.json").read_text())
    assert report["problems"] == []
    (found,) = report["findings"]  # of both ranks, or of the one that read last
    assert (found["code"], found["line"], found["first_update"]) == ("DST001", 12, 0)
    assert found["message"].startswith("Ranks 0 and 1 have different values of ")
    assert not list(folder.glob("trueloop-*"))


MISFIT = """
import torch
from torch import nn

def train():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(9, 1))
    x = torch.randn(16, 4)
    try:
        model(x)
    except RuntimeError:
        print("tried")
    model(x)

train()
"""


def test_a_pytorch_error_is_explained_after_its_traceback(tmp_path: Path):
    (tmp_path / "train.py").write_text(MISFIT)
    command = [sys.executable, "-m", "trueloop", "run", "--json", "r.json", "--html", "r.html", "train.py"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert process.stdout == "tried\n"
    trace, report = process.stderr.split("\ntrueloop: RuntimeError, explained below.")
    bare = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert trace.replace(f"{tmp_path}/", "") == bare.stderr.replace(f"{tmp_path}/", "")
    assert "expects in_features=9, but the input has the shape (16, 8)" in " ".join(report.split())
    error = json.loads((tmp_path / "r.json").read_text())["error"]
    assert (error["kind"], error["line"], error["function"], error["update"]) == ("shape-mismatch", 12, "train", 0)
    assert "Error that ended the run" in (tmp_path / "r.html").read_text()


def test_another_error_is_not_explained(tmp_path: Path):
    (tmp_path / "train.py").write_text(MISFIT.replace("    model(x)\n\ntrain", "    {}['x']\n\ntrain"))
    command = [sys.executable, "-m", "trueloop", "run", "--json", "r.json", "train.py"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert "KeyError: 'x'\n\ntrueloop: Not judged" in process.stderr
    assert json.loads((tmp_path / "r.json").read_text())["error"] is None


MISTAKES = """\
%matplotlib inline
import torch
from torch import nn
# new cell
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
    def forward(self, x):
        return self.layer(x).softmax(dim=1)
# new cell
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x, y = torch.randn(64, 4), torch.randint(2, (64,))
# new cell
loss_function = nn.CrossEntropyLoss()
for _ in range(20):
    loss = loss_function(net(x), y)
    loss.backward()
    optimizer.step()
"""


def test_findings_in_a_notebook_name_the_cell(tmp_path: Path):
    cells = MISTAKES.split("# new cell\n")
    content = {"cells": [{"cell_type": "code", "source": each} for each in cells], "nbformat": 4}
    (tmp_path / "a.ipynb").write_text(json.dumps(content))
    command = [sys.executable, "-m", "trueloop", "run", "--json", "r.json", "--strict", "a.ipynb"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 3, process.stderr
    cell = f"{tmp_path / 'a.ipynb'}:cell 4"
    found = {
        each["code"]: (each["path"], each["line"]) for each in json.loads((tmp_path / "r.json").read_text())["findings"]
    }
    assert (found["GRD001"], found["LOS001"]) == ((cell, 5), (cell, 3))
    assert "\n  a.ipynb:cell 4:5\n" in process.stderr
    assert "loss = loss_function(net(x), y)" in process.stderr, "The report shows no lines of the cell."
