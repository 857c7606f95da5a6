"""Lightning: the optimizer gets one part of the module, and the head is never trained."""

from quiet_lightning import Digits, loaders, nn, torch, trainer


class Model(Digits):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(10, 10)

    def forward(self, x):
        return self.head(self.net(x))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.net.parameters(), lr=3e-3)  # <- OPT001


trainer().fit(Model(), *loaders())
