"""LOS049: a score that should rise is minimised."""

import pytest

HEAD = """
import torch
from torch import nn
import torch.nn.functional as F
net = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1))
optimizer = torch.optim.Adam(net.parameters())
data = [(torch.rand(4, 1, 8, 8), torch.rand(4, 1, 8, 8).round()) for _ in range(4)]
"""
LOOP = """
for a, b in data:
    optimizer.zero_grad()
    output = torch.sigmoid(net(a))
    {loss}
    loss.backward()
    optimizer.step()
"""
DICE = """
class DiceLoss(nn.Module):
    def forward(self, p, t):
        inter = (p * t).sum()
        score = 2 * inter / (p.sum() + t.sum() + 1e-6){mark}
        return {returned}

criterion = DiceLoss()
"""
TVERSKY = """
def tversky(p, t, alpha=0.7):
    tp, fp, fn = (p * t).sum(), (p * (1 - t)).sum(), ((1 - p) * t).sum()
    return tp / (tp + alpha * fn + (1 - alpha) * fp){mark}
"""


def loop(loss: str, before: str = "") -> str:
    return HEAD + before + LOOP.format(loss=loss)


FAULTY = {
    "dice in a module": loop("loss = criterion(output, b)", DICE.format(mark="  # <- LOS049", returned="score")),
    "dice next to a loss": loop(
        "loss = F.mse_loss(output, b) + 0.5 * criterion(output, b)",
        DICE.format(mark="  # <- LOS049", returned="score.mean()"),
    ),
    "sizes in a variable": loop(
        "overlap, sizes = (output * b).sum(), output.sum() + b.sum()\n    loss = 2 * overlap / (sizes + 1)  # <- LOS049"
    ),
    "tversky": loop("loss = tversky(output, b)", TVERSKY.format(mark="  # <- LOS049")),
    "IoU in the loop": loop(
        "iou = (output * b).sum() / (output.sum() + b.sum() - (output * b).sum())  # <- LOS049\n    loss = iou"
    ),
    "a similarity to part of the batch": loop(
        "loss = F.cosine_similarity(output.flatten(1), b, dim=1).mean()  # <- LOS049"
    ),
    "a similarity to a detached value": loop(
        "loss = nn.CosineSimilarity(dim=1)(output.flatten(1), net(b).flatten(1).detach()).mean()  # <- LOS049"
    ),
    "a library's score": loop(
        "loss = ssim(output, b, data_range=1.0)  # <- LOS049", "from pytorch_msssim import ssim\n"
    ),
    "a score among losses": loop("loss = losses.dice_score(output, b)  # <- LOS049", "from kit import losses\n"),
}
CORRECT = {
    "one minus dice": loop("loss = criterion(output, b)", DICE.format(mark="", returned="1 - score")),
    "one minus dice outside": loop("loss = 1 - criterion(output, b)", DICE.format(mark="", returned="score")),
    "minus dice": loop("loss = -criterion(output, b)", DICE.format(mark="", returned="score.mean()")),
    "minus its logarithm": loop(
        "loss = -torch.log(criterion(output, b))", DICE.format(mark="", returned="score.mean()")
    ),
    "a power": loop("loss = (1 - tversky(output, b)) ** 0.75", TVERSKY.format(mark="")),
    "a masked mean": loop("error = (output - b) ** 2\n    loss = (error * b).sum() / (b.sum() + 1e-8)"),
    "a weighted mean of losses": loop(
        "each = F.mse_loss(output, b, reduction='none')\n    loss = (each * b).sum() / (b.sum() + a.sum())"
    ),
    "a distance": loop("loss = 1 - F.cosine_similarity(output.flatten(1), b, dim=1).mean()"),
    "a metric": loop(
        "loss = F.mse_loss(output, b)\n    print(criterion(output, b))", DICE.format(mark="", returned="score")
    ),
    "features that should differ": loop(
        "loss = F.mse_loss(output, b) + F.cosine_similarity(output.flatten(1), b, dim=1).mean()"
    ),
    "negatives": loop("negative = b\n    loss = F.cosine_similarity(output.flatten(1), negative).mean()"),
    "a loss of a library": loop("loss = dice_loss(output, b)", "from segmentation import dice_loss\n"),
    "a loss with the name of a score": loop("loss = Dice(sigmoid=True)(output, b)", "from monai.losses import Dice\n"),
    "a loss with the name of a score, in a variable": loop(
        "loss = criterion(output, b)", "from monai.losses import Dice\ncriterion = Dice(sigmoid=True)\n"
    ),
    "a loss with the name of a score, in a module": loop("loss = losses.iou(output, b)", "from kit import losses\n"),
    "an optimizer that maximises": HEAD.replace("parameters())", "parameters(), maximize=True)")
    + LOOP.format(loss="loss = F.cosine_similarity(output.flatten(1), b).mean()"),
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_scores_that_are_minimised(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(script, "LOS049")
