"""Lightning: manual optimisation without zero_grad."""

from quiet_lightning import Digits, F, loaders, trainer


class Model(Digits):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.manual_backward(loss)
        optimizer.step()  # <- GRD001


trainer().fit(Model(), *loaders())
