"""Neural style: the network is frozen, the image is the only parameter; LBFGS as in the tutorial."""

import torch
import torch.nn.functional as F
from torch import nn, optim

torch.manual_seed(0)
cnn = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1)).eval()
cnn.requires_grad_(False)
content_img, style_img = torch.rand(1, 3, 16, 16), torch.rand(1, 3, 16, 16)


def gram_matrix(t):
    a, b, c, d = t.size()
    features = t.view(a * b, c * d)
    return (features @ features.t()).div(a * b * c * d)


with torch.no_grad():
    content_target = cnn(content_img)
    style_target = gram_matrix(cnn(style_img))
input_img = content_img.clone().requires_grad_(True)
optimizer = optim.LBFGS([input_img], max_iter=5)
run = [0]
while run[0] <= 20:

    def closure():
        with torch.no_grad():
            input_img.clamp_(0, 1)
        optimizer.zero_grad()
        features = cnn(input_img)
        loss = 1e3 * F.mse_loss(gram_matrix(features), style_target) + F.mse_loss(features, content_target)
        loss.backward()
        run[0] += 1
        closure.last = loss.item()
        return loss

    optimizer.step(closure)
print(run[0], closure.last)
