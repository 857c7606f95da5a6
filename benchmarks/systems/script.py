"""A usual training script, which every tool that watches scripts runs unmodified.

Environment variables select the workload, because each tool treats arguments differently. The script imports neither
trueloop nor `measure`, so it also runs in other environments; the benchmark reads ``times``.
"""

import json
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from workloads import cnn, cnn_batches, gpt, gpt_batches, join_batches, mlp, mlp_batches

torch.set_num_threads(1)
name, updates = os.environ["BENCH_WORKLOAD"], int(os.environ["BENCH_UPDATES"])
if name == "mlp":
    model, batches, size = mlp(inputs=64, hidden=128), mlp_batches(batch=64, inputs=64), 64  # about 0.4 ms per update
elif name == "gpt":
    model, batches, size = gpt(), gpt_batches(batch=12), 12  # 20 ms and more, as below
else:
    model, batches, size = cnn(width=128), cnn_batches(count=100), 128

torch.manual_seed(0)
loader = DataLoader(TensorDataset(*join_batches(batches)), batch_size=size, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
times: list[tuple[float, float]] = []

while len(times) <= updates:
    for inputs, targets in loader:
        times.append((time.perf_counter(), time.process_time()))
        if len(times) > updates:
            break
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()

weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
if "BENCH_TIMES" in os.environ:
    with open(os.environ["BENCH_TIMES"], "w") as file:  # noqa: PTH123 - as in a usual script
        json.dump(times, file)
