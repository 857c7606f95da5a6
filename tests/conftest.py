"""One thread per test: two shared cores make torch's thread pool slower, not faster."""

import pytest
from hypothesis import settings

settings.register_profile("trueloop", deadline=None)  # timing is never asserted in a test
settings.load_profile("trueloop")


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    import torch

    torch.set_num_threads(1)
