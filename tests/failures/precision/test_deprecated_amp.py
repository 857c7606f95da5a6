"""PRC003: the deprecated names in torch.cuda.amp."""

from __future__ import annotations

import pytest

from trueloop.failures.precision.deprecated_amp import FAILURE, RULE
from trueloop.lint.check_file import ActiveRule
from trueloop.lint.fix import fix_text

HEAD = """
import torch
from torch import nn
"""

LINT_FINDS = {
    "by full names": """
scaler = torch.cuda.amp.GradScaler()  # <- PRC003
with torch.cuda.amp.autocast():  # <- PRC003
    y = x @ x
""",
    "with arguments": """
scaler = torch.cuda.amp.GradScaler(2.0**10, growth_interval=100)  # <- PRC003
with torch.cuda.amp.autocast(enabled=True, dtype=torch.float16):  # <- PRC003
    y = x @ x
with torch.cuda.amp.autocast(args.amp):  # <- PRC003
    y = x @ x
""",
    "imported": """
from torch.cuda.amp import GradScaler, autocast
scaler = GradScaler(enabled=args.amp)  # <- PRC003
def step(x, model):
    with autocast():  # <- PRC003
        return model(x)
""",
    "imported by another name": """
from torch.cuda.amp import autocast as mixed
with mixed(False):  # <- PRC003
    y = x @ x
""",
    "a decorator": """
class Net(nn.Module):
    @torch.cuda.amp.autocast()  # <- PRC003
    def forward(self, x):
        return x
""",
    "in a trainer": """
class Trainer:
    def __init__(self, args):
        self.scaler = torch.cuda.amp.GradScaler(  # <- PRC003
            enabled=args.fp16,
        ) if args.fp16 else None
""",
}
NOT_FIXED = {
    "a module by another name": """
from torch.cuda import amp
scaler = amp.GradScaler()  # <- PRC003
""",
    "positions that mean something else": """
with torch.cuda.amp.autocast(True, torch.bfloat16):  # <- PRC003
    y = x @ x
""",
    "also passed on": """
from torch.cuda.amp import autocast
context = autocast if args.amp else None
with autocast():  # <- PRC003
    y = x @ x
""",
    "imported with something else": """
from torch.cuda.amp import GradScaler, custom_fwd
scaler = GradScaler()  # <- PRC003
""",
}
LINT_IGNORES = {
    "torch.amp": 'scaler = torch.amp.GradScaler("cuda")\nwith torch.amp.autocast("cuda"):\n    y = x @ x\n',
    "torch.autocast": 'with torch.autocast("cuda", torch.bfloat16):\n    y = x @ x\n',
    "imported": "from torch.amp import GradScaler, autocast\nscaler = GradScaler('cuda')\n",
    "for the CPU": "with torch.autocast(device_type='cpu', dtype=torch.bfloat16):\n    y = x @ x\n",
    "of another package": "from apex.amp import autocast, GradScaler\nscaler = GradScaler()  # not torch.cuda.amp\n",
    "something else of CUDA's": "torch.cuda.empty_cache()\nsample = torch.cuda.memory_allocated()\n",
}


@pytest.mark.parametrize("script", LINT_FINDS.values(), ids=LINT_FINDS)
def test_lint_reports_the_marked_line(lint_reports, script):
    lint_reports(HEAD + script, fixes=True)


@pytest.mark.parametrize("script", NOT_FIXED.values(), ids=NOT_FIXED)
def test_uncertain_rewrites_are_not_offered(lint_reports, script):
    lint_reports(HEAD + script, fixes=False)


@pytest.mark.parametrize("script", LINT_IGNORES.values(), ids=LINT_IGNORES)
def test_lint_ignores_correct_and_undecidable_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "PRC003")


def test_the_import_and_all_calls_are_rewritten_together():
    text = "from torch.cuda.amp import autocast, GradScaler  # both\nscaler = GradScaler()\n"
    text += "with autocast(True):\n    pass\n"
    fixed = fix_text(text, "train.py", [ActiveRule(FAILURE, "", RULE)], unsafe=True)
    assert fixed.text == (
        "from torch.amp import autocast, GradScaler  # both\n"
        'scaler = GradScaler("cuda")\nwith autocast("cuda", enabled=True):\n    pass\n'
    )
