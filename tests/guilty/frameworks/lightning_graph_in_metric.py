"""Lightning: a running total in the module contains the graph of every batch."""

from quiet_lightning import Digits, F, loaders, trainer


class Model(Digits):
    total = 0.0

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)  # <- MEM001
        self.total = self.total + loss
        return loss


trainer().fit(Model(), *loaders())
