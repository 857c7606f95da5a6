"""Validation every n updates inside the epoch; at the end, predictions are averaged over random shifts."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    def __init__(self, lo, hi, augment):
        d = load_digits()
        self.x = torch.tensor(d.images[lo:hi], dtype=torch.float32).unsqueeze(1) / 16
        self.y = torch.tensor(d.target[lo:hi])
        self.augment = augment

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i]
        if self.augment:
            x = torch.roll(x, int(torch.randint(-1, 2, ())), dims=2)
        return x, self.y[i]


def predict(model, loader):
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        out = torch.cat([model(x).softmax(1) for x, _ in loader])
    model.train(was_training)
    return out


torch.manual_seed(0)
train, val, test = Digits(0, 1200, True), Digits(1200, 1400, False), Digits(1400, 1797, False)
loaders = DataLoader(train, 60, shuffle=True), DataLoader(val, 100), DataLoader(test, 100)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(288, 10)
)
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
step = 0
for epoch in range(2):
    for x, y in loaders[0]:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        step += 1
        if step % 10 == 0:
            print(step, (predict(model, loaders[1]).argmax(1) == val.y).float().mean().item())
plain = predict(model, loaders[2])
test.augment = True
averaged = torch.stack([predict(model, loaders[2]) for _ in range(4)]).mean(0)
print((plain.argmax(1) == test.y).float().mean().item(), (averaged.argmax(1) == test.y).float().mean().item())
