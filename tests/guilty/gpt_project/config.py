"""All settings of the project."""

from dataclasses import dataclass


@dataclass
class TrainConfig:
    epochs: int = 3
    accumulate: int = 5
    micro_batch: int = 16
    samples: int = 512
    lr: float = 5e-3
    seed: int = 0
    vocab: int = 13
    dim: int = 24

    @property
    def updates(self):
        return self.epochs * (self.samples // (self.micro_batch * self.accumulate))
