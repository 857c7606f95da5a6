"""Lightning: the network ends in a softmax, and the loss takes logits."""

from quiet_lightning import Digits, F, loaders, nn, trainer


class Model(Digits):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10), nn.Softmax(dim=1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y)  # <- LOS001


trainer().fit(Model(), *loaders())
