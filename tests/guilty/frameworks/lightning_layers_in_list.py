"""Lightning: the hidden layers are stored in a plain list."""

from quiet_lightning import Digits, loaders, nn, trainer


class Model(Digits):
    def __init__(self):
        super().__init__()
        self.hidden = [nn.Linear(48, 48) for _ in range(2)]  # <- MDL001
        self.net, self.head = nn.Linear(64, 48), nn.Linear(48, 10)

    def forward(self, x):
        x = self.net(x).relu()
        for layer in self.hidden:
            x = layer(x).relu()
        return self.head(x)


trainer().fit(Model(), *loaders())
