"""Data: orders, samplers, collate functions with padding and mask, loaders, datasets, fingerprints.

All of them also work with a plain ``torch.utils.data.DataLoader``.
"""

from trueloop.data.collate import GatheredBatch, collate, pad_sequences
from trueloop.data.datasets import TensorData, split
from trueloop.data.fingerprint import fingerprint
from trueloop.data.folders import ImageFolder, TextFiles
from trueloop.data.loader import Loader
from trueloop.data.order import Order, RandomOrder, SequentialOrder, WeightedOrder, class_weights, order
from trueloop.data.ready_batches import IterableSource
from trueloop.data.samplers import OrderSampler, WindowSampler
from trueloop.data.shards import Shards
from trueloop.data.streaming import ShardLoader

__all__ = [
    "GatheredBatch",
    "ImageFolder",
    "IterableSource",
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
