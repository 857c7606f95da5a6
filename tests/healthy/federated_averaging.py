"""FedAvg: in every round each client starts from the global weights with its own optimizer."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Client:
    def __init__(self, shift):
        x = torch.randn(120, 4) + shift
        self.loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=30, shuffle=True)

    def update(self, net, lr=0.05):
        net.train()
        optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.5)
        for x, y in self.loader:
            net.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
        return copy.deepcopy(net.state_dict()), loss.item()


def average(weights):
    out = copy.deepcopy(weights[0])
    for key in out:
        for other in weights[1:]:
            out[key] += other[key]
        out[key] = out[key] / len(weights)
    return out


torch.manual_seed(0)
clients = [Client(s) for s in (-0.5, 0.0, 0.5)]
global_net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
worker = copy.deepcopy(global_net)
for round_ in range(4):
    results = []
    for client in clients:
        worker.load_state_dict(global_net.state_dict())
        results.append(client.update(worker))
    global_net.load_state_dict(average([w for w, _ in results]))
    print(round_, sum(l for _, l in results) / len(results))
