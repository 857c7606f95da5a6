"""Whether a run learns: its losses next to those of the best constant answer, computed from the targets."""

import math
import runpy

import pytest

from trueloop.core.learning import LearningVerdict
from trueloop.sanitizer.watch import Watch

HEAD = """
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
x = torch.randn(60, 4)
model = nn.Linear(4, {outputs})
optimizer = torch.optim.SGD(model.parameters(), lr={rate})
classes = torch.tensor([0] * 30 + [1] * 20 + [2] * 10)
target = torch.tensor([[0.0, 5.0]] * 30 + [[2.0, 5.0]] * 30)
for step in range({steps}):
    optimizer.zero_grad()
    {loss}.backward()
    optimizer.step()
"""
ENTROPY = -sum(share * math.log(share) for share in (1 / 2, 1 / 3, 1 / 6))
WITHOUT_LAST = -(0.6 * math.log(0.6) + 0.4 * math.log(0.4))
LOSSES = {
    "F.cross_entropy(model(x), classes)": (3, ENTROPY),
    "F.cross_entropy(model(x), classes, reduction='sum')": (3, 60 * ENTROPY),
    "F.cross_entropy(model(x), classes, ignore_index=2)": (3, WITHOUT_LAST),
    "F.cross_entropy(model(x), classes, weight=torch.tensor([2.0, 3.0, 6.0]))": (3, math.log(3)),
    "F.cross_entropy(model(x).double(), classes, weight=torch.tensor([2.0, 3.0, 6.0]).double())": (3, math.log(3)),
    "F.cross_entropy(model(x).bfloat16(), classes)": (3, ENTROPY),
    "F.cross_entropy(model(x), classes, label_smoothing=0.1)": (3, ENTROPY),
    "F.nll_loss(torch.log_softmax(model(x), 1), classes)": (3, ENTROPY),
    "F.mse_loss(model(x), target)": (2, 0.5),
    "(0.25 * F.mse_loss(model(x), target))": (2, 0.5),
    "F.mse_loss(model(x), target, reduction='sum')": (2, 60.0),
    "((model(x) - target) ** 2).mean()": (2, 0.5),
    "(target - model(x)).abs().mean()": (2, 0.5),
    "F.l1_loss(model(x), target)": (2, 0.5),
    "F.smooth_l1_loss(model(x), target)": (2, 0.25),
    "F.huber_loss(model(x), target, delta=0.5)": (2, 0.1875),
    "F.binary_cross_entropy_with_logits(model(x), target / 5)": (2, (math.log(2) * 0.2 + 0) / 2),
    "F.binary_cross_entropy(torch.sigmoid(model(x)), (target > 1).float())": (2, math.log(2) / 2),
    "F.binary_cross_entropy_with_logits(model(x)[:, 0], (target[:, 0] > 1).float())": (2, math.log(2)),
}
UNDEFINED = {
    "all targets are equal": ("F.mse_loss(model(x), torch.ones(60, 2))", 2),
    "one class": ("F.cross_entropy(model(x), torch.ones(60).long())", 3),
    "positive targets weigh more": (
        "F.binary_cross_entropy_with_logits(model(x), (target > 1).float(), pos_weight=torch.tensor(3.0))",
        2,
    ),
    "probabilities as targets": ("F.cross_entropy(model(x), torch.softmax(x[:, :3], 1))", 3),
    "no loss of PyTorch": ("model(x).square().log().mean()", 2),
}


def learning(tmp_path, loss, outputs=2, steps=40, rate=0.001):
    """Run a script and return what its report says about learning."""
    path = tmp_path / "train.py"
    path.write_text(HEAD.format(loss=loss, outputs=outputs, steps=steps, rate=rate))
    watch = Watch([])
    watch.start()
    try:
        values = runpy.run_path(str(path))
    finally:
        report = watch.stop()
    assert not report.problems
    assert values["model"].weight.isfinite().all()
    return report.learning


@pytest.mark.parametrize(("loss", "expected"), LOSSES.items(), ids=LOSSES.keys())
def test_the_best_constant_answer(tmp_path, loss, expected):
    outputs, constant = expected
    found = learning(tmp_path, loss, outputs)
    if "target / 5" in loss:
        constant = (-(0.2 * math.log(0.2) + 0.8 * math.log(0.8))) / 2
    assert found.constant == pytest.approx(constant, rel=1e-5)
    assert found.verdict is not LearningVerdict.UNKNOWN
    assert found.updates == 40


@pytest.mark.parametrize(("loss", "outputs"), UNDEFINED.values(), ids=UNDEFINED.keys())
def test_an_undefined_constant_answer_is_not_compared(tmp_path, loss, outputs):
    found = learning(tmp_path, loss, outputs)
    assert found is None or (found.verdict is LearningVerdict.UNKNOWN and found.constant is None)


@pytest.mark.parametrize(
    ("rate", "steps", "verdict"),
    [
        (0.1, 100, LearningVerdict.LEARNING),
        (0.0, 100, LearningVerdict.NOT_AT_ALL),
        (0.1, 20, LearningVerdict.UNKNOWN),
        (2.0, 40, LearningVerdict.DIVERGING),
    ],
)
def test_the_verdict(tmp_path, rate, steps, verdict):
    separable = "F.mse_loss(model(x), x[:, :2])"
    assert learning(tmp_path, separable, 2, steps, rate).verdict is verdict


def test_the_loss_at_the_start_is_the_first_one(tmp_path):
    found = learning(tmp_path, "F.mse_loss(model(x), target)", 2, 200, 0.05)
    assert found.start > 10 * found.end
    assert found.losses.startswith("loss 1")
    assert "always answering the mean costs 0.500" in found.losses


def test_parts_of_unequal_width_are_pooled(tmp_path):
    found = learning(tmp_path, "F.mse_loss(model(x)[:, : 1 + step % 2], target[:, : 1 + step % 2])", 2)
    assert found.constant > 0.5


def test_a_loss_on_a_subset_of_a_large_batch(tmp_path):
    big = "F.mse_loss(model(torch.ones(30000, 4)), torch.arange(60000.0).reshape(30000, 2) % 2)"
    assert learning(tmp_path, big, 2).verdict is LearningVerdict.UNKNOWN  # each column is constant


RARE = """
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
x = torch.randn(400, 4)
rare = torch.zeros(400)
rare[:20] = 1
if {separable}:
    x[:20] += 6
model = nn.Linear(4, {outputs})
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for step in range(120):
    rows = torch.randint(400, (128,))
    optimizer.zero_grad()
    {loss}.backward()
    optimizer.step()
"""
RARE_LOSSES = {
    "F.cross_entropy(model(x[rows]), rare[rows].long())": 2,
    "F.binary_cross_entropy_with_logits(model(x[rows]).squeeze(1), rare[rows])": 1,
    "F.binary_cross_entropy(model(x[rows]).squeeze(1).sigmoid(), rare[rows])": 1,
}


@pytest.mark.parametrize(("loss", "outputs"), RARE_LOSSES.items())
@pytest.mark.parametrize("separable", [False, True])
def test_a_frequent_class_that_alone_is_predicted(tmp_path, loss, outputs, separable):
    path = tmp_path / "train.py"
    text = RARE.replace("{loss}", loss).replace("{outputs}", str(outputs)).replace("{separable}", str(separable))
    path.write_text(text)
    with Watch(()) as watch:
        runpy.run_path(str(path))
    learning = watch.report().learning
    assert learning.only_class == (None if separable else 0)
    assert learning.share == (0.0 if separable else pytest.approx(0.95, abs=0.03))
    assert ("only class 0 is predicted" in learning.losses) is not separable
