"""A layer or loss is created with a tensor as its setting, instead of being called with it.

What you see
    An error appears later and elsewhere: ``'NLLLoss' object has no attribute 'backward'``, ``linear(): argument
    'input' must be Tensor, not ReLU``. Where the result is only stored or printed, nothing happens at all.

Why it happens
    ``nn.ReLU(x)`` and ``nn.NLLLoss(output, labels)`` call the constructor. PyTorch does not check the settings:
    ``nn.ReLU(x)`` is a layer whose ``inplace`` is the tensor.

Fix
    Create the layer first, then call it, or use the function:

        loss = nn.NLLLoss()(output, labels)
        loss = F.nll_loss(output, labels)
        y = torch.relu(x)

When this is fine
    - The tensor is a setting: the weights of the classes in ``nn.CrossEntropyLoss(weights)``.

How it is detected
    Only the linter finds it, from the source code. It reports an activation, dropout or pooling layer that is created
    with the result of a PyTorch operation or layer, and a loss whose second setting is a tensor or has a name of
    labels.

References
    torch.nn.Module, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
"""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.abstract_value import ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.batch_loops import is_label
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import Edit, Fix
from trueloop.failures.failure import Failure, Rule, Severity, changed

LAYERS: Final = frozenset(
    f"torch.nn.{name}"
    for name in (
        *("ReLU", "ReLU6", "LeakyReLU", "ELU", "SELU", "GELU", "SiLU", "Mish", "PReLU", "Sigmoid", "Tanh", "Softmax"),
        *("LogSoftmax", "Softmax2d", "LogSigmoid", "Softplus", "Hardswish", "Flatten", "Dropout", "Dropout2d"),
        *("MaxPool1d", "MaxPool2d", "AvgPool1d", "AvgPool2d"),
    )
)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each layer and loss that is created with the tensors that it should be called with."""
    for created in source.ops(OpKind.CREATE):
        call = created.node
        if not isinstance(call, ast.Call) or not created.name.startswith("torch.nn.") or call not in source.all_calls:
            continue
        if _gets_tensor(created) if created.name in LAYERS else _gets_prediction(created):
            start = source.text.span(call.func)[1]
            yield Hit(
                message=f"`{ast.unparse(call)}` creates a {created.name.rpartition('.')[2]}, it does not call one: the "
                "tensors are taken for its settings.",
                node=call,
                fix=Fix((Edit(start, start, "()"),), safe=False, description="Create it without settings, and call it"),
            )


def _gets_tensor(created: Op) -> bool:
    """Return True if the first setting of a layer is the result of an operation or layer."""
    first = created.inputs[0] if created.inputs and created.node.args else None
    return first is not None and first.kind is ValueKind.TENSOR and isinstance(first.node, ast.Call)


def _gets_prediction(created: Op) -> bool:
    """Return True if the settings of a loss are a prediction and its labels."""
    arguments = created.node.args
    if created.subject.kind is not ValueKind.LOSS or len(arguments) < 2:
        return False
    return created.inputs[1].kind is ValueKind.TENSOR or is_label(arguments[1])


RULE = Rule(
    required_words=("LU(|Sigmoid(|Tanh(|oftmax|Mish(|Softplus(|swish(|Flatten(|Dropout|Pool|Loss", "nn"), find=find
)

BAD = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 4)

    def forward(self, x):
        hidden = self.body(x)
        gate = nn.ReLU(hidden)
        print(type(gate))
        return hidden


print(Net()(torch.randn(16, 8)).shape)
"""

FAILURE = Failure(
    code="MDL018",
    title="A layer or loss is created instead of called",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(BAD, {"nn.ReLU(hidden)": "nn.ReLU()(hidden)"}),
    fix="Create the layer or loss first, and call it with the tensors.",
    rule=RULE,
)
