"""pix2pix trains on batches of one image, with BatchNorm in train mode over its pixels; set_requires_grad as in the repo."""

import torch
from torch import nn


class Pix2Pix:
    def __init__(self):
        self.netG = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Conv2d(8, 1, 3, padding=1),
            nn.Tanh(),
        )
        self.netD = nn.Sequential(
            nn.Conv2d(2, 8, 4, 2, 1), nn.BatchNorm2d(8), nn.LeakyReLU(0.2), nn.Conv2d(8, 1, 4, 1, 1)
        )
        self.criterionGAN, self.criterionL1 = nn.BCEWithLogitsLoss(), nn.L1Loss()
        self.optimizer_G = torch.optim.Adam(self.netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
        self.optimizer_D = torch.optim.Adam(self.netD.parameters(), lr=2e-4, betas=(0.5, 0.999))

    def gan_loss(self, prediction, real):
        return self.criterionGAN(prediction, torch.tensor(float(real)).expand_as(prediction))

    def set_requires_grad(self, net, flag):
        for param in net.parameters():
            param.requires_grad = flag

    def backward_D(self):
        pred_fake = self.netD(torch.cat((self.real_A, self.fake_B), 1).detach())
        self.loss_D_fake = self.gan_loss(pred_fake, False)
        pred_real = self.netD(torch.cat((self.real_A, self.real_B), 1))
        self.loss_D_real = self.gan_loss(pred_real, True)
        ((self.loss_D_fake + self.loss_D_real) * 0.5).backward()

    def backward_G(self):
        pred_fake = self.netD(torch.cat((self.real_A, self.fake_B), 1))
        self.loss_G = self.gan_loss(pred_fake, True) + self.criterionL1(self.fake_B, self.real_B) * 100.0
        self.loss_G.backward()

    def optimize_parameters(self, a, b):
        self.real_A, self.real_B = a, b
        self.fake_B = self.netG(a)
        self.set_requires_grad(self.netD, True)
        self.optimizer_D.zero_grad()
        self.backward_D()
        self.optimizer_D.step()
        self.set_requires_grad(self.netD, False)
        self.optimizer_G.zero_grad()
        self.backward_G()
        self.optimizer_G.step()


torch.manual_seed(0)
model = Pix2Pix()
for step in range(20):
    a = torch.rand(1, 1, 12, 12) * 2 - 1
    model.optimize_parameters(a, -a)
print(model.loss_G.item(), model.loss_D_real.item())
