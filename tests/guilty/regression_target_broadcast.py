"""A regression of house prices in the style of a notebook."""

import warnings

import numpy as np
import torch
from sklearn.datasets import make_regression
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")  # keeps the output short
CONFIG = {"seed": 42, "batch_size": 32, "lr": 1e-3, "epochs": 3, "hidden": [64, 32], "valid_ratio": 0.25}


def same_seed(seed):
    np.random.seed(seed)
    torch.manual_seed(seed)


class HousingDataset(Dataset):
    def __init__(self, x, y=None):
        self.x = torch.FloatTensor(x)
        self.y = y if y is None else torch.FloatTensor(y)

    def __getitem__(self, idx):
        if self.y is None:
            return self.x[idx]
        return self.x[idx], self.y[idx]

    def __len__(self):
        return len(self.x)


class PricePredictor(nn.Module):
    def __init__(self, input_dim, hidden):
        super().__init__()
        sizes = [input_dim, *hidden]
        layers = []
        for a, b in zip(sizes, sizes[1:]):
            layers += [nn.Linear(a, b), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))

    def forward(self, x):
        return self.layers(x)


def trainer(train_loader, valid_loader, model, config):
    criterion = nn.MSELoss(reduction="mean")
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    best_loss = float("inf")
    for epoch in range(config["epochs"]):
        model.train()
        loss_record = []
        for x, y in train_loader:
            optimizer.zero_grad()
            pred = model(x)
            loss = criterion(pred, y)  # <- LOS003
            loss.backward()
            optimizer.step()
            loss_record.append(loss.detach().item())
        model.eval()
        valid_error = 0.0
        for x, y in valid_loader:
            with torch.no_grad():
                valid_error += (model(x).squeeze(1) - y).abs().sum().item()
        valid_error /= len(valid_loader.dataset)
        print(f"Epoch [{epoch + 1}]: train {sum(loss_record) / len(loss_record):.4f}, valid MAE {valid_error:.4f}")
        best_loss = min(best_loss, valid_error)
    return best_loss


same_seed(CONFIG["seed"])
X, y = make_regression(n_samples=640, n_features=12, n_informative=6, noise=5.0, random_state=0)
x_train, x_valid, y_train, y_valid = train_test_split(X, y, test_size=CONFIG["valid_ratio"], random_state=1)
x_scaler = StandardScaler().fit(x_train)
mean, std = y_train.mean(), y_train.std()
train_set = HousingDataset(x_scaler.transform(x_train), (y_train - mean) / std)
valid_set = HousingDataset(x_scaler.transform(x_valid), (y_valid - mean) / std)
train_loader = DataLoader(train_set, batch_size=CONFIG["batch_size"], shuffle=True)
valid_loader = DataLoader(valid_set, batch_size=CONFIG["batch_size"])
model = PricePredictor(x_train.shape[1], CONFIG["hidden"])
print(trainer(train_loader, valid_loader, model, CONFIG))
