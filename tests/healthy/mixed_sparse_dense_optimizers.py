"""A recommender: SparseAdam for the tables, Adam for the tower; both step on the same backward."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Ratings(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.user, self.item = torch.randint(0, 50, (n,), generator=g), torch.randint(0, 80, (n,), generator=g)
        self.rating = torch.sin(self.user * 0.3) + torch.cos(self.item * 0.2) + 0.1 * torch.randn(n, generator=g)

    def __len__(self):
        return len(self.user)

    def __getitem__(self, i):
        return {"user": self.user[i], "item": self.item[i], "rating": self.rating[i]}


class TwoTower(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.users = nn.EmbeddingBag(50, d, sparse=True, mode="sum")
        self.items = nn.Embedding(80, d, sparse=True)
        self.mlp = nn.Sequential(nn.Linear(2 * d, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, user, item):
        return self.mlp(torch.cat([self.users(user.unsqueeze(1)), self.items(item)], dim=1)).squeeze(1)


torch.manual_seed(0)
loader = DataLoader(Ratings(1024, 0), batch_size=128, shuffle=True)
model = TwoTower()
sparse = torch.optim.SparseAdam([*model.users.parameters(), *model.items.parameters()], lr=1e-2)
dense = torch.optim.Adam(model.mlp.parameters(), lr=3e-3)
loss_fn = nn.MSELoss()
for epoch in range(3):
    for batch in loader:
        rating = batch.pop("rating")
        loss = loss_fn(model(**batch), rating)
        sparse.zero_grad(), dense.zero_grad()
        loss.backward()
        sparse.step(), dense.step()
    print(loss.item())
