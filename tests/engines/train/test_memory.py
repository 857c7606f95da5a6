"""The peak is measured, not guessed."""

from __future__ import annotations

import torch

from trueloop.engines.train.memory import peak_memory_mib


def test_the_peak_rises_with_what_is_taken_and_stays():
    device = torch.device("cpu")
    before = peak_memory_mib(device)
    taken = torch.ones(int(before * 2**20) // 4 + 16 * 2**20)  # float32: more than everything so far, and 64 MiB
    peak = peak_memory_mib(device)
    assert peak >= before + 60
    del taken
    assert peak_memory_mib(device) == peak
