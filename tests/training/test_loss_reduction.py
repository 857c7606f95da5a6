"""Every torch.nn loss: its mean is the sum divided by the count."""

import pytest
import torch
from torch import nn

from trueloop.core.errors import InvalidData, InvalidModel
from trueloop.training.loss_reduction import check_output_and_target, mean_divisor, with_sum_reduction

N, C = 7, 5
SCORES = torch.randn(N, C, dtype=torch.float64)
CLASSES = torch.tensor([0, 4, 2, -100, 1, -100, 3])
WEIGHTS = torch.tensor([0.5, 1.0, 2.0, 3.0, 0.25], dtype=torch.float64)
REAL = torch.randn(N, C, dtype=torch.float64)
SHARE = torch.rand(N, C, dtype=torch.float64)
SIGNS = torch.randint(0, 2, (N, C)).double() * 2 - 1

CASES = {
    "cross entropy, ignored": (nn.CrossEntropyLoss(), SCORES, CLASSES),
    "cross entropy, weights": (nn.CrossEntropyLoss(weight=WEIGHTS), SCORES, CLASSES),
    "cross entropy, smoothing": (nn.CrossEntropyLoss(label_smoothing=0.1), SCORES, CLASSES),
    "cross entropy, smoothing and weights": (
        nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.1), SCORES, CLASSES),
    "cross entropy, other ignore_index": (nn.CrossEntropyLoss(ignore_index=2), SCORES, CLASSES.clamp(min=0)),
    "cross entropy, probabilities": (nn.CrossEntropyLoss(), SCORES, SHARE.softmax(1)),
    "cross entropy, probabilities and weights": (nn.CrossEntropyLoss(weight=WEIGHTS), SCORES, SHARE.softmax(1)),
    "cross entropy, sequence": (
        nn.CrossEntropyLoss(weight=WEIGHTS), torch.randn(3, C, 4).double(), torch.randint(0, C, (3, 4))),
    "cross entropy, one sample": (nn.CrossEntropyLoss(), SCORES[0], torch.tensor(3)),
    "cross entropy, uint8": (  # where -100 would be 156
        nn.CrossEntropyLoss(), torch.randn(N, 200).double(), torch.tensor([156, 3, 156, 0, 1, 2, 199]).byte()),
    "cross entropy, uint8 and weights": (
        nn.CrossEntropyLoss(weight=WEIGHTS), SCORES, torch.tensor([0, 4, 2, 1, 1, 3, 3]).byte()),
    "nll": (nn.NLLLoss(), SCORES.log_softmax(1), CLASSES),
    "nll, weights": (nn.NLLLoss(weight=WEIGHTS), SCORES.log_softmax(1), CLASSES),
    "mse": (nn.MSELoss(), SCORES, REAL),
    "l1": (nn.L1Loss(), SCORES, REAL),
    "smooth l1": (nn.SmoothL1Loss(), SCORES, REAL),
    "huber": (nn.HuberLoss(delta=0.5), SCORES, REAL),
    "bce": (nn.BCELoss(), SHARE, SHARE.round()),
    "bce, weights": (nn.BCELoss(weight=WEIGHTS), SHARE, SHARE.round()),
    "bce with logits": (nn.BCEWithLogitsLoss(pos_weight=WEIGHTS), SCORES, SHARE.round()),
    "kl": (nn.KLDivLoss(reduction="batchmean"), SCORES.log_softmax(1), SHARE.softmax(1)),
    "kl, log target": (nn.KLDivLoss(reduction="batchmean", log_target=True), SCORES.log_softmax(1), SHARE.log()),
    "poisson": (nn.PoissonNLLLoss(), SCORES, SHARE),
    "soft margin": (nn.SoftMarginLoss(), SCORES, SIGNS),
    "hinge embedding": (nn.HingeEmbeddingLoss(), SCORES, SIGNS),
    "multi margin": (nn.MultiMarginLoss(), SCORES, CLASSES.clamp(min=0)),
    "multi label soft margin": (nn.MultiLabelSoftMarginLoss(weight=WEIGHTS), SCORES, SHARE.round()),
    "multi label margin": (nn.MultiLabelMarginLoss(), SCORES, torch.tensor([[0, 2, -1, 1, 1]] * N)),
}  # fmt: skip


@pytest.mark.parametrize("graph", [False, True])  # with a graph, torch's own count is taken
@pytest.mark.parametrize("name", CASES)
def test_mean_is_sum_over_count(name, graph):
    loss, output, target = CASES[name]
    output = output.detach().requires_grad_(graph)
    loss = loss.double()
    total = with_sum_reduction(loss)(output, target)
    count = mean_divisor(loss, total, output, target)
    torch.testing.assert_close((total / count).detach(), loss(output, target).detach(), rtol=1e-14, atol=0)


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][1].dim() > 1])
def test_sums_over_counts_of_parts_equal_the_mean_of_the_batch(name):
    loss, output, target = CASES[name]
    loss = loss.double()
    total = count = 0.0
    for part in (slice(0, 1), slice(1, 4), slice(4, None)):
        some = with_sum_reduction(loss)(output[part], target[part])
        total += some
        count += mean_divisor(loss, some, output[part], target[part])
    torch.testing.assert_close(total / count, loss(output, target), rtol=1e-13, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_targets_of_half_precision_losses_are_counted_exactly(dtype, graph, weighted):
    weight = torch.tensor([0.5, 1.0, 1.5], dtype=dtype) if weighted else None
    output, target = torch.zeros(70_001, 3, dtype=dtype, requires_grad=graph), torch.arange(70_001) % 3
    loss = nn.CrossEntropyLoss(weight=weight)
    count = mean_divisor(loss, with_sum_reduction(loss)(output, target), output, target)
    assert float(count) == (70_000.5 if weighted else 70_001)


def test_a_sum_reduced_loss_has_no_divisor():
    assert mean_divisor(nn.MSELoss(reduction="sum"), SCORES, SCORES, REAL) is None


def test_the_users_loss_is_not_changed():
    loss = nn.CrossEntropyLoss(weight=WEIGHTS)
    twin = with_sum_reduction(loss)
    assert loss.reduction == "mean"
    assert twin.reduction == "sum"
    assert twin.weight is loss.weight


def test_reduction_none_is_refused():
    with pytest.raises(InvalidModel, match="reduction='none'"):
        with_sum_reduction(nn.MSELoss(reduction="none"))


@pytest.mark.parametrize(
    ("loss", "output", "target", "message"),
    [
        (nn.CrossEntropyLoss(), SCORES, torch.tensor([0, 1, 2, 3, 4, 5, 0]), "Label 5 is out of range"),
        (nn.CrossEntropyLoss(), SCORES, torch.tensor([0, 1, 2, -1, 4, 0, 0]), "Label -1 is out of range"),
        (nn.CrossEntropyLoss(), SCORES, torch.zeros(N - 1, dtype=torch.int64), r"needs \(7,\)"),
        (nn.CrossEntropyLoss(), torch.randn(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64), "transpose"),
        (nn.CrossEntropyLoss(), SCORES, torch.zeros(N, dtype=torch.int32), "torch.int32"),
        (nn.CrossEntropyLoss(), SCORES, torch.full((N,), 156, dtype=torch.uint8), "Label 156 is out of range"),
        (nn.MSELoss(), SCORES[:, :1], REAL[:, 0], "broadcast"),
        (nn.BCEWithLogitsLoss(), SCORES[:, :1], REAL[:, 0], "broadcast"),
    ],
)
def test_wrong_outputs_and_targets_are_described(loss, output, target, message):
    with pytest.raises(InvalidData, match=message):
        check_output_and_target(loss, output, target)


def test_ignored_labels_are_in_range():
    check_output_and_target(nn.CrossEntropyLoss(), SCORES, CLASSES)


def test_an_output_that_is_not_a_tensor_is_refused():
    with pytest.raises(InvalidModel, match="returned dict"):
        check_output_and_target(nn.CrossEntropyLoss(), {"logits": SCORES}, CLASSES)
