"""ENV008, ENV011 and ENV012 in a project: what other files read, call or never call."""

import pytest

TRAIN = """
import argparse
import torch
from torch import nn
def train(model, loader, optimizer, args):
    for x, y in loader:
        x = x.cuda() if args.cuda else x
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
"""
OPTIONS = """
def parse_setting():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--cuda", action="store_true")
    return parser.parse_args()
"""
SEED = "def set_seed(seed):\n    torch.manual_seed(seed)\n"
USES_LR = """
import torch
def build(net, args):
    return torch.optim.SGD(net.parameters(), lr=args.lr)
"""
BLOCK = """
import torch
from torch import nn
class Block(nn.Module):
    def __init__(self, width, slope=0.1):
        super().__init__()
        self.slope, self.layer = 0.2, nn.Linear(width, width)
class Up(nn.Module):
    def __init__(self, width, slope=0.1):
        super().__init__()
        self.slope = 0.2
        self.layer = nn.Linear(width, width)
"""


def _found(tmp_path, files, code):
    from trueloop.analysis.project import Project
    from trueloop.failures.load import catalogue
    from trueloop.lint.check_file import ActiveRule
    from trueloop.lint.check_tree import LintJob, lint_files
    from trueloop.lint.files import read_text

    for name, text in files.items():
        (tmp_path / name).write_text(text)
    paths = sorted(tmp_path.glob("*.py"))
    entry = catalogue()[code]
    assert entry.failure.rule is not None
    rules = [ActiveRule(entry.failure, entry.slug, entry.failure.rule)]
    job = LintJob(rules, project=Project(map(str, paths), read_text))
    found = [each for linted in lint_files(paths, job, jobs=1) for each in linted.result.findings]
    return [each.message for each in found if each.severity != "note"]


@pytest.mark.parametrize(
    "other",
    [
        {"student.py": "from base import parse_setting\nargs = parse_setting()\nprint(args.lr)\n"},
        {"student.py": "from base import *\ndef main(args):\n    return args.lr\nmain(parse_setting())\n"},
        {"student.py": "import base, build\nbuild.build(net, base.parse_setting())\n", "build.py": USES_LR},
    ],
)
def test_options_of_a_helper_that_other_files_read_are_read(tmp_path, other):
    assert _found(tmp_path, {"base.py": TRAIN + OPTIONS, **other}, "ENV008") == []


@pytest.mark.parametrize("other", [{}, {"other.py": "def rate(x):\n    return x.lr\n"}])
def test_options_that_only_other_programs_name_are_unread(tmp_path, other):
    assert "--lr" in _found(tmp_path, {"base.py": TRAIN + OPTIONS, **other}, "ENV008")[0]


@pytest.mark.parametrize(
    ("tuner", "count"),
    [
        ("from helpers import set_seed, train\nset_seed(3)\n", 0),
        ("import helpers\nhelpers.set_seed(3)\n", 0),
        ("from helpers import train\nprint(train)\n", 1),
        ("def set_seed(seed):\n    return seed\n", 1),
    ],
)
def test_a_helper_that_another_file_calls(tmp_path, tuner, count):
    assert len(_found(tmp_path, {"helpers.py": TRAIN + SEED, "tuner.py": tuner}, "ENV012")) == count


@pytest.mark.parametrize(
    ("user", "count"),
    [
        ("from blocks import Up\nnet = Up(8)\n", 1),
        ("import blocks\nnet = getattr(blocks, 'Up')(8, slope=0.3)\n", 1),
        ("print(8)\n", 0),
    ],
)
def test_a_class_that_no_file_uses_is_no_mistake(tmp_path, user, count):
    assert len(_found(tmp_path, {"blocks.py": BLOCK, "main.py": user}, "ENV011")) == count


SMOKE = """
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
    def forward(self, x):
        return self.layer(x)
if __name__ == "__main__":
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=12)
    args = parser.parse_args()
    print(Net())
"""
MAIN = """
import argparse
import torch
from net import Net
parser = argparse.ArgumentParser()
parser.add_argument("--depth", type=int, default=12)
args = parser.parse_args()
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(9):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).mean().backward()
    optimizer.step()
"""


def test_options_of_a_trial_of_an_imported_file_are_not_judged(tmp_path):
    (message,) = _found(tmp_path, {"net.py": SMOKE, "main.py": MAIN}, "ENV008")
    assert "--depth" in message
