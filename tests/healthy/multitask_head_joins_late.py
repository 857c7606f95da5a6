"""Two heads; the auxiliary one joins after some epochs, and gets no gradient until then."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
        self.main, self.aux = nn.Linear(32, 3), nn.Linear(32, 1)

    def forward(self, x, with_aux):
        h = self.body(x)
        return self.main(h), (self.aux(h).squeeze(-1) if with_aux else None)


torch.manual_seed(0)
x = torch.randn(400, 8)
loader = DataLoader(TensorDataset(x, (x @ torch.randn(8, 3)).argmax(1), x.norm(dim=1)), batch_size=50, shuffle=True)
net = Net()
opt = torch.optim.AdamW(net.parameters(), lr=5e-3)
for epoch in range(5):
    for xb, yb, zb in loader:
        main, aux = net(xb, with_aux=epoch >= 3)
        loss = nn.functional.cross_entropy(main, yb)
        if aux is not None:
            loss = loss + 0.3 * nn.functional.l1_loss(aux, zb)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
