"""MDL017: interleaved samples that are reshaped to one row per channel."""

import pytest

INTERLEAVED_HEAD = """
import io
import wave
import numpy as np
import torch
from torch import nn
CHANNELS, FRAME = 6, 48
net = nn.Conv1d(CHANNELS, 4, 5)
"""
INTERLEAVED = {
    "bytes of the program": """
def record(n):
    rng = np.random.default_rng(0)
    sig = rng.normal(0, 0.6, (n, FRAME, CHANNELS))
    sig[:, :, 0] += 1
    return io.BytesIO(sig.astype("float32").tobytes())
def read(stream):
    raw = np.frombuffer(stream.read(), dtype="float32")
    return raw.reshape(-1, CHANNELS, FRAME).copy()  # <- MDL017
net(torch.from_numpy(read(record(40))))
""",
    "a file of the program": """
class Log:
    def __init__(self, path, steps, sensors):
        self.path, self.steps, self.sensors = path, steps, sensors
    def write(self):
        rows = np.zeros((10, self.steps, self.sensors), dtype=np.float32)
        rows.tofile(self.path)
    def load(self):
        data = np.fromfile(self.path, dtype=np.float32)
        return torch.from_numpy(data.reshape((10, self.sensors, self.steps)))  # <- MDL017
""",
    "a wave file": """
def load(path):
    with wave.open(path) as file:
        channels = file.getnchannels()
        data = file.readframes(file.getnframes())
    samples = np.frombuffer(data, dtype=np.int16)
    return torch.from_numpy(samples.reshape(channels, -1) / 32768)  # <- MDL017
""",
    "a wave file in stereo": """
def load(path):
    file = wave.open(path)
    x = np.frombuffer(file.readframes(-1), np.int16).astype(np.float32)
    return torch.from_numpy(x).view(2, -1)  # <- MDL017
""",
}
IN_ORDER = {
    "frames of a mono signal": """
def load(path):
    file = wave.open(path)
    x = np.frombuffer(file.readframes(-1), np.int16).astype(np.float32)
    return torch.from_numpy(x[: len(x) // 100 * 100]).view(100, -1)
""",
    "reshaped as it was written": """
def record(n):
    return np.random.default_rng(0).normal(0, 0.6, (n, FRAME, CHANNELS)).astype("float32").tobytes()
def read(data):
    return np.frombuffer(data, dtype="float32").reshape(-1, FRAME, CHANNELS).transpose(0, 2, 1)
net(torch.from_numpy(read(record(40)).copy()))
""",
    "transposed before it is written": """
def record(n):
    sig = np.random.default_rng(0).normal(0, 0.6, (n, FRAME, CHANNELS)).transpose(0, 2, 1)
    return np.ascontiguousarray(sig.astype("float32")).tobytes()
def read(data):
    return np.frombuffer(data, dtype="float32").reshape(-1, CHANNELS, FRAME)
net(torch.from_numpy(read(record(40)).copy()))
""",
    "a file from elsewhere": """
def read(path):
    return np.fromfile(path, dtype="float32").reshape(-1, CHANNELS, FRAME)
net(torch.from_numpy(read("imu.bin")))
""",
    "a wave file in time": """
def load(path):
    with wave.open(path) as file:
        data = np.frombuffer(file.readframes(file.getnframes()), dtype=np.int16)
        return torch.from_numpy(data.reshape(-1, file.getnchannels()).T / 32768)
""",
    "a mono file": """
def load(path):
    with wave.open(path) as file:
        data = np.frombuffer(file.readframes(file.getnframes()), dtype=np.int16)
    return torch.from_numpy(data.astype(np.float32)).view(1, -1)
""",
}


@pytest.mark.parametrize("script", INTERLEAVED.values(), ids=INTERLEAVED)
def test_lint_reports_interleaved_samples_in_rows(lint_reports, script):
    lint_reports(INTERLEAVED_HEAD + script)


@pytest.mark.parametrize("script", IN_ORDER.values(), ids=IN_ORDER)
def test_lint_accepts_samples_in_their_order(lint_is_clean, script):
    lint_is_clean(INTERLEAVED_HEAD + script, "MDL017")
