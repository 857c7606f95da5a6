"""A checkpoint is loaded in the way that may run any code in it.

What you see
    None, until a file is not what it seems: loading it runs whatever its author put there, with the rights of whoever
    loads it.

Why it happens
    ``torch.load(path, weights_only=False)`` unpickles, and a pickle is a program. It is what was asked for.

Fix
    Save state dictionaries and plain values; load with ``weights_only=True``. For a few classes of your own, allow
    them by ``torch.serialization.add_safe_globals([...])``. For weights of others, use safetensors.

When this is fine
    ``weights_only=True``, and nothing said at all since PyTorch 2.6: tensors, numbers and plain containers only. For
    a file of one's own making that holds whole objects the unsafe way is a choice, hence a note and no more. The text
    alone shows each call of ``torch.load`` that says ``weights_only=False`` in so many words.

References
    torch.load, https://docs.pytorch.org/docs/stable/generated/torch.load.html
    Notes on serialization semantics, https://docs.pytorch.org/docs/stable/notes/serialization.html
    Python's pickle: "It is possible to construct malicious pickle data", https://docs.python.org/3/library/pickle.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Fix
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.tracing.events import CheckpointRead, Event


class Detector(failure.Detector):
    """Looks at how every file was loaded."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (CheckpointRead,)

    def observe(self, event: CheckpointRead) -> Evidence | None:
        """Return evidence where a file was loaded with ``weights_only=False``."""
        if event.weights_only is not False:
            return None
        return Evidence(
            message=f"{event.file.name} was loaded with weights_only=False: any code in it was run.",
            location=event.place,
        )


def find(source: Source) -> Iterator[Hit]:
    """Yield the calls of ``torch.load`` that are told ``weights_only=False``."""
    for call in source.calls("torch.load", "torch.serialization.load"):
        for option in call.keywords:
            value = option.value
            if option.arg == "weights_only" and isinstance(value, ast.Constant) and value.value is False:
                edit = source.text.replace(value, "True")
                yield Hit(
                    message="torch.load with weights_only=False runs whatever code the file holds.",
                    node=call,
                    fix=Fix((edit,), safe=False, words="Load tensors and plain values only"),
                )


RULE = Rule(words=("load", "weights_only", "False"), find=find)


FAILURE = Failure(
    code="CKP003",
    title="A checkpoint is loaded in the way that may run code in it",
    severity=Severity.NOTE,
    doc=__doc__ or "",
    bad="""
import os
import tempfile
import torch
from torch import nn

model = nn.Linear(4, 2)
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "model.pt")
    torch.save(model.state_dict(), path)
    model.load_state_dict(torch.load(path, weights_only=False))
""",
    good="""
import os
import tempfile
import torch
from torch import nn

model = nn.Linear(4, 2)
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "model.pt")
    torch.save(model.state_dict(), path)
    model.load_state_dict(torch.load(path, weights_only=True))
""",
    fix="Save state dictionaries and load them with weights_only=True.",
    rule=RULE,
    detector=Detector,
)
