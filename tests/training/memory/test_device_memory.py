"""Peak memory, and out-of-memory errors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trueloop.training.memory.device_memory import format_model_size, is_out_of_memory, peak_memory_mib


def test_the_peak_rises_with_allocations_and_stays():
    device = torch.device("cpu")
    before = peak_memory_mib(device)
    taken = torch.ones(int(before * 2**20) // 4 + 16 * 2**20)  # float32: more than everything so far, and 64 MiB
    peak = peak_memory_mib(device)
    assert peak >= before + 60
    del taken
    assert peak_memory_mib(device) == peak


@pytest.mark.parametrize(
    ("error", "is_so"),
    [
        (torch.OutOfMemoryError("whatever it says"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: ..."), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("CUDA out of memory"), False),
    ],
)
def test_only_messages_of_torch_are_out_of_memory_errors(error: Exception, is_so: bool):
    assert is_out_of_memory(error) == is_so


def test_the_message_of_torch_on_the_cpu_is_recognised():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


def test_tied_weights_are_counted_once():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10, bias=False))
    model[1].weight = model[0].weight
    assert format_model_size(model) == "160 bytes"
