"""Compute torch.nn losses as a sum and the divisor that reduction="mean" would use.

If micro-batches average over different numbers of elements, accumulating means is wrong, but accumulating sums and
counts is right. So each loss is computed with reduction="sum", and its divisor is computed from the target, exactly as
torch defines it (torch/nn/functional.py and LossNLL.cpp in aten).
"""

import copy

import torch
from torch import Tensor, nn

from trueloop.core.errors import InvalidData, InvalidModel
from trueloop.training.optimizers.foreach import is_half

# These losses average over all elements of the output.
_PER_ELEMENT = (
    nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss,
    nn.SoftMarginLoss, nn.HingeEmbeddingLoss, nn.PoissonNLLLoss, nn.KLDivLoss,
)  # fmt: skip
# These losses average over the rows: (N, C) -> N.
_PER_ROW = (nn.MultiMarginLoss, nn.MultiLabelMarginLoss, nn.MultiLabelSoftMarginLoss)
# These losses average over the targets that are not ignored, with class weights if given.
_PER_TARGET = (nn.CrossEntropyLoss, nn.NLLLoss)

KNOWN_LOSSES = (*_PER_ELEMENT, *_PER_ROW, *_PER_TARGET)


def with_sum_reduction(loss: nn.Module) -> nn.Module:
    """Return a copy of a torch.nn loss with reduction="sum" and the same weights.

    Raises:
        InvalidModel: the loss has reduction="none", which does not define the window's loss.
    """
    if loss.reduction == "none":
        raise InvalidModel(
            f"{type(loss).__name__}(reduction='none') does not define how a window of losses becomes one number.",
            fix="Use reduction='mean' or 'sum', or give a function (model, batch) -> (sum, count).",
        )
    clone = copy.copy(loss)
    vars(clone)["reduction"] = "sum"
    return clone


def mean_divisor(loss: nn.Module, total: Tensor, output: Tensor, target: Tensor) -> Tensor | float | None:
    """Return the divisor with which ``loss`` turns its sum over this micro-batch into its mean.

    Args:
        loss: one of `KNOWN_LOSSES`, with the user's arguments.
        total: sum of the loss over the micro-batch.
        output: output of the model, in any shape that the loss takes.
        target: target, in a shape that fits the output.

    Returns:
        A number if shapes determine it; a 0-d tensor on the target's device if values do; None for reduction="sum",
        which has no divisor.

    Cost: does not wait for the GPU.
    """
    if loss.reduction == "sum":
        return None
    if isinstance(loss, _PER_TARGET):
        # torch's kernel saves the divisor for backward; it is used here unless it is in half precision.
        node = None if torch.compiler.is_compiling() else total.grad_fn  # a compiled update has no node
        total_weight = getattr(node, "_saved_total_weight", None)
        return _count_targets(loss, output, target) if total_weight is None or is_half(total_weight) else total_weight
    if isinstance(loss, nn.KLDivLoss) and loss.reduction == "batchmean":
        return output.shape[0]
    if isinstance(loss, _PER_ROW):
        return output.shape[0] if output.dim() > 1 else 1
    return output.numel()


def _count_targets(loss: nn.CrossEntropyLoss | nn.NLLLoss, output: Tensor, target: Tensor) -> Tensor | float:
    if target.is_floating_point():  # class probabilities: the mean is over positions and ignores class weights
        return output.numel() / output.shape[1 if output.dim() > 1 else 0]
    target = target.long()  # as in torch's kernel; compared as uint8, ignore_index = -100 would equal the label 156
    is_counted = target != loss.ignore_index
    if loss.weight is None:
        return torch.count_nonzero(is_counted)
    weight = loss.weight.float() if is_half(loss.weight) else loss.weight
    if torch.compiler.is_compiling():  # the same result without a tensor of data-dependent shape
        return torch.where(is_counted, weight[torch.where(is_counted, target, 0)], 0.0).sum()
    return weight[target[is_counted]].sum()


def check_output_and_target(loss: nn.Module, output: object, target: object) -> None:
    """Check that the loss would not broadcast, misinterpret or reject this output and target.

    Raises:
        InvalidData: shapes or labels do not fit; the message has their values.
        InvalidModel: the model's output is not a tensor.

    Cost: waits for the GPU; called only in the first window and after an error.
    """
    if not isinstance(output, Tensor) or not isinstance(target, Tensor):
        raise InvalidModel(
            f"{type(loss).__name__} needs tensors, but the model returned {type(output).__name__} and the target is "
            f"{type(target).__name__}.",
            fix="Give a function (model, batch) -> mean | (sum, count) that selects the tensors.",
        )
    if isinstance(loss, _PER_TARGET) and not target.is_floating_point():
        _check_labels(loss, output, target)
    elif isinstance(loss, _PER_ELEMENT) and output.shape != target.shape:
        raise InvalidData(
            f"The model's output has shape {tuple(output.shape)} but the target has {tuple(target.shape)}.",
            why=f"{type(loss).__name__} would broadcast one against the other and average over "
            "the wrong pairs, without an error.",
            fix="Make both the same shape: output.squeeze(-1), or target.unsqueeze(-1).",
        )


def _check_labels(loss: nn.CrossEntropyLoss | nn.NLLLoss, output: Tensor, target: Tensor) -> None:
    class_dim = 1 if output.dim() > 1 else 0
    expected = output.shape[:class_dim] + output.shape[class_dim + 1 :]
    if target.shape != expected:
        hint = "Class indices have the output's shape without its class dimension (dimension 1)."
        if output.dim() == 3 and target.shape == output.shape[:2]:
            hint = "The classes are in the last dimension: use output.transpose(1, 2), or flatten both."
        raise InvalidData(
            f"The target has shape {tuple(target.shape)} but an output of shape {tuple(output.shape)} "
            f"needs {tuple(expected)}.",
            fix=hint,
        )
    if target.dtype not in (torch.int64, torch.uint8):
        raise InvalidData(
            f"The target has class indices of dtype {target.dtype}.",
            why=f"{type(loss).__name__} takes class indices as int64.",
            fix="Convert them: target.long().",
        )
    classes = output.shape[class_dim]
    target = target.long()  # compared as uint8, ignore_index = -100 would equal the label 156
    invalid = (target != loss.ignore_index) & ((target < 0) | (target >= classes))
    if bool(invalid.any()):
        value = int(target[invalid][0])
        raise InvalidData(
            f"Label {value} is out of range: the model has {classes} outputs, so labels run from 0 to {classes - 1}.",
            why=f"{int(invalid.sum())} of {target.numel()} labels in this batch are out of range.",
            fix="Renumber the labels, give the model more outputs, or mark them with ignore_index.",
        )
