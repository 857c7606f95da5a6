"""Settings of the simulator, which trains a small network on points in the plane; bounds limit a request's cost."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import Bounds

Dataset = Literal["spiral", "circles", "xor", "blobs", "moons", "digits"]
Optimizer = Literal["sgd", "momentum", "nesterov", "adam", "adamw", "rmsprop", "adagrad"]
Schedule = Literal["constant", "step", "cosine", "warmup", "onecycle"]
Activation = Literal["relu", "tanh", "sigmoid", "gelu", "linear"]
Precision = Literal["float32", "float64", "bfloat16", "float16"]

Width = Annotated[int, Bounds(1, 64)]
DIGITS = 1797  # samples of scikit-learn's digits dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The settings from which the script is generated, without its injected failures."""

    dataset: Annotated[Dataset, "shape of the points; digits are pictures, projected to the plane by PCA"] = "spiral"
    samples: Annotated[int, Bounds(20, 2000), "points; every fifth is held out"] = 400
    noise: Annotated[float, Bounds(0.0, 1.0), "standard deviation of the noise added to each point"] = 0.05
    learning_rate: Annotated[float, Bounds(1e-6, 1000.0), "highest rate of the schedule"] = 0.01
    batch: Annotated[int, Bounds(1, 256), "examples per batch"] = 16
    accumulation: Annotated[int, Bounds(1, 64), "batches per update"] = 1
    optimizer: Annotated[Optimizer, "computes updates from gradients"] = "adam"
    schedule: Annotated[Schedule, "course of the learning rate over the updates"] = "constant"
    hidden: Annotated[tuple[Width, ...], Bounds(0, 4), "neurons of each hidden layer"] = (8, 8)
    activation: Annotated[Activation, "activation function of the hidden neurons"] = "tanh"
    batchnorm: Annotated[bool, "normalise each hidden layer over the batch"] = False
    dropout: Annotated[float, Bounds(0.0, 0.9), "share of hidden neurons left out in training"] = 0.0
    weight_decay: Annotated[float, Bounds(0.0, 1.0), "strength of weight decay"] = 0.0
    clip: Annotated[float, Bounds(0.0, 1000.0), "highest norm of the gradient; 0 = not clipped"] = 0.0
    precision: Annotated[Precision, "precision of the forward pass; float16 with a GradScaler"] = "float32"
    no_grad: Annotated[bool, "evaluate without building graphs"] = True
    keep_best: Annotated[bool, "keep the weights of the best epoch, test them every five epochs, and end with them"] = (
        False
    )
    seed: Annotated[int, Bounds(0, 1_000_000), "seed of data, weights and order"] = 0
    epochs: Annotated[int, Bounds(1, 1000), "passes over the training points"] = 500

    def __post_init__(self) -> None:
        """Refuse settings that cannot be trained.

        Raises:
            InvalidConfig: a BatchNorm layer would get a batch of one, or there are fewer digits than samples.
        """
        self.check_batches()
        if self.dataset == "digits" and self.samples > DIGITS:
            raise InvalidConfig(
                f"samples is {self.samples}.", fix=f"There are {DIGITS} digits: choose at most as many."
            )

    def check_batches(self, added: int = 0) -> None:
        """Refuse batches of one point for BatchNorm layers.

        Args:
            added: number of points added by hand.

        Raises:
            InvalidConfig: there would be such a batch.
        """
        points = self.training_points + added
        if self.batchnorm and self.hidden and (self.batch == 1 or points % self.batch == 1):
            cause = "every batch is" if self.batch == 1 else f"{points} points in batches of {self.batch} leave"
            raise InvalidConfig(
                f"batch is {self.batch} with batchnorm: {cause} a batch of one point.",
                why="PyTorch cannot normalise one point over its batch, and raises.",
                fix="Choose another batch, or another number of samples.",
            )

    @property
    def classes(self) -> int:
        """Number of classes of the dataset."""
        return {"blobs": 3, "digits": 10}.get(self.dataset, 2)

    @property
    def training_points(self) -> int:
        """Number of training points, without those added by hand."""
        return self.samples - math.ceil(self.samples / 5)

    @property
    def updates(self) -> int:
        """Number of updates of a complete run without points added by hand."""
        return self.epochs * math.ceil(math.ceil(self.training_points / self.batch) / self.accumulation)
