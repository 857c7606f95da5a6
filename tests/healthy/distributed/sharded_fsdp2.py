"""FSDP2: a small transformer whose blocks are sharded one by one, gradients accumulated, the norm clipped over all shards."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(width, width)
        self.wide, self.back = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        x = x + self.mix(self.norm(x)).cumsum(1) / 8
        return x + self.back(nn.functional.gelu(self.wide(x)))


class Model(nn.Module):
    def __init__(self, tokens=32, width=16):
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(2)])
        self.head = nn.Linear(width, tokens, bias=False)

    def forward(self, x):
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model, mesh = Model(), init_device_mesh("cpu", (dist.get_world_size(),))
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
torch.manual_seed(rank)
for step in range(24):
    last = step % 2 == 1
    model.set_requires_gradient_sync(last)
    text = torch.arange(9).repeat(8, 1) + torch.randint(0, 23, (8, 1))
    logits = model(text[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
    (loss / 2).backward()
    if last:
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
whole = {name: p.full_tensor().double().sum().item() for name, p in model.named_parameters()}
print(rank, norm.full_tensor().item(), sum(whole.values()))
dist.barrier()
dist.destroy_process_group()
