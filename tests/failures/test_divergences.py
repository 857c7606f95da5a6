"""LOS011, LOS013 and LOS021: the divergence of a variational autoencoder, read from the graph of its loss."""

import pytest

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Independent, Normal, kl_divergence

class V0(nn.Module):
    def __init__(self):
        super().__init__()
        self.v1, self.v2 = nn.Linear(80, 8), nn.Linear(4, 80)
    def forward(self, v3):
        v4, v5 = self.v1(v3).chunk(2, 1)
        {code}
        return self.v2(v6), v4, v5

torch.manual_seed(0)
v3 = torch.rand(48, 80)
v7 = V0()
v8 = torch.optim.Adam(v7.parameters(), lr=0.001)
for v9 in range(6):
    v10, v4, v5 = v7(v3)
{loss}
    v8.zero_grad()
    v11.backward()
    v8.step()
"""
CODE = "v6 = v4 + torch.randn_like(v4) * torch.exp(0.5 * v5)"
SUM = "-0.5 * torch.sum(1 + v5 - v4.pow(2) - v5.exp())"
ROWS = "0.5 * (v5.exp() + v4 * v4 - 1 - v5).sum(-1).mean()"
NORMAL = "kl_divergence(Normal(v4, (0.5 * v5).exp()), Normal(torch.zeros_like(v4), torch.ones_like(v4)))"

FAULTY = {
    "summed and averaged": (CODE, f"F.mse_loss(v10, v3) + {SUM}", "LOS013"),
    "for each sample, and averaged": (CODE, f"{ROWS} + F.binary_cross_entropy_with_logits(v10, v3)", "LOS013"),
    "averaged and summed": (
        CODE,
        "F.mse_loss(v10, v3, reduction='sum') - 0.5 * torch.mean(1 + v5 - v4 ** 2 - v5.exp())",
        "LOS013",
    ),
    "the error of each sample, next to a mean": (
        CODE,
        "F.mse_loss(v10, v3, reduction='sum') / v3.size(0) - 0.5 * (1 + v5 - v4 ** 2 - v5.exp()).mean()",
        "LOS013",
    ),
    "a divergence of PyTorch": (CODE, f"nn.MSELoss()(v10, v3) + {NORMAL}.sum()", "LOS013"),
    "of deviations, next to squares": (
        "v12 = F.softplus(v5); v5 = v12; v6 = v4 + v12 * torch.randn_like(v4)",
        "(v10 - v3).pow(2).mean() + 0.5 * (v5 ** 2 + v4 ** 2 - 2 * torch.log(v5) - 1).sum()",
        "LOS013",
    ),
    "the sum over all, added to each sample": (CODE, f"((v10 - v3).pow(2).sum(1) + {SUM}).mean()", "LOS013"),
    "the sum over all, added to each scaled sample": (
        CODE,
        f"((v10 - v3).pow(2) / 0.3).sum(1).add({SUM}).mean()",
        "LOS013",
    ),
    "the wrong sign": (CODE, f"(F.mse_loss(v10, v3, reduction='sum') - ({SUM})) / len(v3)", "LOS011"),
    "the wrong sign of rows": (CODE, f"(v10 - v3).square().sum(1).mean() - 0.5 * {ROWS}", "LOS011"),
    "the wrong sign, of a divergence of PyTorch": (CODE, f"F.mse_loss(v10, v3) - {NORMAL}.mean()", "LOS011"),
    "noise times variance": (CODE.replace("0.5 * ", ""), f"F.mse_loss(v10, v3, reduction='sum') + {SUM}", "LOS021"),
    "a distribution with the variance": (
        "v6 = Normal(v4, v5.exp()).rsample()",
        f"F.mse_loss(v10, v3, reduction='sum') / len(v3) + {ROWS}",
        "LOS021",
    ),
    "logarithm of a deviation, doubled in both": (
        CODE.replace("0.5", "2"),
        "(F.mse_loss(v10, v3, reduction='sum') + 0.5 * ((2 * v5).exp() + v4 ** 2 - 2 * v5 - 1).sum())",
        "LOS021",
    ),
}
CORRECT = {
    "both summed": (CODE, f"F.mse_loss(v10, v3, reduction='sum') + {SUM}"),
    "both for each sample": (CODE, f"(v10 - v3).pow(2).sum(1).mean() + {ROWS}"),
    "both of each sample": (CODE, f"((v10 - v3).pow(2).sum(1) / 0.5 + {ROWS.replace('.mean()', '')}).mean()"),
    "the mean of all, added to each sample": (CODE, f"((v10 - v3).pow(2).sum(1) + {ROWS}).mean()"),
    "both summed, one of each sample": (CODE, f"((v10 - v3).pow(2).sum(1) + {SUM} / len(v3)).sum()"),
    "both averaged": (CODE, f"F.mse_loss(v10, v3) + {NORMAL}.mean()"),
    "a small weight": (CODE, f"F.mse_loss(v10, v3) + 0.00025 * {SUM}"),
    "divided by the number of values": (CODE, f"F.mse_loss(v10, v3) + {SUM} / v3.numel()"),
    "the error times the number of values": (CODE, f"80 * F.mse_loss(v10, v3) + {ROWS}"),
    "the lower bound, negated": (CODE, f"-(-F.mse_loss(v10, v3, reduction='sum') - ({SUM}))"),
    "logarithm of a deviation": (
        CODE.replace("0.5 * ", ""),
        "F.mse_loss(v10, v3, reduction='sum') + ((2 * v5).exp() / 2 + v4 ** 2 / 2 - v5 - 0.5).sum()",
    ),
    "no noise": ("v6 = v4 + v5.exp()", f"F.mse_loss(v10, v3, reduction='sum') + {SUM}"),
    "another penalty": (CODE, "F.mse_loss(v10, v3) + (v4 ** 2 + v5 ** 2).sum() / 100"),
    "a free divergence of weights": (
        CODE,
        "F.mse_loss(v10, v3) + 0.5 * (v7.v1.weight.exp() + v7.v2.weight.mean() ** 2 - v7.v1.weight).sum() / 100",
    ),
}


@pytest.mark.parametrize(("code", "loss", "found"), FAULTY.values(), ids=FAULTY.keys())
def test_run_reports_wrong_divergences(run, code, loss, found):
    result = run(SCRIPT.format(code=code, loss=f"    v11 = {loss}"))
    assert {each for each, _ in result.reported_lines} == {found}, result.findings


@pytest.mark.parametrize(("code", "loss"), CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_other_losses(run_is_clean, code, loss):
    run_is_clean(SCRIPT.format(code=code, loss=f"    v11 = {loss}"))


def test_run_accepts_a_weight_that_grows_up_to_the_share_of_the_code(run_is_clean):
    loss = f"    v12 = v9 / 6 * 0.001\n    v11 = F.mse_loss(v10, v3) + v12 * {SUM}"
    run_is_clean(SCRIPT.format(code=CODE, loss=loss))
