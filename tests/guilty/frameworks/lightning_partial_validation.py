"""Lightning: half of the held-out batches are evaluated, with active functional dropout."""

from quiet_lightning import Digits, F, loaders, trainer


class Model(Digits):
    def forward(self, x):
        return self.net(F.dropout(x, 0.2))  # <- EVL004


trainer(limit_val_batches=0.5).fit(Model(), *loaders())
