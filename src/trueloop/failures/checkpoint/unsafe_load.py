"""``torch.load(weights_only=False)`` runs any code that the checkpoint contains.

What you see
    Nothing, until you load a file that contains malicious code: loading the file runs this code with your permissions.

Why it happens
    ``weights_only=False`` reads the file with Python's ``pickle``, and a pickle file can run any code when it is read.

Fix
    Save only state_dicts and plain values, and load with ``weights_only=True``. If the file contains objects of your
    own classes, allow these classes by name. For weights that others publish, prefer the safetensors format.

        torch.serialization.add_safe_globals([MyConfig])
        state = torch.load(path, weights_only=True)

When this is fine
    - You load with ``weights_only=True``, the default since PyTorch 2.6: it allows tensors, numbers,
      strings, lists and dicts.
    - You wrote the file yourself and need the objects in it. Therefore this is only a note.

How it is detected
    In a run, the sanitizer reports each file that is loaded with ``weights_only=False``. The linter reports each call
    of ``torch.load`` with ``weights_only=False``.

References
    torch.load, https://docs.pytorch.org/docs/stable/generated/torch.load.html
    Notes on serialization semantics, https://docs.pytorch.org/docs/stable/notes/serialization.html
    Python's pickle: "It is possible to construct malicious pickle data", https://docs.python.org/3/library/pickle.html
"""

import ast
from collections.abc import Iterator

from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Fix
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import CheckpointRead


class Detector(BaseDetector):
    """Checks how every checkpoint was loaded."""

    def on_checkpoint_read(self, event: CheckpointRead) -> Evidence | None:
        """Return evidence if a file was loaded with ``weights_only=False``."""
        if event.weights_only is not False:
            return None
        return Evidence(
            message=f"{event.file.name} was loaded with weights_only=False, which runs any code in the file.",
            location=event.location,
        )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the calls of ``torch.load`` with a literal ``weights_only=False``."""
    for call in source.calls_of("torch.load", "torch.serialization.load"):
        for option in call.keywords:
            value = option.value
            if option.arg == "weights_only" and isinstance(value, ast.Constant) and value.value is False:
                edit = source.text.replace(value, "True")
                yield Hit(
                    message=f"`{source.text.segment(call.func)}` with weights_only=False runs any code "
                    "that the file contains.",
                    node=call,
                    fix=Fix((edit,), safe=False, description="Load only tensors and plain values"),
                )


RULE = Rule(required_words=("load", "weights_only", "False"), find=find)


BAD = """
import os
import tempfile
import torch
from torch import nn

model = nn.Linear(4, 2)
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "model.pt")
    torch.save(model.state_dict(), path)
    model.load_state_dict(torch.load(path, weights_only=False))
"""

FAILURE = Failure(
    code="CKP003",
    title="torch.load runs code from the checkpoint",
    severity=Severity.NOTE,
    bad=BAD,
    good=changed(
        BAD,
        {
            "model.load_state_dict(torch.load(path, weights_only=False))": (
                "model.load_state_dict(torch.load(path, weights_only=True))"
            )
        },
    ),
    fix="Save state_dicts and load them with weights_only=True.",
    rule=RULE,
    detector=Detector,
)
