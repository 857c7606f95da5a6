"""Lightning with manual optimisation: a GAN with toggled optimizers."""

import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class GAN(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
        self.automatic_optimization = False
        self.last = None

    def loss(self, scores, real):
        return nn.functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, float(real)))

    def training_step(self, batch, _):
        opt_g, opt_d = self.optimizers()
        z = torch.randn(len(batch), 4)
        self.toggle_optimizer(opt_g)
        g_loss = self.loss(self.discriminator(self.generator(z)), True)
        self.manual_backward(g_loss)
        opt_g.step()
        opt_g.zero_grad()
        self.untoggle_optimizer(opt_g)
        self.toggle_optimizer(opt_d)
        fake = self.generator(z).detach()
        d_loss = (self.loss(self.discriminator(batch), True) + self.loss(self.discriminator(fake), False)) / 2
        self.manual_backward(d_loss)
        opt_d.step()
        opt_d.zero_grad()
        self.untoggle_optimizer(opt_d)
        self.last = (g_loss.item(), d_loss.item())

    def configure_optimizers(self):
        return [torch.optim.Adam(part.parameters(), lr=1e-3) for part in (self.generator, self.discriminator)], []


L.seed_everything(0, verbose=False)
data = torch.randn(320, 2) * 0.3 + 1
gan = GAN()
trainer = L.Trainer(
    max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(gan, DataLoader(data, batch_size=32, shuffle=True))
print(*gan.last)
