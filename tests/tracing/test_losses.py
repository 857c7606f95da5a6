"""PyTorch's losses are recognised in the graph, with the divisor of their mean and the weight of their gradient."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trueloop.tracing.events import LossRecord
from trueloop.tracing.hooks.loss_lines import LossLines
from trueloop.tracing.losses import LossProbe
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.saved_tensors import UNSUPPORTED_TORCH
from trueloop.tracing.stream import EventStream

torch.manual_seed(0)
MODEL = nn.Linear(5, 3)
X, Y = torch.randn(4, 5), torch.tensor([0, 1, 2, -100])
T = torch.rand(4, 3)
W = torch.tensor([1.0, 2.0, 3.0])


def find_losses(loss: torch.Tensor, scale: float = 1.0) -> list[LossRecord]:
    """Run a backward pass; return the losses found in the graph."""
    probe = LossProbe(loss)
    assert all(each.gradient_weight is None for each in probe.losses())
    loss.backward()
    return list(probe.finish(scale))


def only_loss(loss: torch.Tensor) -> LossRecord:
    (record,) = find_losses(loss)
    return record


def logits() -> torch.Tensor:
    return MODEL(X)


@pytest.mark.parametrize(
    ("make", "kind", "count"),
    [
        (lambda z: F.cross_entropy(z, Y), "cross_entropy", 3),
        (lambda z: nn.CrossEntropyLoss()(z, Y), "cross_entropy", 3),
        (lambda z: F.cross_entropy(z, Y, weight=W), "cross_entropy", 6),
        (lambda z: F.cross_entropy(z, Y, label_smoothing=0.1), "cross_entropy", 3),
        (lambda z: F.cross_entropy(z, Y, label_smoothing=0.1, weight=W), "cross_entropy", 6),
        (lambda z: F.cross_entropy(z, T), "cross_entropy", 4),
        (lambda z: F.cross_entropy(z, Y, reduction="none").mean(), "cross_entropy", 4),
        (lambda z: F.cross_entropy(z.view(1, 4, 3).transpose(1, 2), Y.view(1, 4)), "cross_entropy", 3),
        (lambda z: F.nll_loss(F.log_softmax(z, 1), Y), "cross_entropy", 3),
        (lambda z: F.nll_loss(z, Y), "nll", 3),
        (lambda z: F.binary_cross_entropy(z.sigmoid(), T), "bce", 12),
        (lambda z: F.binary_cross_entropy_with_logits(z, T), "bce_with_logits", 12),
        (lambda z: F.mse_loss(z, T), "mse", 12),
        (lambda z: F.l1_loss(z, T), "l1", 12),
        (lambda z: F.smooth_l1_loss(z, T), "smooth_l1", 12),
        (lambda z: F.huber_loss(z, T), "huber", 12),
        (lambda z: F.kl_div(F.log_softmax(z, 1), T, reduction="batchmean"), "kl_div", None),
        (
            lambda z: F.ctc_loss(
                F.log_softmax(z.view(4, 1, 3), 2), torch.tensor([[1, 2]]), torch.tensor([4]), torch.tensor([2])
            ),
            "ctc",
            None,
        ),
    ],
)
def test_every_pytorch_loss_is_recognised_by_its_mean(make, kind: str, count: float | None):
    for divisor in (1, 4):
        found = only_loss(make(logits()) / divisor)
        assert (found.kind, found.reduction) == (kind, "mean")
        assert found.divisor == count or (found.divisor, found.unreadable_reason) == (None, UNSUPPORTED_TORCH)
        assert found.gradient_weight == pytest.approx(1 / divisor)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda z: F.cross_entropy(z, Y, reduction="sum"), "cross_entropy"),
        (lambda z: F.cross_entropy(z, T, reduction="sum"), "cross_entropy"),
        (lambda z: F.cross_entropy(z, Y, reduction="none").sum(), "cross_entropy"),
        (lambda z: F.mse_loss(z, T, reduction="sum"), "mse"),
        (lambda z: F.l1_loss(z, T, reduction="sum"), "l1"),
    ],
)
def test_a_sum_is_a_sum(make, kind: str):
    found = only_loss(make(logits()) / 4)
    assert (found.kind, found.reduction, found.divisor, found.gradient_weight) == (kind, "sum", None, 0.25)


def test_a_mean_over_some_samples_is_not_reported_as_a_mean():
    kept = torch.tensor([1.0, 0.0, 1.0, 0.0])
    found = only_loss((F.cross_entropy(logits(), Y, reduction="none") * kept).sum() / kept.sum())
    assert (found.reduction, found.divisor, found.gradient_weight) == ("none", None, None)
    found = only_loss(F.cross_entropy(logits(), Y, reduction="none")[kept.bool()].mean())
    assert (found.reduction, found.divisor, found.gradient_weight) == ("none", None, None)


def test_input_operations_are_named_without_views_and_casts():
    assert only_loss(F.cross_entropy(logits().softmax(1), Y)).input_operations == ("softmax", "addmm")
    flat = logits().view(2, 2, 3).softmax(-1).view(-1, 3)
    assert only_loss(F.cross_entropy(flat, Y)).input_operations == ("softmax", "addmm")
    assert only_loss(F.cross_entropy(logits().softmax(0), Y)).input_operations[0] == "softmax_elsewhere"
    assert only_loss(F.cross_entropy(logits().log_softmax(1), Y)).input_operations[0] == "log_softmax"
    assert only_loss(F.nll_loss(logits().softmax(1), Y)).input_operations == ("softmax", "addmm")
    assert (
        only_loss(F.binary_cross_entropy_with_logits(logits().sigmoid()[:, 0], T[:, 0])).input_operations[0]
        == "sigmoid"
    )
    with torch.autocast("cpu", torch.bfloat16):
        assert only_loss(F.cross_entropy(MODEL(X).softmax(1), Y)).input_operations == ("softmax", "addmm")


@pytest.mark.reads_saved
def test_targets_and_ignored_targets_are_read():
    targets = torch.tensor([0, 2, 1, 2])
    probe = LossProbe(F.cross_entropy(logits(), targets, ignore_index=2))
    (found,) = probe.losses()
    assert (found.ignore_index, found.shape, found.divisor, found.class_weights) == (2, (4, 3), 2, False)
    assert torch.equal(found.targets, targets)
    found = only_loss(F.cross_entropy(logits(), Y, weight=W))
    assert (found.ignore_index, found.class_weights) == (-100, True)


@pytest.fixture
def noted() -> Iterator[None]:
    """Losses note the shapes they were given."""
    stream, patches = EventStream(), Patches()
    stream.active = True
    LossLines(stream, ProgramState()).install_full_tracing(patches)
    yield
    patches.restore()


def squares(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((prediction - target) ** 2).mean()


LOSSES = [F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.l1_loss, pytest.param(squares, marks=pytest.mark.reads_saved)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("noted")
@pytest.mark.parametrize("loss", LOSSES)
def test_paired_predictions_and_targets_are_reported(loss):
    assert only_loss(loss(logits()[:, :1], T[:, 0])).broadcast == ((4, 1), (4,))
    assert only_loss(loss(logits()[:, 0], T[:, :1])).broadcast == ((4,), (4, 1))
    assert only_loss(loss(T[:, 0], logits()[:, :1])).broadcast == ((4, 1), (4,))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("noted")
@pytest.mark.parametrize("loss", LOSSES[:4])
def test_intended_pairs_are_not_reported(loss):
    assert only_loss(loss(logits()[:, 0].unsqueeze(1), T[:, 0])).broadcast is None
    assert only_loss(loss(logits()[:, :1], T[:, :1])).broadcast is None
    assert only_loss(loss(logits()[:, :1], T[:, 0].expand(4, 4))).broadcast == ((4, 1), (4, 4))
    assert only_loss(loss(logits()[:, :1].expand(4, 4), torch.rand(4, 4))).broadcast is None


@pytest.mark.reads_saved
@pytest.mark.filterwarnings("ignore")
def test_without_recorded_shapes_only_differences_prove_it():
    assert only_loss(F.mse_loss(logits()[:, :1], T[:, 0])).broadcast is None
    assert only_loss(F.l1_loss(logits()[:, :1], T[:, 0])).broadcast == ((4, 1), (4,))
    assert only_loss(F.l1_loss(logits()[:, :1], torch.rand(4, 4))).broadcast is None


def test_a_hand_written_squared_error_is_no_loss():
    assert find_losses(((logits() - T) ** 2).mean()) == []
    assert find_losses(((logits()[:, :1] - torch.rand(4, 4)) ** 2).mean()) == []


def test_many_losses_have_their_own_weights():
    z = logits()
    penalty = sum((p**2).sum() for p in MODEL.parameters())
    total = F.cross_entropy(z, Y) + 0.3 * F.mse_loss(z, T) + 1e-3 * penalty
    assert [(each.kind, each.gradient_weight) for each in find_losses(total)] == [
        ("cross_entropy", 1.0),
        ("mse", pytest.approx(0.3)),
    ]
    assert [each.gradient_weight for each in find_losses(sum(F.cross_entropy(logits(), Y) for _ in range(5)) / 5)] == [
        pytest.approx(0.2)
    ] * 5


def test_the_scaler_factor_is_divided_out():
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    (found,) = find_losses(scaler.scale(F.cross_entropy(logits(), Y) / 2), scale=1024.0)
    assert found.gradient_weight == 0.5


def test_the_search_is_bounded_and_stays_out_of_models():
    x = X
    for _ in range(500):
        x = x + 1.0 * MODEL.weight.sum()
    assert find_losses(x.mean()) == []


def test_graphs_without_a_loss_and_leaves_are_empty():
    assert find_losses(logits().sum()) == []
    assert LossProbe(torch.zeros((), requires_grad=True)).finish() == ()


class Opaque(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits):
        ctx.save_for_backward(logits)
        return F.cross_entropy(logits, Y)

    @staticmethod
    def backward(ctx, gradient):
        return torch.zeros_like(ctx.saved_tensors[0])


def test_a_custom_function_is_as_opaque_as_a_compiled_one():
    assert find_losses(Opaque.apply(logits())) == []


def test_saved_tensor_hooks_do_not_run():
    unpacked = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: unpacked.append(1) or t):
        loss = F.cross_entropy(logits().softmax(1), Y)
    probe = LossProbe(loss)
    assert unpacked == []
    assert [each.kind for each in probe.losses()] == ["nll"] or probe.losses()[0].targets is None
    probe.finish()
    assert unpacked == []


def test_a_second_backward_raises_for_the_program_only():
    loss = F.cross_entropy(logits(), Y)
    find_losses(loss)
    probe = LossProbe(loss)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    assert probe.finish()[0].divisor is None


class Canary:
    def __init__(self, dead: list[bool]) -> None:
        self.dead = dead

    def __del__(self) -> None:
        self.dead.append(True)


def test_nothing_remains_on_the_graph_and_no_graph_is_kept():
    loss = F.cross_entropy(logits(), Y)
    probe = LossProbe(loss)
    loss.backward(retain_graph=True)
    weights = [each.gradient_weight for each in probe.finish()]
    (3 * loss).backward()
    assert [each.gradient_weight for each in probe.finish()] == weights == [1.0]
    dead = []
    loss.grad_fn.metadata["watch"] = Canary(dead)
    gc.disable()
    try:
        del loss
        assert dead
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore:Using backward")
def test_gradients_are_unchanged_also_when_differentiated_twice():
    def grads(watched: bool) -> list[torch.Tensor]:
        MODEL.zero_grad()
        loss = F.cross_entropy(logits(), Y) / 3
        probe = LossProbe(loss) if watched else None
        loss.backward(create_graph=True)
        if probe:
            assert probe.finish()[0].gradient_weight == pytest.approx(1 / 3)
        found = [p.grad for p in MODEL.parameters()]
        MODEL.zero_grad()
        return found

    assert all(map(torch.equal, grads(watched=True), grads(watched=False)))


def test_nothing_is_read_on_an_asynchronous_device():
    model = nn.Linear(5, 3, device="meta")
    loss = F.cross_entropy(model(torch.empty(4, 5, device="meta")), torch.empty(4, dtype=torch.long, device="meta"))
    found = only_loss(loss)
    assert (found.kind, found.divisor, found.gradient_weight) == ("cross_entropy", None, None)
