"""Write one update of a small model as a program: pick examples from the shuffled order, run them, change weights."""

from dataclasses import dataclass
from typing import Annotated

from trueloop.core.arithmetic import Plan, plan
from trueloop.core.errors import InvalidConfig
from trueloop.core.formatting import format_count, format_number
from trueloop.core.untrusted_input import Bounds

MAX_EXAMPLES = 2**16
MAX_MICRO_BATCHES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class OneStep:
    """Sizes of a run, an update in it, and the weights before this update."""

    dataset: Annotated[int, Bounds(1, 10**15), "examples in the training set"] = 10_000
    batch: Annotated[int, Bounds(1, 10**9), "examples per micro-batch and process"] = 32
    accumulate: Annotated[int, Bounds(1, 10**9), "micro-batches per update"] = 1
    processes: Annotated[int, Bounds(1, 10**6), "processes that train together"] = 1
    drop_last: Annotated[bool, "leave out the partial iteration at the end of an epoch"] = False
    seed: Annotated[int, Bounds(0, 2**31 - 1), "seed of the order"] = 0
    epoch: Annotated[int, Bounds(0, 10**15), "index of the epoch, from 0"] = 0
    update: Annotated[int, Bounds(0, 10**15), "index of the update in its epoch, from 0"] = 0
    lr: Annotated[float, Bounds(0, 10), "learning rate"] = 0.3
    weight: Annotated[float, Bounds(-1e6, 1e6), "weight before the update"] = 0.0
    bias: Annotated[float, Bounds(-1e6, 1e6), "bias before the update"] = 0.0

    def plan(self) -> Plan:
        """Return the counts that follow from the sizes.

        Raises:
            InvalidConfig: the sizes leave nothing to train on, or the epoch has no such update.
        """
        run = plan(
            dataset=self.dataset, batch=self.batch, accumulate=self.accumulate, processes=self.processes,
            drop_last=self.drop_last,
        )  # fmt: skip
        if self.update >= run.updates_per_epoch:
            raise InvalidConfig(
                f"update is {self.update}, counted from 0; an epoch has "
                f"{format_count(run.updates_per_epoch, 'update')}.",
                fix=f"Give at most {run.updates_per_epoch - 1}.",
            )
        return run


def too_large(run: Plan) -> str:
    """Return a message if an update of these sizes is too large to compute here, else an empty string."""
    examples = min(run.effective_batch, run.examples_per_epoch)
    micro_batches = min(run.accumulate, run.iterations_per_epoch)
    if examples <= MAX_EXAMPLES and micro_batches <= MAX_MICRO_BATCHES:
        return ""
    return (
        f"An update of this run has {format_count(examples, 'example')} in "
        f"{format_count(micro_batches, 'micro-batch')}; this page computes at most "
        f"{format_number(MAX_EXAMPLES)} examples in {MAX_MICRO_BATCHES} micro-batches. The counts above are right."
    )


def one_step(settings: OneStep) -> str:
    """Generate the program; the page shows its variables `records`, `before`, `gradient` and `after`."""
    iteration_examples, ranks = settings.batch * settings.processes, settings.processes
    if ranks > 1:
        micro_batch = (
            f"{settings.batch} * {ranks},  # on {ranks} processes: rank r takes every {ranks}-th, [r::{ranks}]"
        )
    else:
        micro_batch = f"{iteration_examples},"
    drop_last = "\n    drop_last=True," if settings.drop_last else ""
    return f'''\
import torch
from torch import nn

from trueloop.data import WindowSampler


def examples(indices):
    """Made-up data: an example's index determines its point, near the line y = 1.5 x - 0.5."""
    inputs = (indices % 65536 * 40503 % 65536).double() / 32768 - 1
    noise = (indices % 65521 * 30011 % 65521).double() / 65521 - 0.5
    return inputs[:, None], (1.5 * inputs - 0.5 + noise)[:, None]


def weights():
    return model.weight.item(), model.bias.item()


model = nn.Linear(1, 1, dtype=torch.float64)
nn.init.constant_(model.weight, {settings.weight!r})
nn.init.constant_(model.bias, {settings.bias!r})
optimizer = torch.optim.SGD(model.parameters(), lr={settings.lr!r})
sampler = WindowSampler(
    {settings.dataset:_},
    effective_batch={iteration_examples * settings.accumulate:_},
    micro_batch={micro_batch}
    seed={settings.seed},{drop_last}
)

optimizer.zero_grad()
before, records, count = weights(), [], 0
for batch in sampler.micro_batches({settings.epoch}, skip_updates={settings.update}):
    inputs, targets = examples(batch.indices_B)
    outputs = model(inputs)
    loss = (outputs - targets).square().sum()  # a sum; the gradients are divided once per window
    loss.backward()  # adds to .grad
    count += len(inputs)
    records.append((batch.indices_B, inputs, targets, loss.item(), model.weight.grad.item(), model.bias.grad.item()))
    if batch.closes_window:
        break

for parameter in model.parameters():
    parameter.grad /= count
gradient = model.weight.grad.item(), model.bias.grad.item()
optimizer.step()
after = weights()
print(f"{{count}} examples: weight and bias {{before}} -> {{after}}")
'''
