"""Two-layer GCN on one graph: all nodes in every forward, loss over the training mask, eval with dropout off."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
N = 90
community = torch.arange(N) % 3
same = community.unsqueeze(0) == community.unsqueeze(1)
A = (torch.rand(N, N) < torch.where(same, 0.2, 0.02)).float()
A = ((A + A.T + torch.eye(N)) > 0).float()
deg = A.sum(1).rsqrt()
A_hat = deg.unsqueeze(1) * A * deg.unsqueeze(0)
X = torch.randn(N, 8) + F.one_hot(community, 8).float() * 0.5
order = torch.randperm(N)
train_mask, val_mask = torch.zeros(N, dtype=torch.bool), torch.zeros(N, dtype=torch.bool)
train_mask[order[:30]], val_mask[order[30:60]] = True, True


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2 = nn.Linear(8, 16, bias=False), nn.Linear(16, 3, bias=False)

    def forward(self, x):
        x = F.dropout(x, 0.3, self.training)
        x = F.relu(A_hat @ self.w1(x))
        x = F.dropout(x, p=0.3, training=self.training)
        return F.log_softmax(A_hat @ self.w2(x), dim=1)


model = GCN()
opt = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=5e-4)


def train():
    model.train()
    opt.zero_grad()
    loss = F.nll_loss(model(X)[train_mask], community[train_mask])
    loss.backward()
    opt.step()
    return loss.item()


@torch.no_grad()
def test():
    model.eval()
    pred = model(X).argmax(1)
    return [(pred[m] == community[m]).float().mean().item() for m in (train_mask, val_mask)]


for epoch in range(15):
    loss = train()
    accs = test()
print(loss, accs)
