"""LOS048: masked sums that are divided by the size of the mask."""

import pytest

HEAD = "import torch\nfrom torch import nn\n"
FAULTY = {
    "where": """
def observed_mse(pred, table, seen):
    sq = torch.where(seen, (pred - table) ** 2, torch.zeros_like(pred))
    return sq.sum() / seen.numel()  # <- LOS048
""",
    "a product": """
def loss_of(losses, batch):
    return torch.sum(losses * batch.mask.float()) / batch.mask.numel()  # <- LOS048
""",
    "filled with zeros": """
class Loss(nn.Module):
    def forward(self, losses, inside):
        losses = losses.masked_fill(~inside, 0.0)
        return losses.sum() / torch.numel(inside)  # <- LOS048
""",
    "selected rows": """
def accuracy(predicted, labels, valid):
    return (predicted == labels)[valid].sum() / valid.numel()  # <- LOS048
""",
}
CORRECT = {
    "the number of valid values": """
def observed_mse(pred, table, seen):
    sq = torch.where(seen, (pred - table) ** 2, torch.zeros_like(pred))
    return sq.sum() / seen.sum()
""",
    "the share of valid values": """
def share(mask):
    return mask.sum() / mask.numel(), mask.float().sum() / len(mask)
""",
    "a sum of two losses": """
def huber(small, error):
    return torch.where(small, 0.5 * error ** 2, error.abs() - 0.5).sum() / small.numel()
""",
    "weights of samples": """
def weighted(losses, weights):
    return (losses * weights).sum() / len(weights)
""",
    "the size of something else": """
def per_sample(losses, mask, x):
    return (losses * mask).sum() / len(x)
""",
    "sums of sequences": """
def per_sequence(losses, mask):
    return (losses * mask).sum() / mask.size(0) + (losses * mask).sum() / len(mask)
""",
    "the compressed mask": """
def mean(values, mask, kept):
    return values[mask].sum() / values[mask].numel()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_sums_over_the_size_of_the_mask(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_other_means(lint_is_clean, script):
    lint_is_clean(HEAD + script, "LOS048")
