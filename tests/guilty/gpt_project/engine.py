"""The training loop."""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Sums(Dataset):
    """Sentences such as 3+4=07, one token per character."""

    def __init__(self, n):
        self.pairs = [divmod(i * 37 % 100, 10) for i in range(n)]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        a, b = self.pairs[i]
        return torch.tensor([a, 10, b, 11, (a + b) // 10, (a + b) % 10, 12])


class Engine:
    def __init__(self, model, config):
        self.model, self.config = model, config
        self.loader = DataLoader(Sums(config.samples), batch_size=config.micro_batch, shuffle=True)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=config.updates)

    def forward_loss(self, tokens):
        logits = self.model(tokens[:, :-1])
        return F.cross_entropy(logits.reshape(-1, logits.size(-1)), tokens[:, 1:].reshape(-1))

    def train_epoch(self, epoch):
        self.model.train()
        self.optimizer.zero_grad()
        total = 0.0
        for i, tokens in enumerate(self.loader):  # <- GRD004
            loss = self.forward_loss(tokens)
            (loss / self.config.accumulate).backward()
            total += loss.item()
            if (i + 1) % self.config.accumulate == 0:
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
        return total / len(self.loader)
