"""Maps warnings of PyTorch to the failures that they announce."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from trueloop.failures.load import Entry, find_failure

WARNING_PATTERNS: Final[Mapping[str, str]] = {
    r"Detected call of `lr_scheduler\.step\(\)` before `optimizer\.step\(\)`": "SCH001",
    r"Using a target size \(torch\.Size\([^)]*\)\) that is different to the input size": "LOS003",
    r"This DataLoader will create \d+ worker processes in total": "ENV002",
    r"None of the inputs have requires_grad=True\. Gradients will be None": "MEM003",
    r"`torch\.(?:cuda|cpu)\.amp\.(?:GradScaler|autocast)\(args\.\.\.\)` is deprecated": "PRC003",
    r"You are using `torch\.load` with `weights_only=False`": "CKP003",
}
"""Regular expression for a PyTorch warning -> code of the failure."""


def find_failures_in_warnings(text: str) -> Iterator[Entry]:
    """Yield the failures whose warning occurs in a text.

    Args:
        text: output of a program.
    """
    for pattern, code in WARNING_PATTERNS.items():
        if re.search(pattern, text) and (entry := find_failure(code)) is not None:
            yield entry
