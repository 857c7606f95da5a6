"""What each component of the production loop is for, what it costs, and what goes wrong without it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A component that a production loop adds to the minimal one."""

    title: str
    why: str
    """What it is for."""
    cost: str
    """What it costs beyond time, which is measured; see `costs.py`."""
    without: str
    """What goes wrong where it is missing, or where it is added in the usual, slightly wrong way."""
    codes: tuple[str, ...] = ()
    """The catalogue's failures that belong to it."""


COMPONENTS: Final[Mapping[str, Component]] = {
    "seeding": Component(
        title="Seeding",
        why="Initial weights, the order of the examples and dropout's masks are the same in every run, so two runs "
        "differ by what you changed and by nothing else.",
        cost="No time. It does not make kernels deterministic: on a GPU use torch.use_deterministic_algorithms too. "
        "Code that uses random or numpy needs those seeded as well.",
        without="A change looks better or worse by chance. Seeded inside the loop over epochs, every epoch would "
        "repeat one order.",
        codes=("DAT004", "DAT005"),
    ),
    "precision": Component(
        title="Autocast",
        why="Matrix products run in 16 bits, on a GPU several times faster and with half the memory for activations; "
        "weights, loss and sums stay in 32 bits. float16 also needs its small gradients scaled up, which GradScaler "
        "does; bfloat16 does not.",
        cost="Less precise products, and on a CPU or on small layers more time than it saves. With float16 a few "
        "updates are skipped until the scale is found.",
        without="Large models train at a fraction of the speed the device has. Small gradients of float16 become zero "
        "without a scaler; clipped before they are unscaled, they are clipped to almost nothing.",
        codes=("PRC001", "PRC002", "PRC003"),
    ),
    "accumulation": Component(
        title="Accumulation",
        why="One update from a batch that does not fit into memory: its pieces go through one after the other, and "
        "their gradients add up in .grad.",
        cost="Time: several small passes are slower than one large one. BatchNorm sees each piece by itself.",
        without="The batch has to fit into memory. Done with loss / K, the examples of a short last piece weigh more "
        "than the others; so here losses are summed, and the sum is divided once by the number of examples. Done "
        "with index % K alone, the last pieces of an epoch leak into the next.",
        codes=("GRD003", "GRD004", "LOS005"),
    ),
    "clipping": Component(
        title="Clipping",
        why="One bad batch cannot throw the weights far away: where the norm of all gradients together is above the "
        "bound, all are scaled down by the same factor. The norm is the best early warning there is.",
        cost="One pass over the gradients, and one number to choose.",
        without="A single outlier undoes hours of training. After the step, or on scaled gradients, clipping "
        "does nothing or too much.",
        codes=("GRD008", "GRD010", "PRC001"),
    ),
    "schedule": Component(
        title="Schedule",
        why="Large steps at first, small ones at the end: the loss settles lower than at any constant rate.",
        cost="Almost no time. The length of the run must be known beforehand, in updates.",
        without="The loss goes on wandering at the height that the rate sets. Advanced once per batch instead of once "
        "per update, or before the step, the rate falls at the wrong pace.",
        codes=("SCH001", "SCH002", "SCH003"),
    ),
    "evaluation": Component(
        title="Evaluation",
        why="The one number that says whether the model has learnt or memorised: loss and accuracy on examples that "
        "were not trained on, in eval mode, without a graph.",
        cost="A fifth of the examples, and a forward pass over them after each epoch.",
        without="Overfitting is not seen. In train mode dropout falsifies the numbers; with a graph they take as much "
        "memory as training; a mean of batch means weighs the last batch too much.",
        codes=("EVL001", "EVL002", "EVL003", "EVL006", "DAT001"),
    ),
    "early_stopping": Component(
        title="Early stopping",
        why="The run ends where the held-out loss has stopped improving, and the model ends with its best weights.",
        cost="A copy of the weights at each improvement, as much memory again as they take. It needs an evaluation.",
        without="Time is spent on getting worse. Kept as model.state_dict() without a copy, the best weights are "
        "the last ones.",
        codes=("CKP001",),
    ),
    "checkpoint": Component(
        title="Checkpoint and resume",
        why="The same command goes on where the run was stopped, by whatever stopped it. Everything the future depends "
        "on is in the file: weights, optimizer, schedule, scale, best value, random numbers.",
        cost="Three times the weights on the disk with Adam, and the time to write them; fsync waits for the disk.",
        without="A crash costs the whole run. Written in place, a crash while saving costs the checkpoint as well. "
        "Without the optimizer's state the loss jumps after each restart; loaded with weights_only=False, the file "
        "may run code.",
        codes=("CKP001", "CKP002", "CKP003"),
    ),
    "logging": Component(
        title="Logging",
        why="One line of JSON for each epoch, in a file that is still there tomorrow: losses, rate, gradient norm.",
        cost="One addition per batch. The loss stays on the device until the epoch ends: reading it for every batch "
        "would make the device wait.",
        without="Results cannot be traced to a run. Losses collected with their graph fill the memory.",
        codes=("MEM001",),
    ),
    "progress": Component(
        title="Progress",
        why="A sign of life, and a guess when it ends.",
        cost="A look at the clock per batch; it is drawn five times a second at most, however fast the loop is.",
        without="A hanging loader looks like a slow epoch. Drawn per batch, progress can take longer than training.",
        codes=("ENV001",),
    ),
}
"""By its name in `Selection`, in the order in which a loop grows."""
