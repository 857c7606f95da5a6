"""Lightning: a regression whose output is (B, 1) and whose target is (B,)."""

from quiet_lightning import DataLoader, Digits, F, nn, torch, trainer


class Model(Digits):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.mse_loss(self(x), y)  # <- LOS003


x = torch.randn(640, 8)
data = torch.utils.data.TensorDataset(x, x.sum(1))
trainer().fit(Model(), DataLoader(data, 32, shuffle=True))
