"""Lightning: manual optimisation; the schedule advances with every batch, the optimizer with every fourth."""

from quiet_lightning import Digits, F, loaders, torch, trainer


class Model(Digits):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        x, y = batch
        self.manual_backward(F.cross_entropy(self(x), y) / 4)
        if (batch_idx + 1) % 4 == 0:
            self.optimizers().step()
            self.optimizers().zero_grad()
        self.lr_schedulers().step()  # <- SCH002

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)]


trainer().fit(Model(), *loaders())
