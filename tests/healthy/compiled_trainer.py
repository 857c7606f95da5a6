"""A Trainer whose complete update is compiled (aot_eager), with one and with several micro-batches per update."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from trueloop import TrainConfig, Trainer

torch.manual_seed(0)
torch._dynamo.reset()
compiled_by_torch = torch.compile
torch.compile = lambda function, fullgraph=False, **_: compiled_by_torch(
    function, fullgraph=fullgraph, backend="aot_eager"
)
x = torch.randn(160, 4)
y = (x @ torch.randn(4, 3)).argmax(1)
try:
    for micro_batch in (None, 8):
        layers = (nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
        model = nn.Sequential(*layers)
        config = TrainConfig(epochs=3, effective_batch=16, micro_batch=micro_batch, compile=True, workers=0)
        data = TensorDataset(x[:128], y[:128]), TensorDataset(x[128:], y[128:])
        result = Trainer(model=model, objective=nn.CrossEntropyLoss(), config=config).fit(data[0], val=data[1])
        print(result.metrics["val/loss"])
finally:
    torch.compile = compiled_by_torch
    torch._dynamo.reset()
