"""torch.compile wraps the model; the optimizer was built from the original module."""

import torch
from torch import nn

torch.manual_seed(0)


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 32), nn.Linear(32, 1)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return self.b(self.drop(torch.relu(self.a(x))))


torch._dynamo.reset()
raw = MLP()
model = torch.compile(raw, backend="eager")
optimizer = torch.optim.AdamW(raw.parameters(), lr=1e-2)
x = torch.randn(256, 8)
y = x.pow(2).sum(1, keepdim=True)
for step in range(20):
    model.train()
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    if step % 10 == 9:
        model.eval()
        with torch.no_grad():
            print(step, loss.item(), nn.functional.mse_loss(model(x[:64]), y[:64]).item())
torch._dynamo.reset()
