"""An encoder-decoder transformer on a copy task: causal mask, padding ignored, label smoothing, Noam schedule, greedy decoding."""

import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore", message=".*nested tensors")
PAD, BOS, VOCAB, D = 0, 1, 14, 32


class Noam:
    """Not a torch scheduler: owns the optimizer and sets the rate before every step."""

    def __init__(self, optimizer, model_size, warmup, factor=0.5):
        self.optimizer, self._step, self.size, self.warmup, self.factor = optimizer, 0, model_size, warmup, factor

    def rate(self):
        return self.factor * self.size**-0.5 * min(self._step**-0.5, self._step * self.warmup**-1.5)

    def step(self):
        self._step += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()
        self.optimizer.step()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCAB, D, padding_idx=PAD), nn.Parameter(torch.randn(12, D) * 0.1)
        self.core = nn.Transformer(D, 2, 1, 1, 64, dropout=0.1, batch_first=True)
        self.generator = nn.Linear(D, VOCAB, bias=False)
        self.generator.weight = self.embed.weight
        self.reset_parameters()

    def reset_parameters(self):
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def put(self, ids):
        return self.embed(ids) * D**0.5 + self.position[: ids.size(1)]

    def forward(self, src, tgt):
        causal = nn.Transformer.generate_square_subsequent_mask(tgt.size(1)).bool()
        h = self.core(
            self.put(src), self.put(tgt), tgt_mask=causal, src_key_padding_mask=src == PAD, memory_key_padding_mask=src == PAD,
            tgt_key_padding_mask=tgt == PAD,
        )  # fmt: skip
        return self.generator(h)


def batch(n=32):
    lengths = torch.randint(3, 8, (n, 1))
    src = torch.randint(2, VOCAB, (n, 8)).masked_fill(torch.arange(8) >= lengths, PAD)
    return src, torch.cat([torch.full((n, 1), BOS), src], dim=1)


torch.manual_seed(0)
model = Model()
opt = Noam(torch.optim.Adam(model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9), D, warmup=15)
criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)
for step in range(25):
    src, tgt = batch()
    loss = criterion(model(src, tgt[:, :-1]).flatten(0, 1), tgt[:, 1:].flatten())
    opt.optimizer.zero_grad()
    loss.backward()
    opt.step()
model.eval()
with torch.no_grad():
    src, _ = batch(4)
    out = torch.full((4, 1), BOS)
    for _ in range(7):
        out = torch.cat([out, model(src, out)[:, -1].argmax(-1, keepdim=True)], dim=1)
print(loss.item(), out.sum().item())
