"""A frozen teacher computes the targets of another model with active dropout.

What you see
    Distillation helps little: the student stays worse than the teacher by more than expected, and its loss stays high
    and noisy. The teacher's targets for one sample differ from epoch to epoch.

Why it happens
    A model starts in train mode and stays in it, also after ``load_state_dict``, until ``eval()`` is called.
    ``torch.no_grad()`` turns off gradients, not dropout, so each target comes from another random part of the teacher.

Fix
    Put the teacher into eval mode, and again after every ``train()`` of a module that contains it:

        teacher.eval()
        with torch.no_grad():
            targets = teacher(x)

When this is fine
    - The teacher keeps changing, such as a moving average of the student, which gets noise on purpose.
    - The teacher is called several times for one batch, to average over dropout (MC dropout).
    - The model has no dropout. BatchNorm in train mode is not reported: some methods use it on purpose.
    - The output of the frozen model is an input of the trained one, not its target.

How it is detected
    In a run, the sanitizer reports a model with active dropout whose output gave the targets of a loss in ten updates,
    while its own weights did not change. The targets are equal to the output, or are largest for the same
    class, or are that class. For a ``kl_div``, whose targets cannot be read, another model must have got the same
    input, and the output must have the shape of the loss before it is averaged.

References
    vrvlive/knowlege-distillation#2, "teacher.eval() when performing distillation",
    https://github.com/vrvlive/knowlege-distillation/issues/2
    Hinton, Vinyals and Dean 2015, "Distilling the Knowledge in a Neural Network", https://arxiv.org/abs/1503.02531
    torch.nn.Module.eval, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
"""

import weakref
from dataclasses import dataclass
from typing import Any, Final

from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import BackwardStarted, LossRecord, ModelCalled, Ref, Refs, StepTaken
from trueloop.tracing.parameter_snapshot import first_inputs, first_values
from trueloop.tracing.weak_id_dict import WeakIdDict

MIN_UPDATES: Final = 10
MIN_STILL: Final = 3  # updates without a step of the model before it counts as frozen
MIN_ROWS: Final = 4  # of the targets that are compared
MAX_VALUES: Final = 1 << 20  # of the outputs that are compared


@dataclass(slots=True)
class _Teacher:
    """A model with active dropout, and its latest call."""

    parameters: Refs
    module: Any
    """Weak reference to the module."""
    location: CodePosition | None = None
    shape: tuple[int, ...] = ()
    """Shape of its latest output."""
    largest: Any = None
    """Positions of the largest values of its latest output; None = not compared."""
    values: tuple[float, ...] = ()
    """First values of its latest output."""
    inputs: object = None
    """Shape and first values of its latest input."""
    is_sampled: bool = False
    """Whether it was called twice for one input between two backward passes."""
    trained: int = -MIN_STILL
    """The latest update that changed its weights."""
    weights: tuple[tuple[float, ...], ...] = ()
    """First values of its weights when its output was first the target of a loss."""
    updates: int = 0
    """Number of updates in which its output was the target of a loss."""
    latest: int = -1


class Detector(BaseDetector):
    """Compares the targets of losses with the outputs of models with active dropout.

    Cost: 10 us for each call of a model with active dropout, and the comparison of targets in ten updates.
    """

    def __init__(self) -> None:
        self._teachers = WeakIdDict[Ref, _Teacher]()
        self._called: dict[Ref, None] = {}
        """Models with active dropout that were called since the latest backward pass."""
        self._inputs: list[tuple[Ref, object]] = []
        """Models whose outputs have a graph, with their inputs since the latest backward pass."""
        self._reported: weakref.WeakSet[Ref] = weakref.WeakSet()

    def on_model_called(self, event: ModelCalled) -> None:
        """Record the inputs of a call, and the output of a model with active dropout."""
        if event.recomputed or event.model in self._reported:
            return
        inputs = (event.inputs.shape, first_inputs(event)) if event.inputs is not None else None
        if event.has_graph and inputs is not None:
            self._inputs.append((event.model, inputs))
        output = _tensor(event.output) if event.dropout_active else None
        if output is None or inputs is None:
            return
        teacher = self._teachers.get(event.model)
        if teacher is None or teacher.parameters is not event.parameters:
            teacher = self._teachers.put(event.model, _Teacher(event.parameters, weakref.ref(event.live_module)))
        teacher.is_sampled |= event.model in self._called and teacher.inputs == inputs
        teacher.inputs, teacher.location, teacher.shape = inputs, event.location, tuple(output.shape)
        is_still = event.update - teacher.trained >= MIN_STILL  # comparing the outputs of a trained model would be slow
        is_distribution = is_still and output.dim() > 1 and output.shape[1] > 1 and output.numel() <= MAX_VALUES
        teacher.largest = output.argmax(1) if is_distribution else None
        teacher.values = first_values(output)
        self._called[event.model] = None

    def on_step_taken(self, event: StepTaken) -> None:
        """Forget the models that are trained."""
        stepped = set(event.parameters)
        for model in self._called:
            teacher = self._teachers.get(model)
            if teacher is not None and not stepped.isdisjoint(teacher.parameters):
                teacher.trained, teacher.updates = event.update, 0
        self._called.clear()
        self._inputs.clear()

    def on_backward_started(self, event: BackwardStarted) -> list[Evidence]:
        """Return evidence if the targets of a loss came from a frozen model with active dropout for the tenth time."""
        found: list[Evidence] = []
        for model in self._called if event.losses else ():
            teacher = self._teachers.get(model)
            if teacher is None or teacher.is_sampled or teacher.latest == event.update:
                continue
            if event.update - teacher.trained < MIN_STILL:
                continue
            if any(self._is_target(each, model, teacher) for each in event.losses) and _is_frozen(teacher):
                teacher.latest = event.update
                teacher.updates += 1
            if teacher.updates >= MIN_UPDATES:
                self._reported.add(model)
                found.append(
                    Evidence(
                        message=f"{model.name} makes the targets of another model in train mode, with active dropout, "
                        f"and its own weights did not change in {MIN_UPDATES} updates: the targets are random. Call "
                        "eval() on it.",
                        location=teacher.location,
                    )
                )
        self._inputs.clear()
        return found

    def _is_target(self, loss: LossRecord, model: Ref, teacher: _Teacher) -> bool:
        """Return True if the targets of a loss come from a model.

        The targets of a ``kl_div`` cannot be read, and others are not read in every update. Then it counts that another
        model got the same input.
        """
        targets = _tensor(loss.targets)
        if targets is None:
            is_pair = any(other is not model and inputs == teacher.inputs for other, inputs in self._inputs)
            is_known = loss.kind == "kl_div" or teacher.updates > 0
            return is_known and loss.shape == teacher.shape and is_pair
        if targets.dim() == 0 or len(targets) < MIN_ROWS or targets.numel() > MAX_VALUES:
            return False
        if not targets.is_floating_point():
            return teacher.largest is not None and teacher.largest.equal(targets)
        if tuple(targets.shape) != teacher.shape:
            return False
        return first_values(targets) == teacher.values or (
            teacher.largest is not None and teacher.largest.equal(targets.argmax(1))
        )


def _tensor(value: Any) -> Any:
    """Return a plain tensor on the CPU without its graph, or the logits of an output; None for other values."""
    from torch import Tensor

    value = getattr(value, "logits", value)
    return value.detach() if type(value) is Tensor and value.is_cpu else None


def _is_frozen(teacher: _Teacher) -> bool:
    """Return True if the weights of a model are those of the first update in which it made targets."""
    module = teacher.module()
    weights = tuple(first_values(each) for each in module.parameters()) if module is not None else ()
    if not teacher.updates or weights != teacher.weights:
        teacher.weights, teacher.updates = weights, 0
    return bool(weights)


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(240, 8)
y = x[:, :4].argmax(1)
teacher = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 4))
optimizer = torch.optim.Adam(teacher.parameters(), lr=0.01)
for epoch in range(4):
    for rows in torch.randperm(240).split(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(teacher(x[rows]), y[rows]).backward()
        optimizer.step()
student = nn.Linear(8, 4)
optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
for epoch in range(4):
    for rows in torch.randperm(240).split(40):
        with torch.no_grad():
            soft = nn.functional.softmax(teacher(x[rows]) / 2, dim=1)
        optimizer.zero_grad()
        loss = nn.functional.kl_div(nn.functional.log_softmax(student(x[rows]) / 2, dim=1), soft, reduction="batchmean")
        loss.backward()
        optimizer.step()
print(loss.item())
"""

FAILURE = Failure(
    code="EVL024",
    title="A frozen teacher is in train mode",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"student = nn.Linear": "teacher.eval()\nstudent = nn.Linear"}),
    fix="Call `teacher.eval()` before the teacher makes targets.",
    detector=Detector,
)
