"""Dropout gets the probability to keep a value, so it drops nearly everything.

What you see
    With ``keep_prob = 0.9`` the training loss stays high and is very noisy, while the validation loss, without dropout,
    is lower. A smaller ``keep_prob`` helps, against all expectations.

Why it happens
    The argument of ``nn.Dropout`` and ``F.dropout`` is the probability that a value is set to zero. In TensorFlow 1 and
    in many papers it is the probability that a value is kept.

Fix
    Pass one minus the probability to keep:

        nn.Dropout(keep_prob)      # wrong: drops 90 % of the values for keep_prob = 0.9
        nn.Dropout(1 - keep_prob)  # right

When this is fine
    - The program passes ``1 - keep_prob``, perhaps in a variable.
    - The value is known to be 0.5 or less, so that only its name is wrong.
    - The layer belongs to another framework, such as MindSpore or TensorFlow.

How it is detected
    Only the linter finds it: a dropout layer or function of PyTorch whose probability is a variable, attribute, item or
    argument called ``keep_prob``, ``p_keep`` or the like. The argument ``dropout`` of
    recurrent and attention layers counts, too.

References
    piergiaj/pytorch-i3d#58, "Wrong assigning of dropout probability", https://github.com/piergiaj/pytorch-i3d/issues/58
    hassony2/kinetics_i3d_pytorch#6, "Dropout: opposite meaning?",
    https://github.com/hassony2/kinetics_i3d_pytorch/issues/6
    torch.nn.Dropout, https://docs.pytorch.org/docs/stable/generated/torch.nn.Dropout.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, encloses
from trueloop.failures.failure import Failure, Rule, Severity, changed

_KEPT: Final = re.compile(r"(^|_)(keep|kept|retain)(_?(prob|probability|rate|ratio|p))|(^|_)p_?keep$|(^|_)keep$", re.I)
_DROPOUT: Final = re.compile(r"(?i)^(feature_)?(alpha_?)?dropout([123]d)?_?$|^featurealphadropout$")
_LAYERS: Final = frozenset((
    "RNN", "LSTM", "GRU", "Transformer", "TransformerEncoderLayer", "TransformerDecoderLayer", "MultiheadAttention",
    "scaled_dot_product_attention",
))  # fmt: skip
_HALF: Final = 0.5  # from here on, more values are kept than dropped


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each dropout whose probability is called the one to keep."""
    for call in source.all_calls:
        probability = _probability(source, call)
        if probability is None:
            continue
        values = list(origins(source, probability))
        kept = next((each for each in values if _KEPT.search(_name(each))), None)
        if kept is None or any(isinstance(each, ast.BinOp) for each in values) or _is_low(source, kept, values):
            continue
        is_plain = kept is probability
        edit = source.text.replace(probability, f"1 - {ast.unparse(probability)}") if is_plain else None
        yield Hit(
            message=f"`{ast.unparse(call.func)}` drops values with the probability `{ast.unparse(kept)}`, which is "
            "called the probability to keep them.",
            node=call,
            related=((kept, "the probability to keep"),) if not encloses(call, kept) else (),
            fix=Fix((edit,), safe=False, description="Pass one minus this probability") if edit else None,
        )


def _probability(source: SourceFile, call: ast.Call) -> ast.expr | None:
    """Return the probability of a dropout of PyTorch; None for other calls."""
    name = last_name(call.func)
    is_dropout = bool(_DROPOUT.match(name))
    if not (is_dropout or name in _LAYERS) or not source.qualified_name(call.func).startswith("torch."):
        return None
    if is_dropout:
        return argument_node(call, "p", 0 if name[0].isupper() else 1)
    return next((each.value for each in call.keywords if each.arg in ("dropout", "dropout_p")), None)


def _name(node: ast.expr) -> str:
    """Return the name of a variable or attribute, or the key of an item."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return last_name(node)


def _is_low(source: SourceFile, kept: ast.expr, values: list[ast.expr]) -> bool:
    """Return True if all known values of a probability are so low that they drop no more than they keep."""
    known = [each.value for each in values if isinstance(each, ast.Constant)]
    known += [value for value in _defaults(source, _name(kept)) if not known]
    numbers = [each for each in known if isinstance(each, int | float)]
    return bool(numbers) and all(each <= _HALF for each in numbers)


def _defaults(source: SourceFile, name: str) -> Iterator[Any]:
    """Yield the constant defaults of the parameters and command line arguments with a name."""
    for function in source.nodes_of(ast.FunctionDef):
        parameters = function.args.args[len(function.args.args) - len(function.args.defaults) :]
        for parameter, default in zip(parameters, function.args.defaults, strict=True):
            if parameter.arg == name and isinstance(default, ast.Constant):
                yield default.value
    for call in source.all_calls:
        option = call.args[0] if call.args and last_name(call.func) == "add_argument" else None
        if isinstance(option, ast.Constant) and str(option.value).lstrip("-").replace("-", "_") == name:
            values = [each.value for each in call.keywords if each.arg == "default"]
            yield from (each.value for each in values if isinstance(each, ast.Constant))


RULE = Rule(required_words=("keep|kept|retain", "ropout"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
keep_prob = 0.9
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(keep_prob), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
print(loss.item())
"""

FAILURE = Failure(
    code="MDL025",
    title="Dropout gets the probability to keep",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"nn.Dropout(keep_prob)": "nn.Dropout(1 - keep_prob)"}),
    fix="Pass one minus the probability to keep.",
    rule=RULE,
)
