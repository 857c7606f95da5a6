"""``%load_ext trueloop`` and ``%%watch``: with a shell that does what IPython's does, and once in a real kernel."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import trueloop
from trueloop.app.notebook import parse_options
from trueloop.core.errors import InvalidConfig

MODEL = "import torch\nmodel = torch.nn.Linear(2, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"


class Shell:
    """As much of IPython's InteractiveShell as is used: cells run in one namespace, errors are shown, not raised."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.magics: dict[tuple[str, str], Callable[..., Any]] = {}

    def register_magic_function(self, func: Callable[..., Any], magic_kind: str, magic_name: str) -> None:
        self.magics[magic_kind, magic_name] = func

    def run_cell(self, raw_cell: str) -> Any:
        try:
            exec(compile(raw_cell, "<ipython-input-1-abc>", "exec"), self.names)
        except Exception as error:  # noqa: BLE001
            return SimpleNamespace(error_before_exec=None, error_in_exec=error)
        return SimpleNamespace(error_before_exec=None, error_in_exec=None)


@pytest.fixture
def cell(made_up: None) -> Callable[..., Any]:
    shell = Shell()
    trueloop.load_ipython_extension(shell)
    return shell.magics["cell", "watch"]


def test_the_extension_is_no_public_name():
    assert "load_ipython_extension" not in trueloop.__all__


def test_a_cell_is_watched_and_its_report_shown(cell: Callable[..., Any]):
    report = cell("", MODEL + "optimizer.zero_grad()\n")
    ((code, site),) = [(finding.code, finding.location) for finding in report.findings]
    assert (code, site.line) == ("GRD901", 4)
    assert "GRD901" in report._repr_html_()


def test_only_the_cell_is_watched(cell: Callable[..., Any]):
    import torch

    report = cell("", MODEL)
    torch.nn.Linear(1, 1).zero_grad()
    assert report.ok


def test_a_cell_that_raises_is_explained_and_ends_the_watch(cell: Callable[..., Any]):
    report = cell("", MODEL + "1 / 0\n")
    assert [finding.code for finding in report.findings] == ["ENV901"]


def test_codes_are_selected(cell: Callable[..., Any]):
    text = MODEL + "optimizer.zero_grad()\nmodel.zero_grad()\n"
    assert [finding.code for finding in cell("--select GRD", text).findings] == ["GRD901"]
    assert [finding.code for finding in cell("--ignore=GRD901,MDL", text).findings] == ["MEM901"]


@pytest.mark.parametrize("line", ["--nonsense", "train()", "--select"])
def test_unknown_words_are_rejected(line: str):
    with pytest.raises(InvalidConfig, match="%%watch has no option"):
        parse_options(line)


BROKEN = """\
%%watch
x, y = torch.randn(64, 8), torch.randn(64)
model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(4):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow(reason="starts a Jupyter kernel")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_notebook_is_executed_by_a_real_kernel():
    nbclient = pytest.importorskip("nbclient")
    from nbformat.v4 import new_code_cell, new_notebook

    cells = [
        "%load_ext trueloop\nimport torch\nfrom torch import nn, randn",
        BROKEN,
        BROKEN.replace("mse_loss(model(x), y)", "mse_loss(model(x).squeeze(1), y)"),
        "%%watch --select LOS\n1 / 0",
        "torch.nn.Module.__call__.__module__, model.training",
    ]
    notebook = new_notebook(cells=[new_code_cell(text) for text in cells])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True).execute()
    shown = ["".join(each.get("data", {}).get("text/html", "") for each in cell.outputs) for cell in notebook.cells]
    assert "LOS003" in shown[1]
    assert "mse_loss(model(x), y)" in shown[1], "the line of the cell is shown"
    assert shown[2]
    assert "LOS003</" not in shown[2]
    assert [each.ename for each in notebook.cells[3].outputs if each.output_type == "error"] == ["ZeroDivisionError"]
    assert shown[3], "the report is shown below the error"
    (last,) = notebook.cells[4].outputs
    assert last.data["text/plain"] == "('torch.nn.modules.module', True)"
