"""A layer or a Parameter is created in the forward pass, with new values in every call.

What you see
    The model gives different outputs for the same input, also in eval mode. The loss falls little, because the other
    layers learn to ignore the random layer. A saved model does not contain its weights. A dropout layer that is
    created in the forward pass drops values in eval mode too.

Why it happens
    PyTorch allows you to create and call a layer anywhere. After each update the layer is deleted together with its
    gradients. If it is assigned to ``self`` in every call, the optimizer does not contain the new layer. The same is
    true of an ``nn.Parameter``. A new dropout layer is in train mode: ``model.eval()`` reached only layers that
    existed when it was called.

Fix
    Create the layer in ``__init__`` and call it in ``forward``:

        x = nn.Linear(8, 16)(x)  # wrong, in forward
        self.body = nn.Linear(8, 16)  # right, in __init__
        x = self.body(x)  # right, in forward

    If a size is known in ``forward`` only, use ``nn.LazyLinear`` or ``nn.LazyConv2d``.

When this is fine
    - The layer is a loss, an activation, a pooling or a normalisation layer, which has no random weights.
    - A condition creates the layer only once, or the layer is frozen, stored, passed on or created under ``no_grad``.
    - You set the weights afterwards, such as those of a Sobel filter.
    - The mode of a new dropout layer is set, ``nn.Dropout(0.5).train(self.training)``, or its rate is 0.
    - The Parameter has ``requires_grad=False``, or ``forward`` itself optimises it, such as an adversarial change.

How it is detected
    Only the linter finds it, from the source code: a dropout layer or one with random weights that ``forward`` creates
    without a condition, and uses in no other way than to call it, or an ``nn.Parameter`` in a ``forward`` that computes
    no gradients itself. Random weights may be intended as an augmentation, so this is a warning. A run cannot show it,
    because meta-learning copies models in a similar way.

References
    wangyida/softpool#11, "I've been debugging for more than 3 days", https://github.com/wangyida/softpool/issues/11
    pytorch/pytorch#1291, https://github.com/pytorch/pytorch/issues/1291
    Project-MONAI/MONAI#8578, an output layer set in the forward method,
    https://github.com/Project-MONAI/MONAI/pull/8578
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity

RANDOM: Final = frozenset((
    *(f"torch.nn.{name}{n}d" for name in ("Conv", "ConvTranspose", "LazyConv", "LazyConvTranspose") for n in (1, 2, 3)),
    *(f"torch.nn.{name}" for name in (
        "Linear", "LazyLinear", "Bilinear", "Embedding", "EmbeddingBag", "LSTM", "GRU", "RNN", "LSTMCell", "GRUCell",
        "RNNCell", "MultiheadAttention", "TransformerEncoderLayer", "TransformerDecoderLayer",
    )),
))  # fmt: skip
"""Layers with random initial weights; a new normalisation layer always has the same weights, 1 and 0."""
DROPOUT: Final = frozenset(
    f"torch.nn.{name}" for name in ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout")
)
MOVES: Final = frozenset(("to", "cuda", "cpu", "float", "double", "half", "bfloat16"))
PARAMETER: Final = frozenset(("torch.nn.Parameter", "torch.nn.parameter.Parameter"))
_OWN_GRADIENTS: Final = re.compile(r"\bbackward\(|\boptim|\bgrad\(|no_grad|\.step\(")
"""Signs of a forward pass that optimises something itself, or that only wraps values."""
_DEFERRED: Final = (ast.Lambda, ast.IfExp, ast.BoolOp)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the layers and parameters that a module's forward creates unconditionally."""
    created = [call for call in source.all_calls if source.qualified_name(call.func) in RANDOM | DROPOUT | PARAMETER]
    for method in _forwards(source.tree) if created else ():
        in_method = {id(call) for call in created if method.lineno <= call.lineno <= (method.end_lineno or 0)}
        for statement in _unconditional(method.body) if in_method else ():
            for call in _created(statement, in_method):
                name = source.text.segment(call.func)
                if source.qualified_name(call.func) in PARAMETER:
                    if _is_trainable(call) and not _OWN_GRADIENTS.search(source.text.segment(method)):
                        yield Hit(
                            message=f"`forward` creates a new `{name}` in every call: no optimizer contains it, so it "
                            "is never trained.",
                            node=call,
                        )
                elif _only_called(method, statement, call):
                    is_dropout = source.qualified_name(call.func) in DROPOUT
                    if is_dropout and getattr(argument_node(call, "p", 0), "value", None) == 0:
                        continue
                    effect = "its weights are random and never trained"
                    effect = "it is in train mode, also after `eval()`" if is_dropout else effect
                    yield Hit(message=f"`forward` creates a new `{name}` in every call: {effect}.", node=call)


def _is_trainable(parameter: ast.Call) -> bool:
    return len(parameter.args) == 1 and all(each.arg == "data" for each in parameter.keywords)


def _forwards(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Yield the undecorated ``forward`` methods of derived classes."""
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef) and statement.bases:
            for method in statement.body:
                if isinstance(method, ast.FunctionDef) and method.name == "forward" and not method.decorator_list:
                    yield method


def _unconditional(block: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the simple statements outside of conditions and context managers."""
    for statement in block:
        if isinstance(statement, ast.For):
            yield from _unconditional(statement.body)
        elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return | ast.Expr):
            yield statement
        elif isinstance(statement, ast.If) and any(isinstance(each, ast.Return) for each in statement.body):
            return  # the statements after an early return run in some calls only


def _created(statement: ast.AST, created: set[int]) -> Iterator[ast.Call]:
    """Yield the layers and parameters that a statement creates; of a Sequential only the first layer."""
    queue: list[ast.AST] = [statement]
    while queue:
        node = queue.pop(0)
        if id(node) in created and isinstance(node, ast.Call):
            yield node
        elif not isinstance(node, _DEFERRED):
            queue.extend(ast.iter_child_nodes(node))


def _only_called(method: ast.FunctionDef, statement: ast.stmt, layer: ast.Call) -> bool:
    """Return True if a layer, or the Sequential around it, is called and not used in any other way."""
    nodes = list(walk(statement))
    module = _outermost_module(nodes, layer)
    if any(isinstance(each, ast.Call) and each.func is module for each in nodes):
        return True
    if not isinstance(statement, ast.Assign) or statement.value is not module or len(statement.targets) != 1:
        return False
    target = ast.unparse(statement.targets[0])
    names = list(nodes_in(method, ast.Name, ast.Attribute))
    reads = {id(each) for each in names if isinstance(each.ctx, ast.Load) and ast.unparse(each) == target}
    called = {id(each.func) for each in nodes_in(method, ast.Call)}
    return bool(reads) and reads <= called


def _outermost_module(nodes: list[ast.AST], layer: ast.Call) -> ast.expr:
    """Return the layer or the Sequential around it, including a call that moves either to a device."""
    module: ast.expr = layer
    for each in reversed(nodes):  # from the inside out
        if not isinstance(each, ast.Call):
            continue
        is_moved = isinstance(each.func, ast.Attribute) and each.func.value is module and each.func.attr in MOVES
        if is_moved or (module in each.args and ast.unparse(each.func).endswith("Sequential")):
            module = each
    return module


SCRIPT = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__(){init}
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        x = torch.relu({layer}(x))
        return self.head(x)


x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="MDL012",
    title="A layer or Parameter is created in every forward call",
    severity=Severity.WARNING,
    bad=SCRIPT.replace("{init}", "").replace("{layer}", "nn.Linear(8, 16)"),
    good=SCRIPT.replace("{init}", "\n        self.body = nn.Linear(8, 16)").replace("{layer}", "self.body"),
    fix="Create the layer or Parameter in __init__, and use it in forward.",
    rule=Rule(required_words=("torch", "def forward(", "Module", "__init__"), find=find),
)
