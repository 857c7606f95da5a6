"""Segmentation with early stopping; the best weights are put back at the end, or so it seems."""

import logging
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.utils.data import DataLoader, Dataset, random_split

dir_checkpoint = Path("./checkpoints/")


class Shapes(Dataset):
    def __init__(self, n=160):
        g = torch.Generator().manual_seed(12)
        self.masks = torch.zeros(n, 16, 16)
        for i in range(n):
            r, c, h, w = (torch.randint(2, 9, (4,), generator=g)).tolist()
            self.masks[i, r : r + h, c : c + w] = 1
        self.images = self.masks * 0.8 + 0.4 * torch.randn(n, 16, 16, generator=g)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return {"image": self.images[i].unsqueeze(0), "mask": self.masks[i]}


class DoubleConv(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )

    def forward(self, x):
        return self.double_conv(x)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inc, self.down = DoubleConv(1, 8), DoubleConv(8, 16)
        self.up, self.conv = nn.ConvTranspose2d(16, 8, kernel_size=2, stride=2), DoubleConv(16, 8)
        self.outc = nn.Conv2d(8, 1, kernel_size=1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down(F.max_pool2d(x1, 2))
        return self.outc(self.conv(torch.cat([x1, self.up(x2)], dim=1))).squeeze(1)


@torch.inference_mode()
def evaluate(net, dataloader):
    net.eval()
    intersection = union = 0.0
    for batch in dataloader:
        pred = (torch.sigmoid(net(batch["image"])) > 0.5).float()
        intersection += (pred * batch["mask"]).sum().item()
        union += ((pred + batch["mask"]) > 0).float().sum().item()
    net.train()
    return intersection / max(union, 1.0)


def train_model(model, epochs=4, batch_size=16, learning_rate=3e-3, patience=3):
    dataset = Shapes()
    train_set, val_set = random_split(dataset, [128, 32], generator=torch.Generator().manual_seed(0))
    train_loader = DataLoader(train_set, shuffle=True, batch_size=batch_size)
    val_loader = DataLoader(val_set, shuffle=False, batch_size=batch_size)
    optimizer = optim.RMSprop(model.parameters(), lr=learning_rate, weight_decay=1e-8, momentum=0.5)
    criterion = nn.BCEWithLogitsLoss()
    best_score, best_state, waited = -1.0, None, 0
    for epoch in range(1, epochs + 1):
        model.train()
        epoch_loss = 0.0
        for batch in train_loader:
            masks_pred = model(batch["image"])
            loss = criterion(masks_pred, batch["mask"])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            epoch_loss += loss.item()
        val_score = evaluate(model, val_loader)
        logging.info("Validation IoU score: %s", val_score)
        if val_score > best_score:
            best_score, waited = val_score, 0
            best_state = model.state_dict()  # <- CKP001
        else:
            waited += 1
            if waited >= patience:
                break
    model.load_state_dict(best_state)
    return best_score, evaluate(model, val_loader)


if __name__ == "__main__":
    torch.manual_seed(0)
    print(*train_model(UNet()))
