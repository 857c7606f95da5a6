"""The counts of a run as a program: once by arithmetic, once by the length of a real DataLoader."""

from __future__ import annotations

from trueloop.core.arithmetic import Plan


def counts(plan: Plan) -> str:
    """Write the program. It holds its own check, and takes no memory for the order, however large the dataset."""
    sizes = [f"dataset={plan.dataset:_}", f"batch={plan.batch:_}", f"epochs={plan.epochs:_}"]
    sizes += [f"accumulate={plan.accumulate:_}"] if plan.accumulate > 1 else []
    sizes += [f"processes={plan.processes:_}"] if plan.processes > 1 else []
    sizes += ["drop_last=True"] if plan.drop_last else []
    sizes += [f"sample_bytes={plan.sample_bytes:_}"] if plan.sample_bytes is not None else []
    share = f", processes={plan.processes:_}, rank=0" if plan.processes > 1 else ""
    dropped = ", drop_last=True" if plan.drop_last else ""
    whose = "the first process's loader" if plan.processes > 1 else "the loader"
    return f'''\
from torch.utils.data import DataLoader

from trueloop import plan
from trueloop.data import OrderSampler

run = plan({", ".join(sizes)})
for name, value in run.as_dict().items():
    print(name, value)

# The same sizes given to torch. Any dataset of that length does; this sampler shuffles without keeping a list.
sampler = OrderSampler(run.dataset, seed=0{share}{dropped})
loader = DataLoader(range(run.dataset), batch_size=run.batch, sampler=sampler{dropped})
assert len(loader) == run.iterations_per_epoch, "{whose} has as many batches as there are iterations"
print("first micro-batch", next(iter(loader)).tolist())
'''
