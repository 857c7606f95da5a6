"""Lightning: losses are stored until the end of the epoch, each with its graph."""

from quiet_lightning import Digits, F, loaders, torch, trainer


class Model(Digits):
    def __init__(self):
        super().__init__()
        self.losses = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)  # <- MEM001
        self.losses.append(loss)
        return loss

    def on_train_epoch_end(self):
        print(torch.stack(self.losses).mean().item())
        self.losses.clear()


trainer().fit(Model(), *loaders())
