"""A frozen part stays in train mode, so its BatchNorm statistics change, and a model that shares the part gets worse.

What you see
    A backbone was trained for one task and then frozen, to train a new head on other data. The new head works, but
    the old task, whose weights did not change at all, has a far lower accuracy than before.

Why it happens
    ``requires_grad = False`` stops the weights, not the running mean and variance: BatchNorm updates these in every
    forward pass in train mode. ``model.train()`` puts all parts into train mode, also the frozen ones.

Fix
    Put the frozen part into eval mode after every ``model.train()``:

        model.train()
        model.backbone.eval()

    To be safe, override ``train`` in the model, so that it leaves the frozen part in eval mode.

When this is fine
    - The statistics are adapted to the new data on purpose, and only the new head is used from then on.
    - The new data have the same distribution, so the statistics hardly change.
    - The weights of the part are trained again later.

How it is detected
    In a run, the sanitizer reports two cases. (1) The program put a part with BatchNorm layers into eval mode, and
    ``train()`` of the whole model put it back into train mode, while its weights are frozen or before anything was
    trained; a part that was called on its own in between was only evaluated. (2) BatchNorm layers with frozen weights
    were in train mode while other weights were trained, the statistics of one moved by more than a quarter of a
    standard deviation, and then a model that contains them is evaluated whose other weights did not change. Which
    weights are behind an output is known from earlier backward passes through outputs of this shape, or because the
    output needed no gradient while the new head was trained. A frozen part that is called on its own is judged when a
    head that was trained or evaluated before, and has not changed since, gets its output.

    The linter reports ``train()`` in a training that follows another one and after which a part with BatchNorm layers
    was frozen, in any function, if a model or head that the first training used and the second one does not is
    evaluated afterwards, or the old task that a text names, as in ``accuracy(model, digits, "digit")``. It is silent if
    the function puts anything back into eval mode, a class has its own ``train``, or the program sets ``requires_grad``
    to True. It also reports ``train()`` in a loop if a function that puts all BatchNorm layers into eval mode is called
    only once, before the loop or in the constructor of the model; and ``train()`` of a model
    before a training step if a part whose weights are all frozen was put into eval mode before.

References
    lightly-ai/lightly#1438, "deactivate_requires_grad does not fix the model!",
    https://github.com/lightly-ai/lightly/issues/1438
    pytorch/pytorch#86590, "Easy way to freeze BatchNorm running_mean/running_var",
    https://github.com/pytorch/pytorch/issues/86590
    pgniewko/gt-pyg#112, "BatchNorm eval mode is reset by the next model.train()",
    https://github.com/pgniewko/gt-pyg/issues/112
    torch.nn.BatchNorm2d, https://docs.pytorch.org/docs/stable/generated/torch.nn.BatchNorm2d.html
"""

import weakref
from dataclasses import dataclass, field
from typing import Any, Final

from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.evaluation.frozen_statistics_drift.train_mode_in_source import RULE
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import NO_REFS, BackwardEnded, ModelCalled, ModeSet, Ref, Refs
from trueloop.tracing.weak_id_dict import WeakIdDict

MIN_SHIFT: Final = 0.25  # of the mean, in standard deviations, averaged over the channels of a layer
MIN_RATIO: Final = 1.5  # of the variances, averaged geometrically


@dataclass(slots=True)
class _Drift:
    """The statistics of a BatchNorm layer when it was first seen in train mode with frozen weights."""

    mean: Any
    variance: Any
    location: CodePosition | None
    alone: bool
    """Whether the frozen part was called as a model of its own, so that its output is the input of a head."""


@dataclass(slots=True)
class _PutToEval:
    """A part of a model that the program put into eval mode."""

    parameters: Refs
    trained: bool = False
    """Whether a model was trained since, or the part was frozen: when it learns later, train mode is right."""


@dataclass(slots=True)
class _Model:
    """What is known about a model that is called by the program."""

    parameters: Refs
    layers: list[Any]
    """Weak references to its BatchNorm layers with statistics and weights."""
    evaluated: bool = False
    """Whether it was evaluated before its statistics began to change; for a head, or trained."""
    shape: tuple[int, ...] = ()
    """Shape of the latest output in training, without the batch."""
    behind: dict[tuple[int, ...], weakref.WeakSet[Ref]] = field(
        default_factory=dict[tuple[int, ...], "weakref.WeakSet[Ref]"]
    )
    """Shape of an output -> the parameters that got gradients from it."""
    has_frozen_output: bool = False
    """Whether one of several outputs needed no gradient while the new head was trained."""


class Detector(BaseDetector):
    """Compares the statistics of frozen BatchNorm layers at evaluations.

    Cost: 2 us for each call of a model, and 0.1 us for each BatchNorm layer of a model in training.
    """

    def __init__(self) -> None:
        self._models = WeakIdDict[Ref, _Model]()
        self._called: list[_Model] = []
        """Models that were called since the latest backward pass."""
        self._put_to_eval = WeakIdDict[Any, _PutToEval]()
        self._mode_changed = False
        self._drifts = WeakIdDict[Any, _Drift]()
        self._trained_since: weakref.WeakSet[Ref] = weakref.WeakSet()
        """Parameters that got gradients since the first drift began."""
        self._body: tuple[weakref.ref[Any], Refs, int] | None = None
        """The part that was called alone, without a graph, as the latest model, its parameters and its batch size."""
        self._is_reported = False

    def on_mode_set(self, event: ModeSet) -> None:
        """Record a part that is put into eval mode."""
        self._mode_changed = True
        if event.training:
            self._put_to_eval.remove(event.live_module)
        elif _layers(event.live_module):
            frozen = not any(each.requires_grad for each in event.live_module.parameters())
            self._put_to_eval.put(event.live_module, _PutToEval(event.parameters, trained=frozen))

    def on_model_called(self, event: ModelCalled) -> Evidence | None:
        """Record frozen layers in training; return evidence at an evaluation of a model that shares them."""
        if event.recomputed or self._is_reported:
            return None
        model = self._models.get(event.model)
        if model is None or model.parameters is not event.parameters:
            evaluated = model is not None and model.evaluated
            model = self._models.put(event.model, _Model(event.parameters, _layers(event.live_module), evaluated))
        if event.has_graph:
            model.evaluated |= not (model.layers or len(self._drifts))
            return self._on_training(event, model)
        if event.batchnorm_active:
            self._record_drifts(event, model, alone=True)
        if event.all_eval:
            self._forget_evaluated(event.live_module)
            if len(self._drifts):
                return self._judge(event, model) if model.layers else self._judge_head(event, model)
            model.evaluated = True
        return None

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Record which parameters are behind the outputs."""
        if self._is_reported:
            return
        for model in self._called:
            model.behind.setdefault(model.shape, weakref.WeakSet()).update(event.reached_parameters)
        self._called.clear()
        if len(self._drifts):
            self._trained_since.update(event.reached_parameters)

    def _forget_evaluated(self, module: Any) -> None:
        """Forget the parts that are only evaluated: the module, and those that contain it."""
        for part, _ in self._put_to_eval.items() if len(self._put_to_eval) else ():
            if any(each is module for each in part.modules()):
                self._put_to_eval.remove(part)

    def _on_training(self, event: ModelCalled, model: _Model) -> Evidence | None:
        if not model.layers:
            return None
        found = self._back_in_train_mode(event) if self._mode_changed and event.batchnorm_active else None
        self._mode_changed = False
        for part in self._put_to_eval.values():
            part.trained = True
        outputs = _outputs(event.output)
        model.shape = tuple(outputs[0].shape[1:]) if outputs else ()
        self._called.append(model)
        if event.batchnorm_active and self._record_drifts(event, model, alone=False):
            model.has_frozen_output = any(not each.requires_grad for each in outputs)
        return found

    def _record_drifts(self, event: ModelCalled, model: _Model, *, alone: bool) -> bool:
        """Record the statistics of frozen layers in train mode; return whether there are some."""
        layers = [layer for each in model.layers if (layer := each()) is not None]
        frozen = [each for each in layers if each.training and not each.weight.requires_grad]
        for layer in frozen:
            if self._drifts.get(layer) is None and layer.running_mean.is_cpu:
                drift = _Drift(layer.running_mean.clone(), layer.running_var.clone(), event.location, alone)
                self._drifts.put(layer, drift)
        return bool(frozen)

    def _back_in_train_mode(self, event: ModelCalled) -> Evidence | None:
        """Return evidence for a part in eval mode that entered train mode again with the whole model."""
        inner = {id(each): name for name, each in event.live_module.named_modules()}
        for part, put in self._put_to_eval.items():
            if id(part) not in inner or part is event.live_module or put.parameters == event.parameters:
                continue
            layers = [layer for each in _layers(part) if (layer := each()) is not None and layer.training]
            if layers and not (put.trained and any(each.weight.requires_grad for each in layers)):
                self._is_reported = True
                return Evidence(
                    message=f"`{inner[id(part)]}` was put into eval mode, but `train()` of {event.model.name} put it "
                    "back into train mode: its BatchNorm layers update their statistics in training.",
                    location=event.location,
                )
        return None

    def _judge(self, event: ModelCalled, model: _Model) -> Evidence | None:
        outputs = _outputs(event.output)
        if outputs and outputs[0].ndim:
            self._body = weakref.ref(event.live_module), event.parameters, len(outputs[0])
        behind = model.behind.get(tuple(outputs[0].shape[1:]) if outputs else ())
        is_old = (
            self._trained_since.isdisjoint(event.parameters)
            or model.has_frozen_output
            or (behind is not None and len(behind) > 0 and self._trained_since.isdisjoint(behind))
        )
        if not is_old or not (model.evaluated or model.behind):
            return None
        return self._moved_statistics(event.live_module, event, alone=False)

    def _judge_head(self, event: ModelCalled, head: _Model) -> Evidence | None:
        """Return evidence if an old head, whose weights did not change, gets the output of a part that moved."""
        body, parameters, size = self._body or (None, NO_REFS, 0)
        module, inputs = None if body is None else body(), event.inputs
        if (
            module is None
            or not head.evaluated
            or not event.parameters
            or inputs is None
            or inputs.shape[:1] != (size,)
        ):
            return None
        if not self._trained_since or not self._trained_since.isdisjoint(event.parameters | parameters):
            return None
        return self._moved_statistics(module, event, alone=True)

    def _moved_statistics(self, module: Any, event: ModelCalled, *, alone: bool) -> Evidence | None:
        for name, layer in module.named_modules():
            drift = self._drifts.get(layer)
            moved = "" if drift is None or drift.alone is not alone else _describe_shift(layer, drift)
            if drift is not None and moved:
                self._is_reported = True
                return Evidence(
                    message=f"The weights behind this output of {event.model.name} did not change, but the BatchNorm "
                    f"layer `{name}`, which is frozen, was in train mode while other parameters were trained: {moved}.",
                    location=drift.location,
                )
        return None


def _layers(module: Any) -> list[Any]:
    from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]

    found = [each for each in module.modules() if isinstance(each, _BatchNorm)]
    return [weakref.ref(each) for each in found if each.running_mean is not None and each.affine]


def _outputs(output: Any) -> list[Any]:
    """Return the tensors among the outputs of a model."""
    from torch import Tensor

    values = output.values() if isinstance(output, dict) else output if isinstance(output, tuple | list) else [output]
    return [each for each in values if isinstance(each, Tensor)]


def _describe_shift(layer: Any, drift: _Drift) -> str:
    """Return in words how far the statistics of a layer moved; "" = not far, or not readable."""
    if layer.training or layer.running_mean is None or layer.running_mean.shape != drift.mean.shape:
        return ""
    deviation = (drift.variance + layer.eps).sqrt()
    shift = float(((layer.running_mean - drift.mean).abs() / deviation).mean())
    ratio = float((((layer.running_var + layer.eps) / deviation**2).log().abs().mean()).exp())
    if shift > MIN_SHIFT:
        return f"its running mean moved by {shift:.1f} standard deviations"
    return f"its running variance changed by a factor of {ratio:.1f}" if ratio > MIN_RATIO else ""


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
backbone = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
old = nn.Sequential(backbone, nn.Linear(16, 3))
new = nn.Sequential(backbone, nn.Linear(16, 2))
x = torch.randn(256, 8)
y = x[:, :3].argmax(1)

def fit(model, x, y):
    optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], lr=0.02)
    for epoch in range(6):
        model.train()
        for rows in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()

def accuracy(model, x, y):
    model.eval()
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()

fit(old, x, y)
print(f"old task {accuracy(old, x, y):.2f}")
backbone.requires_grad_(False)
shifted = 3 * torch.randn(256, 8) + 2
fit(new, shifted, (shifted[:, 0] > 2).long())
print(f"old task {accuracy(old, x, y):.2f}")
"""

FAILURE = Failure(
    code="EVL022",
    title="Statistics of frozen BatchNorm layers change",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=BAD,
    good=changed(BAD, {"        model.train()\n": "        model.train()\n        model[0].train(old is model)\n"}),
    fix="Call .eval() on the frozen part after each model.train().",
    rule=RULE,
    detector=Detector,
)
