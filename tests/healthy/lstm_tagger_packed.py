"""A sequence tagger over padded batches: packed LSTM, sequences sorted by length, padding ignored in loss and metric."""

import random

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

PAD_TAG = -100


class Sentences(Dataset):
    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.items = []
        for _ in range(n):
            words = [rng.randrange(1, 30) for _ in range(rng.randrange(2, 14))]
            self.items.append(
                (torch.tensor(words), torch.tensor([(w + (words[i - 1] if i else 0)) % 3 for i, w in enumerate(words)]))
            )

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    batch.sort(key=lambda item: len(item[0]), reverse=True)
    words, tags = zip(*batch)
    lengths = torch.tensor([len(w) for w in words])
    return pad_sequence(words, True), lengths, pad_sequence(tags, True, PAD_TAG)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 24, batch_first=True, bidirectional=True)
        self.proj = nn.Linear(48, 3)

    def forward(self, words, lengths):
        packed = pack_padded_sequence(self.embed(words), lengths, batch_first=True)
        h, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.proj(h)


def evaluate(model, loader):
    model.eval()
    right = total = 0
    with torch.no_grad():
        for words, lengths, tags in loader:
            guess = model(words, lengths).argmax(-1)
            real = tags != PAD_TAG
            right += (guess[real] == tags[real]).sum().item()
            total += real.sum().item()
    model.train()
    return right / total


torch.manual_seed(0)
train, dev = (
    DataLoader(Sentences(256, 0), 32, True, collate_fn=collate),
    DataLoader(Sentences(64, 1), 32, collate_fn=collate),
)
model = Tagger()
opt = torch.optim.Adam(model.parameters(), 1e-2)
for epoch in range(3):
    for words, lengths, tags in train:
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(words, lengths).transpose(1, 2), tags, ignore_index=PAD_TAG)
        loss.backward()
        opt.step()
    print(epoch, loss.item(), evaluate(model, dev))
