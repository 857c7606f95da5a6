"""Lightning: predictions are sampled in train mode, and validation continues in this mode."""

from quiet_lightning import Digits, loaders, trainer


class Model(Digits):
    def on_validation_start(self):
        self.train()  # for a look at what dropout does

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_acc", (self(x).argmax(1) == y).float().mean())  # <- EVL001


trainer().fit(Model(), *loaders())
