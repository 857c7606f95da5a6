"""Explain each component of the production loop: its purpose, its cost, and what goes wrong without it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A component that a production loop adds to the minimal loop."""

    title: str
    purpose: str
    cost: str
    """Cost besides the measured time; see `costs.py`."""
    without: str
    """What goes wrong if the component is missing, or is added in the usual, slightly wrong way."""
    codes: tuple[str, ...] = ()
    """Codes of the related failures in the catalogue."""


COMPONENTS: Final[Mapping[str, Component]] = {
    "seeding": Component(
        title="Seeding",
        purpose="Initial weights, the order of the examples and dropout's masks are the same in every run, so two runs "
        "differ by what you changed and by nothing else.",
        cost="No time. It does not make kernels deterministic: on a GPU use torch.use_deterministic_algorithms too. "
        "Code that uses random or numpy must seed these as well.",
        without="A change looks better or worse by chance. With the seed set inside the loop over epochs, every epoch "
        "repeats the same order.",
        codes=("DAT004", "DAT005"),
    ),
    "precision": Component(
        title="Autocast",
        purpose="Matrix products run in 16 bits, on a GPU several times faster and with half the memory for "
        "activations; weights, loss and sums stay in 32 bits. float16 also needs its small gradients scaled up, which "
        "GradScaler does; bfloat16 does not.",
        cost="Products are less precise, and on a CPU or for small layers autocast costs more time than it saves. "
        "With float16 a few updates are skipped until the scale is found.",
        without="Large models train at a fraction of the device's speed. Small float16 gradients become zero "
        "without a scaler; gradients that are clipped before they are unscaled shrink to almost nothing.",
        codes=("PRC001", "PRC002", "PRC003"),
    ),
    "accumulation": Component(
        title="Accumulation",
        purpose="One update uses a batch that does not fit into memory: its micro-batches run one after the other, and "
        "their gradients add up in .grad.",
        cost="Time: several small passes are slower than one large pass. BatchNorm normalises each micro-batch alone.",
        without="The batch has to fit into memory. With loss / K, the examples of a smaller last micro-batch weigh "
        "more than the others; so here losses are summed, and gradients divided once by the number of examples. With "
        "index % K alone, the gradients of an epoch's last micro-batches leak into the next epoch.",
        codes=("GRD003", "GRD004", "LOS005"),
    ),
    "clipping": Component(
        title="Clipping",
        purpose="One bad batch cannot move the weights far: if the norm of all gradients together exceeds the bound, "
        "all gradients are scaled down by the same factor. The norm is also the best early warning of divergence.",
        cost="One pass over the gradients, and one number to choose.",
        without="A single outlier undoes hours of training. Clipping after the step has no effect; clipping scaled "
        "gradients shrinks them too much.",
        codes=("GRD008", "GRD010", "PRC001"),
    ),
    "schedule": Component(
        title="Schedule",
        purpose="Updates are large at first and small at the end: the loss ends lower than with any constant rate.",
        cost="Almost no time. The number of updates of the run must be known beforehand.",
        without="The loss stops falling and fluctuates around a level that the learning rate determines. A schedule "
        "that advances per batch instead of per update, or before the step, lowers the rate at the wrong pace.",
        codes=("SCH001", "SCH002", "SCH003"),
    ),
    "evaluation": Component(
        title="Evaluation",
        purpose="Loss and accuracy on examples that were not trained on show whether the model has learnt or "
        "memorised. They are computed in eval mode and without a graph.",
        cost="A fifth of the examples, and a forward pass over them after each epoch.",
        without="Overfitting goes unnoticed. In train mode dropout distorts the numbers; with a graph they take as "
        "much memory as training; a mean of batch means gives a smaller last batch too much weight.",
        codes=("EVL001", "EVL002", "EVL003", "EVL006", "DAT001"),
    ),
    "early_stopping": Component(
        title="Early stopping",
        purpose="The run ends once the held-out loss has stopped improving, and the model gets its best weights back.",
        cost="A copy of the weights at each improvement, which doubles their memory. It needs an evaluation.",
        without="The run goes on although the model gets worse. A model.state_dict() that is not copied keeps the last "
        "weights, not the best.",
        codes=("CKP001",),
    ),
    "checkpoint": Component(
        title="Checkpoint and resume",
        purpose="The same command continues a run that was stopped for any reason. The file contains everything that "
        "the rest of the run depends on: weights, optimizer, schedule, scale, best loss, random number generators.",
        cost="Disk space of three times the weights with Adam, and the time to write them; fsync waits for the disk.",
        without="A crash costs the whole run. If the file is overwritten in place, a crash while saving costs the "
        "checkpoint as well. Without the optimizer's state the loss jumps after each restart; with "
        "weights_only=False, a loaded file may run code.",
        codes=("CKP001", "CKP002", "CKP003"),
    ),
    "logging": Component(
        title="Logging",
        purpose="A file gets one line of JSON per epoch: losses, learning rate, gradient norm.",
        cost="One addition per batch. The loss stays on the device until the epoch ends: reading it after every batch "
        "would make the GPU wait.",
        without="Results cannot be traced to a run. A list of losses with their graphs fills the memory.",
        codes=("MEM001",),
    ),
    "progress": Component(
        title="Progress",
        purpose="A line shows that the run is alive, and how much of the epoch is done.",
        cost="Reading the clock once per batch; the line is printed at most five times a second.",
        without="A hanging loader looks like a slow epoch. Printing at every batch can take longer than training.",
        codes=("ENV001",),
    ),
}
"""Name in `Selection` -> component, in the order in which one would add them."""
