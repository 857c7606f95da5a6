"""Like ULMFiT: train the head first, then more of the network; every stage adds its own parameter group."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

config = {"stages": [("head", 1e-2), ("body.2", 3e-3), ("body.0", 1e-3)], "batch_size": 64, "epochs_per_stage": 1}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.body(x))


def run(config):
    torch.manual_seed(0)
    d = load_digits()
    ds = TensorDataset(torch.tensor(d.data, dtype=torch.float32) / 16, torch.tensor(d.target))
    loader = DataLoader(ds, config["batch_size"], shuffle=True)
    net = Net()
    for p in net.parameters():
        p.requires_grad_(False)
    optimizer = None
    for prefix, lr in config["stages"]:
        fresh = [p for n, p in net.named_parameters() if n.startswith(prefix)]
        for p in fresh:
            p.requires_grad_(True)
        if optimizer is None:
            optimizer = torch.optim.Adam(fresh, lr=lr)
        else:
            optimizer.add_param_group({"params": fresh, "lr": lr})
        for _ in range(config["epochs_per_stage"]):
            for x, y in loader:
                loss = nn.functional.cross_entropy(net(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        print(prefix, loss.item())


run(config)
