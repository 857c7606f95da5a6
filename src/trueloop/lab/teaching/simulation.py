"""What the simulator trains: a small network on points in the plane. Bounded, so that no request can cost much."""

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
DIGITS = 1797  # samples of scikit-learn's digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """Everything that a run's script follows from, but for what is broken in it."""

    dataset: Annotated[Dataset, "what the points look like; digits are pictures, laid flat by PCA"] = "spiral"
    samples: Annotated[int, Bounds(20, 2000), "points; every fifth is held out"] = 400
    noise: Annotated[float, Bounds(0.0, 1.0), "standard deviation of what is added to each point"] = 0.05
    learning_rate: Annotated[float, Bounds(1e-6, 1000.0), "highest rate of the schedule"] = 0.01
    batch: Annotated[int, Bounds(1, 256), "examples per batch"] = 16
    accumulation: Annotated[int, Bounds(1, 64), "batches per update"] = 1
    optimizer: Annotated[Optimizer, "what makes an update of a gradient"] = "adam"
    schedule: Annotated[Schedule, "how the learning rate goes over the updates"] = "constant"
    hidden: Annotated[tuple[Width, ...], Bounds(0, 4), "neurons of each hidden layer"] = (16, 16)
    activation: Annotated[Activation, "what each hidden neuron does to its sum"] = "tanh"
    batchnorm: Annotated[bool, "normalise each hidden layer over the batch"] = False
    dropout: Annotated[float, Bounds(0.0, 0.9), "share of hidden neurons left out in training"] = 0.0
    weight_decay: Annotated[float, Bounds(0.0, 1.0), "pull of each weight towards zero"] = 0.0
    clip: Annotated[float, Bounds(0.0, 1000.0), "highest norm of the gradient; 0 = not clipped"] = 0.0
    precision: Annotated[Precision, "of the forward pass; float16 with a GradScaler"] = "float32"
    no_grad: Annotated[bool, "evaluate without building graphs"] = True
    keep_best: Annotated[bool, "keep the weights of the best epoch, try them every fifth one, and end with them"] = (
        False
    )
    seed: Annotated[int, Bounds(0, 1_000_000), "of data, weights and order"] = 0
    epochs: Annotated[int, Bounds(1, 1000), "passes over the training points"] = 100

    def __post_init__(self) -> None:
        """Refuse what cannot be trained.

        Raises:
            InvalidConfig: batch normalisation over a batch of one, or more digits than there are.
        """
        self.check_batches()
        if self.dataset == "digits" and self.samples > DIGITS:
            raise InvalidConfig(
                f"samples is {self.samples}.", fix=f"There are {DIGITS} digits: choose at most as many."
            )

    def check_batches(self, added: int = 0) -> None:
        """Refuse batch normalisation over a batch of one.

        Args:
            added: points added by hand.

        Raises:
            InvalidConfig: there would be such a batch.
        """
        trained = self.trained + added
        if self.batchnorm and self.hidden and (self.batch == 1 or trained % self.batch == 1):
            last = "every batch has" if self.batch == 1 else f"{trained} points in batches of {self.batch} leave"
            raise InvalidConfig(
                f"batch is {self.batch} with batchnorm: {last} a batch of one point.",
                why="PyTorch cannot normalise one point over its batch, and raises.",
                fix="Choose another batch, or another number of samples.",
            )

    @property
    def classes(self) -> int:
        """How many the dataset has."""
        return {"blobs": 3, "digits": 10}.get(self.dataset, 2)

    @property
    def trained(self) -> int:
        """Points that are trained on, without those added by hand."""
        return self.samples - math.ceil(self.samples / 5)

    @property
    def updates(self) -> int:
        """How many a whole run makes, without points added by hand."""
        return self.epochs * math.ceil(math.ceil(self.trained / self.batch) / self.accumulation)
