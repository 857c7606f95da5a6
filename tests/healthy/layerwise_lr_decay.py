"""A small transformer encoder with layer-wise learning rate decay, no decay on norms, warm-up through LambdaLR per update."""

import torch
from torch import nn

torch.manual_seed(0)


class Encoder(nn.Module):
    def __init__(self, vocab=20, d=32, layers=3):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d, 4, 64, dropout=0.1, batch_first=True) for _ in range(layers)
        )
        self.classifier = nn.Linear(d, 2)

    def forward(self, ids):
        h = self.embed(ids)
        for layer in self.layers:
            h = layer(h)
        return self.classifier(h.mean(1))


def param_groups(model, lr, decay=0.8, weight_decay=0.05):
    depth = len(model.layers)
    for name, p in model.named_parameters():
        if name.startswith("embed"):
            scale = decay ** (depth + 1)
        elif name.startswith("layers"):
            scale = decay ** (depth - int(name.split(".")[1]))
        else:
            scale = 1.0
        yield {"params": [p], "lr": lr * scale, "weight_decay": 0.0 if p.ndim < 2 else weight_decay}


ids = torch.randint(0, 20, (256, 10))
labels = ((ids == 3).sum(1) > (ids == 5).sum(1)).long()
model = Encoder()
opt = torch.optim.AdamW(list(param_groups(model, 2e-3)))
total, warmup = 24, 4
sched = torch.optim.lr_scheduler.LambdaLR(
    opt, lambda s: (s + 1) / warmup if s < warmup else max(0.0, (total - s) / (total - warmup))
)
for epoch in range(3):
    for idx in torch.randperm(256).split(32):
        loss = nn.functional.cross_entropy(model(ids[idx]), labels[idx], label_smoothing=0.1)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        opt.step()
        sched.step()
    print(epoch, loss.item(), sched.get_last_lr()[0])
