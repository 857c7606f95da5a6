"""Lightning: functional dropout that does not depend on the mode of the module."""

from quiet_lightning import Digits, F, loaders, trainer


class Model(Digits):
    def forward(self, x):
        return self.net(F.dropout(x, 0.2))  # <- EVL004


trainer().fit(Model(), *loaders())
