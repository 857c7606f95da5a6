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


HELD_OUT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import torch.nn.functional as F

torch.manual_seed(0)
x = torch.randn(360, 12)
y = (x[:, 0] + x[:, 1] + {noise} * torch.randn(360) > 0).long()
train_x, train_y, val_x, val_y = x[:120], y[:120], x[120:], y[120:]
train = DataLoader(TensorDataset(train_x, train_y), batch_size=40, shuffle=True)
val = DataLoader(TensorDataset(val_x, val_y), batch_size=80)
model = nn.Sequential(nn.Linear(12, 128), nn.ReLU(), nn.Linear(128, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def score(inputs, labels):
    return F.cross_entropy(model(inputs), labels).item()


for epoch in range(40):
    model.train()
    for inputs, labels in train:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        {each_update}
    model.eval()
    with torch.no_grad():
        {evaluation}
{after}
"""
EVALUATIONS = {
    "a loader": "sum(score(inputs, labels) for inputs, labels in val)",
    "all samples at once": "score(val_x, val_y)",
    "batches cut by hand": "[score(val_x[at : at + 60], val_y[at : at + 60]) for at in range(0, 240, 60)]",
    "both parts, one after the other": "score(train_x, train_y), score(val_x, val_y)",
    "a sum": "F.cross_entropy(model(val_x), val_y, reduction='sum').item() / 240",
    "log-probabilities": "F.nll_loss(model(val_x).log_softmax(1), val_y)",
}
OTHER_EVALUATIONS = {
    "none": "pass",
    "the training part": "score(train_x, train_y)",
    "the loader of the training part": "[score(inputs, labels) for inputs, labels in train]",
    "of another model": "F.cross_entropy(nn.Linear(12, 2)(val_x), val_y)",
    "of another loss": "F.mse_loss(model(val_x), F.one_hot(val_y, 2) * (1.0 + epoch))",
    "of outputs of no model": "F.cross_entropy(val_x[:, :2] * epoch, val_y)",
}


def held_out_learning(tmp_path, evaluation, *, noise=1.0, each_update="pass", after=""):
    path = tmp_path / "train.py"
    path.write_text(HELD_OUT.format(evaluation=evaluation, noise=noise, each_update=each_update, after=after))
    with Watch(()) as watch:
        runpy.run_path(str(path))
    assert not watch.report().problems
    return watch.report().learning


@pytest.mark.parametrize("evaluation", EVALUATIONS.values(), ids=EVALUATIONS.keys())
def test_a_held_out_loss_that_rises_is_overfitting(tmp_path, evaluation):
    found = held_out_learning(tmp_path, evaluation)
    assert found.verdict is LearningVerdict.OVERFITTING
    assert found.held_out.best < 0.65 < found.held_out.end
    assert 0 < found.held_out.best_update < 40
    assert found.end < 0.1


@pytest.mark.parametrize("evaluation", EVALUATIONS.values(), ids=EVALUATIONS.keys())
def test_a_held_out_loss_that_falls_is_learning(tmp_path, evaluation):
    assert held_out_learning(tmp_path, evaluation, noise=0.0).verdict is LearningVerdict.LEARNING


@pytest.mark.parametrize(("noise", "verdict"), [(1.0, LearningVerdict.OVERFITTING), (0.0, LearningVerdict.LEARNING)])
def test_held_out_probabilities(tmp_path, monkeypatch, noise, verdict):
    text = HELD_OUT.replace("nn.Linear(128, 2))", "nn.Linear(128, 1))")
    text = text.replace("F.cross_entropy(model(inputs), labels)", "binary(inputs, labels)")
    loss = "F.binary_cross_entropy_with_logits(model(inputs)[:, 0], labels.float())"
    binary = f"def binary(inputs, labels):\n    return {loss}"
    monkeypatch.setitem(globals(), "HELD_OUT", text.replace("def score", binary + "\n\n\ndef score"))
    assert held_out_learning(tmp_path, "score(val_x, val_y)", noise=noise).verdict is verdict


@pytest.mark.parametrize("evaluation", OTHER_EVALUATIONS.values(), ids=OTHER_EVALUATIONS.keys())
def test_other_evaluations_say_nothing_about_held_out_samples(tmp_path, evaluation):
    found = held_out_learning(tmp_path, evaluation)
    assert found.verdict is LearningVerdict.LEARNING
    assert found.held_out is None


def test_samples_that_are_trained_on_are_not_held_out(tmp_path):
    """As where the loss of each sample decides which ones are trained on."""
    chosen = "\n        with torch.no_grad(): F.cross_entropy(model(inputs) * (1 + epoch), 1 - labels)"
    assert held_out_learning(tmp_path, "pass", each_update=chosen).verdict is LearningVerdict.LEARNING


@pytest.mark.parametrize(("noise", "memorised"), [(1000.0, True), (0.0, False)])
def test_one_evaluation_at_the_end_shows_what_is_memorised(tmp_path, noise, memorised):
    after = "with torch.no_grad():\n    score(val_x, val_y)"
    found = held_out_learning(tmp_path, "pass", noise=noise, after=after)
    assert found.verdict is (LearningVerdict.MEMORISED if memorised else LearningVerdict.LEARNING)


def test_a_loss_that_the_model_computes_itself(tmp_path):
    path = tmp_path / "train.py"
    text = HELD_OUT.replace("F.cross_entropy(model(inputs), labels).backward()", "model(inputs, labels).backward()")
    text = text.replace(
        "model = nn.Sequential(",
        "class Model(nn.Sequential):\n"
        "    def forward(self, inputs, labels):\n"
        "        return F.cross_entropy(super().forward(inputs), labels)\n"
        "model = Model(",
    )
    path.write_text(text.format(evaluation="model(val_x, val_y)", noise=1.0, each_update="pass", after=""))
    with Watch(()) as watch:
        runpy.run_path(str(path))
    assert watch.report().learning.verdict is LearningVerdict.OVERFITTING


LAYERS = """
import torch
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(64, 1, 6, 6), torch.randint(2, (64,))
model = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
    nn.Linear(128, 16), nn.Sigmoid(), nn.Linear(16, 10, bias=False), nn.ReLU(), nn.Linear(10, 2),
)
with torch.no_grad():
    model[1].weight[:2], model[1].bias[:2] = 0, -1  # two dead channels
    model[4].bias.fill_(50.0)  # saturated
    model[6].weight.abs_()
    model[6].weight[:5] *= -1  # half of the units are dead
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""


def test_each_layer_has_its_gradient_update_and_idle_units(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(LAYERS)
    with Watch(()) as watch:
        runpy.run_path(str(path))
    assert not watch.report().problems
    layers = {each.layer: each for each in watch.report().layers}
    assert list(layers) == ["0", "1", "4", "6", "8"], "in the order of the model"
    assert (layers["1"].activation, layers["1"].idle) == ("relu", 0.25)
    assert (layers["4"].activation, layers["4"].idle) == ("sigmoid", 1.0)
    assert (layers["6"].activation, layers["6"].idle) == ("relu", 0.5)
    assert layers["8"].idle is None
    assert layers["1"].update_ratio is None, "it has no matrix"
    assert 0 < layers["8"].update_ratio < 0.1
    assert layers["4"].gradient < 1e-6 < layers["8"].gradient


def test_rows_of_a_sequence_are_units_by_their_last_dimension(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\nfrom torch import nn\ntorch.manual_seed(0)\n"
        "model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))\n"
        "with torch.no_grad():\n    model[0].bias[:4] = -100\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        "for step in range(20):\n    optimizer.zero_grad()\n"
        "    nn.functional.mse_loss(model(torch.randn(30, 5, 3)), torch.randn(30, 5, 2)).backward()\n"
        "    optimizer.step()\n"
    )
    with Watch(()) as watch:
        runpy.run_path(str(path))
    assert watch.report().layers[0].idle == 0.5
