"""Lightning: accumulation by hand with the losses not divided."""

from quiet_lightning import Digits, F, loaders, trainer


class Model(Digits):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        x, y = batch
        self.manual_backward(F.cross_entropy(self(x), y))  # <- GRD003
        if (batch_idx + 1) % 4 == 0:
            self.optimizers().step()
            self.optimizers().zero_grad()


trainer().fit(Model(), *loaders())
