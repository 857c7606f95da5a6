"""DST003: set_epoch is never called."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

x = torch.randn(96, 6)
data = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

def one_epoch(loader, net=model, opt=optimizer):
    for a, b in loader:
        opt.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        opt.step()
"""

FAULTY = {
    "forgotten": """
sampler = DistributedSampler(data, num_replicas=2, rank=0, shuffle=True)
loader = DataLoader(data, 8, sampler=sampler)
for epoch in range(3):
    for a, b in loader:  # <- DST003
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
""",
    "in functions, with a held-out sampler": """
def loaders():
    train = DistributedSampler(data, 2, 1, seed=3)
    held_out = DistributedSampler(data, num_replicas=2, rank=1, shuffle=False)
    return DataLoader(data, batch_size=6, sampler=train), DataLoader(TensorDataset(x + 9, x), 6, sampler=held_out)

def fit(net, opt, epochs=4):
    train, held_out = loaders()
    for epoch in range(epochs):
        for i, (a, b) in enumerate(train):  # <- DST003
            loss = nn.functional.mse_loss(net(a), b)
            loss.backward()
            opt.step()
            opt.zero_grad()

fit(model, optimizer)
""",
    "a sampler within a batch sampler": """
batches = BatchSampler(DistributedSampler(data, num_replicas=2, rank=0), batch_size=8, drop_last=True)
loader = DataLoader(data, batch_sampler=batches)
for epoch in range(3):
    for a, b in loader:  # <- DST003
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
""",
    "a class that rebuilds loader and sampler each time": """
class Trainer:
    def loader(self):
        sampler = DistributedSampler(data, num_replicas=4, rank=2)
        return DataLoader(data, 4, sampler=sampler)
    def epoch(self):
        for i, (a, b) in enumerate(self.loader()):  # <- DST003
            (nn.functional.mse_loss(model(a), b) / 2).backward()
            if i % 2:
                optimizer.step()
                optimizer.zero_grad()
trainer = Trainer()
for _ in range(3):
    trainer.epoch()
""",
    "the same epoch set each time": """
sampler = DistributedSampler(data, num_replicas=2, rank=0)
loader = DataLoader(data, 8, sampler=sampler)
start = 0
for epoch in range(3):
    sampler.set_epoch(start)
    for a, b in loader:  # <- DST003
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
""",
}

CORRECT = {
    "set on the sampler": """
sampler = DistributedSampler(data, num_replicas=2, rank=0)
loader = DataLoader(data, 8, sampler=sampler)
for epoch in range(3):
    sampler.set_epoch(epoch)
    one_epoch(loader)
""",
    "set on the sampler of the loader, in a helper": """
def begin(loader, epoch):
    if isinstance(loader.sampler, DistributedSampler):
        loader.sampler.set_epoch(epoch)
loader = DataLoader(data, 8, sampler=DistributedSampler(data, num_replicas=2, rank=0))
for epoch in range(3):
    begin(loader, epoch)
    one_epoch(loader)
""",
    "set through a batch sampler": """
loader = DataLoader(data, batch_sampler=BatchSampler(DistributedSampler(data, 2, 0), 8, True))
for epoch in range(3):
    loader.batch_sampler.sampler.set_epoch(epoch)
    one_epoch(loader)
""",
    "not shuffled": """
loader = DataLoader(data, 8, sampler=DistributedSampler(data, num_replicas=2, rank=0, shuffle=False))
for epoch in range(3):
    one_epoch(loader)
""",
    "one epoch": """
loader = DataLoader(data, 8, sampler=DistributedSampler(data, num_replicas=2, rank=0))
one_epoch(loader)
""",
    "resumed at the epoch after": """
sampler = DistributedSampler(data, num_replicas=2, rank=0)
loader = DataLoader(data, 8, sampler=sampler)
one_epoch(loader)
weights = {k: v.clone() for k, v in model.state_dict().items()}
for epoch in range(1, 3):
    sampler.set_epoch(epoch)
    one_epoch(loader)
""",
    "a seed for each epoch": """
for epoch in range(3):
    one_epoch(DataLoader(data, 8, sampler=DistributedSampler(data, num_replicas=2, rank=0, seed=epoch)))
""",
    "an epoch from another counter": """
class Counting(DistributedSampler):
    def __iter__(self):
        self.epoch += 1
        return super().__iter__()
loader = DataLoader(data, 8, sampler=Counting(data, num_replicas=2, rank=0))
for epoch in range(3):
    one_epoch(loader)
""",
    "two alternating models": """
other = nn.Linear(6, 1)
its_optimizer = torch.optim.SGD(other.parameters(), lr=0.01)
sampler = DistributedSampler(data, num_replicas=2, rank=0)
loader = DataLoader(data, 8, sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch)
    one_epoch(loader)
    one_epoch(loader, other, its_optimizer)
""",
    "two runs to compare": """
loader = DataLoader(data, 8, sampler=DistributedSampler(data, num_replicas=2, rank=0))
for rate in (0.1, 0.01):
    net = nn.Linear(6, 1)
    one_epoch(loader, net, torch.optim.SGD(net.parameters(), lr=rate))
""",
    "rolled back": """
loader = DataLoader(data, 8, sampler=DistributedSampler(data, num_replicas=2, rank=0))
weights = {k: v.clone() for k, v in model.state_dict().items()}
one_epoch(loader)
model.load_state_dict(weights)
one_epoch(loader)
""",
    "one batch": """
loader = DataLoader(data, 48, sampler=DistributedSampler(data, num_replicas=2, rank=0))
for epoch in range(4):
    one_epoch(loader)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_faulty_scripts(run_reports, script):
    found = run_reports(HEAD + script).findings
    assert {each.change.text for each in found if each.code == "DST003"} == {"loader.sampler.set_epoch(epoch)"}


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


# The rule --------------------------------------------------------------------------------------------------------

RUN_ONLY = {"a sampler within a batch sampler", "the same epoch set each time"}
NOT_LINTED = {"one batch"}  # the text does not tell how many samples there are

LINT_FAULTY = {
    "the usual script": """
import os
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    net = DDP(nn.Linear(6, 1).cuda(local), device_ids=[local])
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    sampler = DistributedSampler(data)
    train_loader = DataLoader(data, batch_size=32, sampler=sampler, num_workers=4, pin_memory=True)
    for epoch in range(90):
        net.train()
        for a, b in train_loader:  # <- DST003
            opt.zero_grad()
            nn.functional.mse_loss(net(a.cuda(local)), b.cuda(local)).backward()
            opt.step()
        dist.barrier()
if __name__ == "__main__":
    main()
""",
    "only where there are several processes": """
def train(args):
    train_sampler = torch.utils.data.distributed.DistributedSampler(data) if args.distributed else None
    loader = DataLoader(data, 32, shuffle=train_sampler is None, sampler=train_sampler)
    for epoch in range(args.start_epoch, args.epochs):
        for a, b in loader:  # <- DST003
            optimizer.zero_grad()
            nn.functional.mse_loss(model(a), b).backward()
            optimizer.step()
""",
}

LINT_CORRECT = {
    "the ImageNet example": """
def main(args):
    if args.distributed:
        train_sampler = DistributedSampler(data)
    else:
        train_sampler = None
    loader = DataLoader(data, 32, shuffle=(train_sampler is None), sampler=train_sampler)
    for epoch in range(args.epochs):
        if args.distributed:
            train_sampler.set_epoch(epoch)
        one_epoch(loader)
""",
    "set in code that the file does not show": """
from helpers import begin_epoch
sampler = DistributedSampler(data)
loader = DataLoader(data, 32, sampler=sampler)
for epoch in range(9):
    begin_epoch(sampler, epoch)
    one_epoch(loader)
""",
    "set on any object with the method": """
loader = DataLoader(data, 32, sampler=DistributedSampler(data))
for epoch in range(9):
    for each in (loader.sampler, loader.dataset):
        if hasattr(each, "set_epoch"):
            each.set_epoch(epoch)
    one_epoch(loader)
""",
    "prepared by Accelerate": """
from accelerate import Accelerator
accelerator = Accelerator()
loader = DataLoader(data, 32, sampler=DistributedSampler(data))
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(9):
    for a, b in loader:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.mse_loss(model(a), b))
        optimizer.step()
""",
    "shuffled or not, as one likes": """
def main(args):
    loader = DataLoader(data, 32, sampler=DistributedSampler(data, shuffle=args.shuffle))
    for epoch in range(args.epochs):
        one_epoch(loader)
""",
    "evaluated": """
loader = DataLoader(data, 32, sampler=DistributedSampler(data))
for trial in range(3):
    for a, b in loader:
        model(a)
""",
}


@pytest.mark.parametrize("name", [*(FAULTY.keys() - RUN_ONLY), *LINT_FAULTY])
def test_lint_reports_faulty_scripts(lint_reports, name):
    lint_reports(HEAD + {**FAULTY, **LINT_FAULTY}[name])


@pytest.mark.parametrize("name", [*RUN_ONLY, *(CORRECT.keys() - NOT_LINTED), *LINT_CORRECT])
def test_lint_accepts_correct_scripts(lint_is_clean, name):
    lint_is_clean(HEAD + {**FAULTY, **CORRECT, **LINT_CORRECT}[name])
