"""Language model with accumulation where every token counts equally: sums are divided by the token count of the window."""

import torch
import torch.nn.functional as F
from torch import nn

PAD = 0
torch.manual_seed(7)


class TinyLM(nn.Module):
    def __init__(self, vocab=30, dim=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, tokens):
        return self.out(self.rnn(self.emb(tokens))[0])


def sentences(n):
    for _ in range(n):
        length = int(torch.randint(3, 12, ()))
        start = int(torch.randint(1, 18, ()))
        yield torch.arange(start, start + length)


def micro_batches(k, size):
    return [nn.utils.rnn.pad_sequence(list(sentences(size)), batch_first=True, padding_value=PAD) for _ in range(k)]


model = TinyLM()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
history = []
for update in range(25):
    window = micro_batches(4, 8)
    total = sum((b[:, 1:] != PAD).sum() for b in window)
    opt.zero_grad(set_to_none=True)
    window_loss = 0.0
    for tokens in window:
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=PAD, reduction="sum")
        loss = loss / total
        loss.backward()
        window_loss += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    history.append(window_loss)
assert history[-1] < history[0]
print(history[0], history[-1])
