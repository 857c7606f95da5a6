"""A layer keeps the noise that it drew when it was created, because ``reset_noise()`` is never called again.

What you see
    A network with noisy layers explores no more than one without: the same state always gets the same action. The
    layers learn to live with their noise, and the scores in eval mode, without it, are worse.

Why it happens
    A noisy layer stores its noise in a buffer, so that several calls can share it. ``forward`` only reads the buffer;
    new noise comes from a method of its own, which the layer calls once, in ``__init__``. The program has to call it
    during the training.

Fix
    Draw new noise after each update, for the target network as well:

        optimizer.step()
        network.reset_noise()
        target_network.reset_noise()

When this is fine
    - ``forward`` draws the noise itself.
    - The method is called elsewhere, through the network, ``apply`` or another name.

How it is detected
    Only the linter finds it, from the source code: a module whose ``forward`` reads values that only a method with
    "noise" in its name draws, in a program with a backward pass, where only constructors and methods of the same
    name call this method.

References
    Fortunato et al., "Noisy Networks for Exploration", 2017, arXiv:1706.10295
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed
from trueloop.failures.model.weight_never_registered import SCRIPT

_NAME: Final = re.compile(r"^_?(reset|sample|resample|renew|refresh|draw|new|update|generate)_\w*noise")
_RANDOM: Final = re.compile(r"randn|rand\(|normal|uniform_|noise\(")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each method that draws the noise of a layer and is only called when the layer is created."""
    for definition in definitions(source).classes.values():
        methods = {each.name: each for each in definition.body if isinstance(each, ast.FunctionDef)}
        if "forward" not in methods or not any(last_name(each).endswith("Module") for each in definition.bases):
            continue
        for name, method in methods.items():
            if not _NAME.search(name) or not _drawn(method) & _read(methods["forward"]) or _is_called(source, name):
                continue
            functions = [e for e in source.nodes_of(ast.FunctionDef) if e.name == name and e is not method]
            outer = [e for e in functions if any(last_name(each.func) == name for each in nodes_in(e, ast.Call))]
            yield Hit(
                message=f"Nothing calls `{name}()` after the layers are created: `{definition.name}` keeps its first "
                "noise for the whole training.",
                node=outer[0] if outer else method,
                related=((method, "draws the noise"),) if outer else (),
            )


def _drawn(method: ast.FunctionDef) -> set[str]:
    """Return the attributes that a method sets to random values."""
    if not _RANDOM.search(ast.unparse(method)):
        return set()
    found = {each.attr for each in nodes_in(method, ast.Attribute) if isinstance(each.ctx, ast.Store)}
    for call in nodes_in(method, ast.Call):
        parts = dotted_name(call.func).split(".")
        if parts[0] == "self" and len(parts) > 2 and parts[-1].endswith("_"):
            found.add(parts[1])
    return found


def _read(forward: ast.FunctionDef) -> set[str]:
    attributes = nodes_in(forward, ast.Attribute)
    return {each.attr for each in attributes if dotted_name(each.value) == "self"}


def _is_called(source: SourceFile, name: str) -> bool:
    """Return True if code other than constructors and methods of the same name calls a method, or refers to it."""
    functions = [function_of(source, each) for each in definitions(source).attributes.get(name, ())]
    if any(getattr(each, "name", "") not in ("__init__", name) for each in functions):
        return True
    is_text = any(isinstance(each.value, str) and each.value == name for each in source.nodes_of(ast.Constant))
    return is_text or source.is_in_other_file(f".{name}(")


NOISY = changed(
    SCRIPT,
    {
        "{scale}": "nn.Parameter(torch.ones(8))\n        self.reset_noise()\n\n"
        "    def reset_noise(self):\n        self.noise = torch.randn(8)",
        "self.body(x) * self.scale": "self.body(x + self.scale * self.noise)",
    },
)

FAILURE = Failure(
    code="MDL045",
    title="A noisy layer never draws new noise",
    severity=Severity.WARNING,
    bad=NOISY,
    good=changed(NOISY, {"    optimizer.step()\n": "    optimizer.step()\n    model.reset_noise()\n"}),
    fix="Call reset_noise() of the networks after each update.",
    rule=Rule(required_words=("noise(", "backward(", "def forward("), find=find),
)
