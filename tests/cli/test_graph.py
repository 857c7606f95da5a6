"""`trueloop graph`: the page, the tree, JSON, the picture, settings, and words that are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from trueloop.cli.app import main

RECIPE = '''
from dataclasses import dataclass
import torch
from torch import nn
from trueloop import Parts, Recipe, TrainConfig


@dataclass(frozen=True)
class Options:
    """The recipe's own."""

    hidden: int = 4
    """Units."""


class Net(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.body, self.head, self.forgotten = nn.Linear(3, hidden), nn.Linear(hidden, 2), nn.Linear(2, 2)

    def forward(self, x):
        return self.head(self.body(x).relu())


def assemble(options):
    data = torch.utils.data.TensorDataset(torch.randn(16, 3), torch.arange(16) % 2)
    return Parts(model=Net(options.hidden), objective=nn.CrossEntropyLoss(), train=data)


def build():
    """Small."""
    return Recipe(name="small", summary="Small.", train=TrainConfig(effective_batch=8, device="cpu"),
                  options=Options(), assemble=assemble)
'''


@pytest.fixture
def spec(tmp_path: Path) -> str:
    (tmp_path / "small.py").write_text(RECIPE)
    return f"{tmp_path / 'small.py'}:build"


def test_the_page_lists_unreached_parameters_and_saved_tensors(spec: str, capsys: pytest.CaptureFixture[str]):
    assert main(["graph", spec]) == 0
    out = capsys.readouterr().out
    assert "never reached by this loss: forgotten.weight, forgotten.bias" in out
    assert "AddmmBackward0" in out
    assert "keeps mat1: 8 × 3 float32, 96 bytes, batch[0]" in out  # noqa: RUF001 - as it is printed


def test_json_has_the_graph_and_settings_apply(spec: str, capsys: pytest.CaptureFixture[str]):
    assert main(["graph", spec, "--json", "--options.hidden", "6", "--effective-batch", "4"]) == 0
    graph = json.loads(capsys.readouterr().out)
    assert graph["unreachable"] == ["forgotten.weight", "forgotten.bias"]
    assert [4, 6] in [tensor["shape"] for node in graph["nodes"] for tensor in node["saved"]]
    assert graph["graph_only_b"] == sum(each["size_b"] for each in graph["memories"] if not each["owner"])


def test_the_picture_is_written(spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "graph.svg"
    assert main(["graph", spec, "--svg", str(path)]) == 0
    assert ET.parse(path).getroot().tag.endswith("svg")
    assert str(path) in capsys.readouterr().out


def test_a_proof_target_has_a_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = RECIPE.partition("def assemble")[0] + (
        "def build():\n    return {'model': Net(4), 'loss': nn.CrossEntropyLoss(),\n"
        "            'batch': (torch.randn(5, 3), torch.arange(5) % 2)}\n\n\ndef bare():\n    return Net(4)\n"
    )
    (tmp_path / "subject.py").write_text(text)
    spec = f"{tmp_path / 'subject.py'}"
    assert main(["graph", f"{spec}:build"]) == 0
    out = capsys.readouterr().out
    assert "never reached by this loss: forgotten.weight, forgotten.bias" in out
    assert "5 × 3 float32, 60 bytes, batch[0]" in out  # noqa: RUF001 - as it is printed
    assert main(["graph", f"{spec}:bare"]) == 1
    assert "There is neither a batch nor a loader" in capsys.readouterr().err
    assert main(["graph", f"{spec}:build", "--config", "x.toml"]) == 1
    assert "it has no settings" in capsys.readouterr().err
    assert main(["graph", f"{spec}:build", "--effective-batch", "2"]) == 2


def test_an_unwritable_picture_is_refused_first(spec: str, capsys: pytest.CaptureFixture[str]):
    assert main(["graph", spec, "--svg", "graph.png"]) == 1
    assert "A picture cannot be written to 'graph.png'" in capsys.readouterr().err


def test_a_large_graph_is_printed_only_with_tree(capsys: pytest.CaptureFixture[str]):
    assert main(["graph", "text", "--effective-batch", "2"]) == 0
    short = capsys.readouterr().out
    assert "--tree prints all" in short
    assert "Nodes, from the loss down" not in short
    assert main(["graph", "text", "--effective-batch", "2", "--tree"]) == 0
    assert "Nodes, from the loss down" in capsys.readouterr().out


def test_help_is_printed_and_wrong_usage_refused(capsys: pytest.CaptureFixture[str]):
    assert main(["graph", "--help"]) == 0
    assert "--svg" in capsys.readouterr().out
    assert main(["graph"]) == 2
    assert "Name the recipe first" in capsys.readouterr().err
    assert main(["graph", "digts"]) == 1
    assert "digits" in capsys.readouterr().err
