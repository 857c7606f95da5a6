"""One update of a small model as a program: examples picked from the shuffled order, processed, weights changed."""

from dataclasses import dataclass
from typing import Annotated

from trueloop.core.arithmetic import Plan, plan
from trueloop.core.errors import InvalidConfig
from trueloop.core.formatting import format_count, format_number
from trueloop.core.untrusted_input import Bounds

EXAMPLES_AT_MOST = 2**16
MICRO_BATCHES_AT_MOST = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class OneStep:
    """Which update of which run, and the weights before it."""

    dataset: Annotated[int, Bounds(1, 10**15), "examples in the training set"] = 10_000
    batch: Annotated[int, Bounds(1, 10**9), "examples per micro-batch and process"] = 32
    accumulate: Annotated[int, Bounds(1, 10**9), "micro-batches per update"] = 1
    processes: Annotated[int, Bounds(1, 10**6), "processes that train together"] = 1
    drop_last: Annotated[bool, "leave out the partial iteration at the end of an epoch"] = False
    seed: Annotated[int, Bounds(0, 2**31 - 1), "of the order"] = 0
    epoch: Annotated[int, Bounds(0, 10**15), "counted from 0"] = 0
    update: Annotated[int, Bounds(0, 10**15), "in its epoch, counted from 0"] = 0
    lr: Annotated[float, Bounds(0, 10), "learning rate"] = 0.3
    weight: Annotated[float, Bounds(-1e6, 1e6), "before the update"] = 0.0
    bias: Annotated[float, Bounds(-1e6, 1e6), "before the update"] = 0.0

    def plan(self) -> Plan:
        """Give the arithmetic of the sizes.

        Raises:
            InvalidConfig: sizes that train nothing, an update that the epoch does not have, or one too large to show.
        """
        made = plan(
            dataset=self.dataset,
            batch=self.batch,
            accumulate=self.accumulate,
            processes=self.processes,
            drop_last=self.drop_last,
        )
        if self.update >= made.updates_per_epoch:
            raise InvalidConfig(
                f"update is {self.update}, counted from 0; an epoch has "
                f"{format_count(made.updates_per_epoch, 'update')}.",
                fix=f"Give at most {made.updates_per_epoch - 1}.",
            )
        return made


def too_large(made: Plan) -> str:
    """Say why an update of these sizes is not computed here; empty where it is."""
    examples = min(made.effective_batch, made.examples_per_epoch)
    micro_batches = min(made.accumulate, made.iterations_per_epoch)
    if examples <= EXAMPLES_AT_MOST and micro_batches <= MICRO_BATCHES_AT_MOST:
        return ""
    return (
        f"An update here takes {format_count(examples, 'example')} in "
        f"{format_count(micro_batches, 'micro-batch')}; this page "
        f"computes at most {format_number(EXAMPLES_AT_MOST)} in {MICRO_BATCHES_AT_MOST}. The counts above hold "
        f"all the same."
    )


def one_step(asked: OneStep) -> str:
    """Write the program; what it leaves in `seen`, `before`, `gradient` and `after` is what the page shows."""
    step = asked.batch * asked.processes
    if asked.processes > 1:
        shared = f"  # on {asked.processes} processes: rank r takes every {asked.processes}-th, [r::{asked.processes}]"
        micro_batch = f"{asked.batch} * {asked.processes},{shared}"
    else:
        micro_batch = f"{step},"
    dropped = "\n    drop_last=True," if asked.drop_last else ""
    return f'''\
import torch
from torch import nn

from trueloop.data import WindowSampler


def examples(numbers):
    """Made-up data: an example's number decides its point, near the line y = 1.5 x - 0.5."""
    inputs = (numbers % 65536 * 40503 % 65536).double() / 32768 - 1
    noise = (numbers % 65521 * 30011 % 65521).double() / 65521 - 0.5
    return inputs[:, None], (1.5 * inputs - 0.5 + noise)[:, None]


def weights():
    return model.weight.item(), model.bias.item()


model = nn.Linear(1, 1, dtype=torch.float64)
nn.init.constant_(model.weight, {asked.weight!r})
nn.init.constant_(model.bias, {asked.bias!r})
optimizer = torch.optim.SGD(model.parameters(), lr={asked.lr!r})
sampler = WindowSampler(
    {asked.dataset:_},
    effective_batch={step * asked.accumulate:_},
    micro_batch={micro_batch}
    seed={asked.seed},{dropped}
)

optimizer.zero_grad()
before, seen, count = weights(), [], 0
for batch in sampler.micro_batches({asked.epoch}, skip_updates={asked.update}):
    inputs, targets = examples(batch.indices_B)
    outputs = model(inputs)
    loss = (outputs - targets).square().sum()  # a sum, divided once for the whole window
    loss.backward()  # adds to .grad
    count += len(inputs)
    seen.append((batch.indices_B, inputs, targets, loss.item(), model.weight.grad.item(), model.bias.grad.item()))
    if batch.closes_window:
        break

for parameter in model.parameters():
    parameter.grad /= count
gradient = model.weight.grad.item(), model.bias.grad.item()
optimizer.step()
after = weights()
print(f"{{count}} examples: weight and bias {{before}} -> {{after}}")
'''
