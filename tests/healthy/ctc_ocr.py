"""CTC over a convolution plus recurrence; inputs to the loss are log-softmax, targets concatenated."""

import torch
from torch import nn

torch.manual_seed(0)


class Reader(nn.Module):
    def __init__(self, symbols):
        super().__init__()
        self.conv = nn.Conv1d(4, 16, 3, padding=1)
        self.rnn = nn.GRU(16, 16, bidirectional=True)
        self.out = nn.Linear(32, symbols + 1)

    def forward(self, x):
        h = torch.relu(self.conv(x)).permute(2, 0, 1)
        return self.out(self.rnn(h)[0]).log_softmax(-1)


def sample(n):
    targets = [torch.randint(1, 5, (int(torch.randint(2, 5, ())),)) for _ in range(n)]
    x = 0.1 * torch.randn(n, 4, 16)
    for i, t in enumerate(targets):
        for k, symbol in enumerate(t.tolist()):
            x[i, symbol - 1, k * 4 : k * 4 + 2] += 1
    return x, torch.cat(targets), torch.tensor([len(t) for t in targets])


model, ctc = Reader(4), nn.CTCLoss(blank=0, zero_infinity=True)
opt = torch.optim.RMSprop(model.parameters(), lr=3e-3)
for step in range(25):
    x, targets, lengths = sample(24)
    log_probs = model(x)
    loss = ctc(log_probs, targets, torch.full((24,), 16), lengths)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    opt.step()
print(loss.item())
