"""Made-up sentences; the label is whether word 7 occurs more often than word 9."""

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            words = torch.randint(1, 40, (int(torch.randint(5, 16, (), generator=g)),), generator=g)
            words[torch.rand(len(words), generator=g) < 0.4] = 7 if torch.rand((), generator=g) < 0.5 else 9
            self.rows.append((words, int((words == 7).sum() > (words == 9).sum())))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i][0], "label": self.rows[i][1]}


def collate(features):
    ids = [f["input_ids"] for f in features]
    return {
        "input_ids": pad_sequence(ids, batch_first=True, padding_value=0),
        "attention_mask": pad_sequence([torch.ones_like(i) for i in ids], batch_first=True, padding_value=0),
        "labels": torch.tensor([f["label"] for f in features]),
    }


def build_dataloaders(batch_size):
    train = DataLoader(Sentences(320, 1), batch_size=batch_size, shuffle=True, collate_fn=collate)
    dev = DataLoader(Sentences(128, 2), batch_size=64, shuffle=False, collate_fn=collate)
    return train, dev
