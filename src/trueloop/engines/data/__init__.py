"""Data: the order as a pure function, samplers, collate with padding and mask, loaders, datasets, fingerprints.

Everything also works in a plain ``torch.utils.data.DataLoader``.
"""

from trueloop.engines.data.collate import Gathered, collate, pad_sequences
from trueloop.engines.data.datasets import TensorData, split
from trueloop.engines.data.fingerprint import fingerprint
from trueloop.engines.data.folders import ImageFolder, TextFiles
from trueloop.engines.data.given import GivenBatches
from trueloop.engines.data.loader import Loader
from trueloop.engines.data.order import (
    Order,
    RandomOrder,
    SequentialOrder,
    WeightedOrder,
    class_weights,
    order,
)
from trueloop.engines.data.samplers import OrderSampler, WindowSampler
from trueloop.engines.data.shards import Shards
from trueloop.engines.data.streaming import ShardLoader

__all__ = [
    "Gathered",
    "GivenBatches",
    "ImageFolder",
    "Loader",
    "Order",
    "OrderSampler",
    "RandomOrder",
    "SequentialOrder",
    "ShardLoader",
    "Shards",
    "TensorData",
    "TextFiles",
    "WeightedOrder",
    "WindowSampler",
    "class_weights",
    "collate",
    "fingerprint",
    "order",
    "pad_sequences",
    "split",
]
