"""Identifies the samples of a batch by their values, so that they are recognised in whatever way they are batched."""

from typing import Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from trueloop.tracing.events import ModelCalled
from trueloop.tracing.torch_modes import is_transformed

MAX_ROWS: Final = 1024  # samples of a batch that are identified
MAX_COLUMNS: Final = 64  # numbers of a sample from which its hash is computed


def row_digests(call: ModelCalled) -> Tensor | None:
    """Return a hash of each sample in the input of a model call; None if the input cannot be hashed.

    The hashes, of shape (B,), are computed once per call, on the input's device and without a synchronisation.

    Cost: 10 to 20 us.
    """
    if call.input_digests is None:
        call.input_digests = (_hash_rows(call.inputs),)
    return call.input_digests[0]


def has_storage(tensor: Tensor) -> bool:
    """Return True if a tensor's values can be read: not if it is sharded (DTensor), sparse, meta or within ``vmap``."""
    is_plain = type(tensor) is Tensor or not is_traceable_wrapper_subclass(tensor)
    return is_plain and tensor.layout is torch.strided and not tensor.is_meta and not is_transformed(tensor)


def _hash_rows(batch: Tensor | None) -> Tensor | None:
    if batch is None or not has_storage(batch) or batch.is_complex() or not batch.numel():
        return None
    rows = batch.detach().reshape(len(batch) if batch.ndim else 1, -1)
    if len(rows) > MAX_ROWS:
        rows = rows[:MAX_ROWS]
    if rows.shape[1] > MAX_COLUMNS:
        rows = rows[:, :: -(-rows.shape[1] // MAX_COLUMNS)]
    bits = rows.float().contiguous().view(torch.int32).long()
    if bits.is_cpu:
        sums = bits @ _FACTORS[: bits.shape[1]]
    else:  # factors are computed there, since a copy from the CPU would wait for the device
        sums = (bits * _factors(torch.ones_like(bits[0]).cumsum(0))).sum(1)
    return sums ^ (sums >> 29)  # so that the sum of the hashes does not depend on sums of columns alone


def mix(values: Tensor) -> Tensor:
    """Return a hash of each integer."""
    product = values * 6364136223846793005
    return product ^ (product >> 29)


def _factors(numbers: Tensor) -> Tensor:
    """Return an odd factor for each column number, so that a hash depends on the order of the columns."""
    return mix(mix(numbers)) | 1


_FACTORS: Final = _factors(torch.arange(1, MAX_COLUMNS + 1, device="cpu"))
