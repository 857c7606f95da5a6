"""`trueloop verify`: exit codes, words, JSON and the page."""

import json
from pathlib import Path

import pytest

from trueloop.cli.app import main

FILE = """
import torch
from torch import nn

class Leaky(nn.Linear):
    def forward(self, x):
        return super().forward(x - x.mean(0))

def subject(kind):
    torch.manual_seed(0)
    x = torch.randn(16, 4)
    return {"model": kind(4, 2), "loss": nn.CrossEntropyLoss(), "batch": (x, (x[:, 0] > 0).long())}

def build():
    return subject(nn.Linear)

def leaky():
    print("what the file has to say")
    return subject(Leaky)
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "subject_file.py"
    path.write_text(FILE)
    return str(path)


def test_proofs_that_hold_exit_with_0(file, capsys):
    assert main(["verify", file, "--select", "samples-independent,mask-respected"]) == 0
    out = capsys.readouterr().out
    assert "✓ samples-independent" in out
    assert "not applicable: mask-respected" in out
    assert "1 hold, 1 not applicable" in out


def test_a_broken_proof_exits_with_1_and_prints_its_fix(file, capsys):
    assert main(["verify", f"{file}:leaky", "--select", "model"]) == 1
    out = capsys.readouterr().out
    assert "✗ samples-independent" in out
    assert "fix: Look for a reshape" in out
    assert "✗ batch-size-independent" in out


def test_json_is_one_object(file, capsys):
    assert main(["verify", f"{file}:leaky", "--select", "samples-independent", "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert record["ok"] is False
    [proof] = record["proofs"]
    assert proof["verdict"] == "broken"
    assert proof["charts"][0]["kind"] == "grid"


def test_a_page_is_written(file, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["verify", file, "--select", "loss-falls", "--html", str(page)]) == 0
    assert "<polyline" in page.read_text()
    assert main(["verify", file, "--html", str(tmp_path / "none" / "page.html")]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_verbose_prints_the_reasons(file, capsys):
    assert main(["verify", file, "--select", "mask-respected", "--verbose"]) == 0
    assert "No position of the batch is masked" in capsys.readouterr().out


def test_the_list_names_every_proof(capsys):
    from trueloop.verification.discover import all_proofs

    assert main(["verify", "--list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in all_proofs())


def test_causal_can_be_set_by_a_flag(file, tmp_path, capsys):
    path = tmp_path / "sequence_file.py"
    path.write_text(
        "import torch\nfrom torch import nn\n"
        "class Mean(nn.Linear):\n"
        "    def forward(self, x):\n        return super().forward(x) + x.mean(1, keepdim=True)\n"
        "def build():\n    return {'model': Mean(4, 4), 'batch': torch.randn(3, 6, 4)}\n"
    )
    assert main(["verify", str(path), "--select", "future-unseen"]) == 0
    assert main(["verify", str(path), "--select", "future-unseen", "--causal"]) == 1
    assert "position 0 changes" in capsys.readouterr().out


def test_wrong_usage_exits_with_2_and_a_misspelt_proof_with_1(file, capsys):
    assert main(["verify"]) == 2
    assert "The target is missing" in capsys.readouterr().err
    assert main(["verify", file, "--select", "input-usd"]) == 1
    assert "Did you mean 'input-used'" in capsys.readouterr().err
    assert main(["verify", file, "--jsn"]) == 2
