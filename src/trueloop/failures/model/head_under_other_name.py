"""A new head is assigned to an attribute that the model's ``forward`` does not use.

What you see
    Fine-tuning has no effect: the loss does not fall, and the model still predicts the classes for which it was trained
    before, or as many classes as before.

Why it happens
    ``model.fc = nn.Linear(512, 3)`` replaces the last layer of a ResNet, which is called ``fc``. In a VGG or a DenseNet
    it is called ``classifier``. Python creates the attribute ``fc``, PyTorch registers it, an optimizer accepts its
    parameters, and ``forward`` never calls it.

Fix
    Assign the new head to the attribute that ``forward`` calls; ``print(model)`` shows its name.

        model = torchvision.models.densenet121(weights="DEFAULT")
        model.classifier = nn.Linear(model.classifier.in_features, 3)

When this is fine
    - The program calls the new layer itself: ``model.fc(model.features(x))``.
    - A wrapper or a hook calls it, or the model calls all of its children.

How it is detected
    Only the linter finds it, from the source code: a layer of PyTorch is assigned to an attribute of a model whose
    class is in the program and never mentions this attribute, or of a model of torchvision whose head has another name.
    The program uses the attribute only for its parameters, and calls ``backward()``.

References
    torchvision, "Finetuning Torchvision Models", on the names of the last layers,
    https://docs.pytorch.org/tutorials/beginner/finetuning_torchvision_models_tutorial.html
"""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import assigned_in, function_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, dotted_name, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_HEADS: Final = {
    "classifier": ("alexnet", "convnext", "densenet", "efficientnet", "mobilenet", "mnasnet", "squeezenet", "vgg"),
    "fc": ("googlenet", "inception", "regnet", "resnet", "resnext", "shufflenet", "wide_resnet"),
    "head": ("swin",),
    "heads": ("vit",),
}
"""Attribute of the last layer -> families of models in torchvision."""
_FOR_PARAMETERS: Final = frozenset((
    "apply", "bias", "eval", "in_features", "named_parameters", "out_features", "parameters", "requires_grad_",
    "state_dict", "to", "train", "weight",
))  # fmt: skip
_DYNAMIC: Final = frozenset(("__getattr__", "_modules", "children", "getattr", "modules", "named_children"))
_LAYERS: Final = ("torch.nn.Linear", "torch.nn.Sequential", "torch.nn.Conv2d", "torch.nn.Identity")
_MAX_ALIASES: Final = 4


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each layer that is assigned to an attribute that its model does not use."""
    for statement in source.nodes_of(ast.Assign):
        if len(statement.targets) != 1:
            continue
        target, value = statement.targets[0], statement.value
        if (
            not isinstance(target, ast.Attribute)
            or not isinstance(value, ast.Call)
            or dotted_name(target.value) == "self"
        ):
            continue
        created = _created(source, target.value) if source.qualified_name(value.func) in _LAYERS else None
        expected = _expected_head(source, created, target.attr) if created is not None else None
        if created is not None and expected is not None and not _is_used(source, target.attr):
            head = f": its last layer is `{expected}`" if expected else ""
            fix = Fix(
                (source.text.replace(target, f"{ast.unparse(target.value)}.{expected}"),),
                safe=False,
                description="Replace the last layer",
            )
            yield Hit(
                message=f"`{ast.unparse(created.func)}` does not use the attribute `{target.attr}`, so the new layer "
                f"is never called{head}.",
                node=statement,
                related=((created, "the model is created here"),),
                fix=fix if expected else None,
            )


def _created(source: SourceFile, model: ast.expr) -> ast.Call | None:
    """Return the call that creates a model; None unless there is exactly one."""
    for _ in range(_MAX_ALIASES):
        name = dotted_name(model)
        values = assigned_in(function_of(source, model), name) if name else []
        if len(values) != 1:
            return None
        model = values[0]
        if isinstance(model, ast.Call):
            return model
    return None


def _expected_head(source: SourceFile, created: ast.Call, attribute: str) -> str | None:
    """Return the attribute of the last layer, or "" if it is unknown; None if the model may use the attribute."""
    name = last_name(created.func)
    classes = [each for each in source.nodes_of(ast.ClassDef) if each.name == name]
    if classes:
        is_module = [last_name(each) for each in classes[0].bases] == ["Module"]
        return "" if len(classes) == 1 and is_module and not _mentions(classes[0], attribute) else None
    if not source.qualified_name(created.func).startswith("torchvision.models."):
        return None
    found = [head for head, families in _HEADS.items() if name.lower().startswith(families)]
    is_other_head = attribute in _HEADS and len(found) == 1 and found[0] != attribute
    return found[0] if is_other_head else None


def _mentions(definition: ast.ClassDef, attribute: str) -> bool:
    """Return True if a class may use one of its attributes."""
    for each in walk(definition):
        name = getattr(each, "attr", getattr(each, "id", getattr(each, "name", "")))
        if name == attribute or name in _DYNAMIC or getattr(each, "value", None) == attribute:
            return True
    return False


def _is_used(source: SourceFile, attribute: str) -> bool:
    """Return True if the program uses an attribute of this name for anything else than its parameters."""
    for each in source.nodes_of(ast.Attribute):
        if each.attr == attribute and isinstance(each.ctx, ast.Load):
            parent: Any = source.parents.get(id(each))
            is_own = isinstance(each.value, ast.Name) and each.value.id == "self"  # of another class
            if not is_own and (not isinstance(parent, ast.Attribute) or parent.attr not in _FOR_PARAMETERS):
                return True
        if each.attr == "forward" and isinstance(each.ctx, ast.Store):
            return True
    return False


RULE = Rule(required_words=("backward(", "nn.|Linear", "."), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.classifier = nn.Linear(8, 16), nn.Linear(16, 6)

    def forward(self, x):
        return self.classifier(torch.relu(self.features(x)))


model = Net()
model.features.requires_grad_(False)
model.fc = nn.Linear(16, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(torch.randn(32, 8)), torch.randint(3, (32,))).backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="MDL022",
    title="A new head has a name that forward does not use",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"model.fc = nn": "model.classifier = nn"}),
    fix="Assign the new layer to the attribute that forward() calls; print(model) shows it.",
    rule=RULE,
)
