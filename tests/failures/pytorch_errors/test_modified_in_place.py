"""A saved tensor that was changed in place: what it is, and where."""

from __future__ import annotations

from collections.abc import Callable

from trueloop.core.findings import ExplainedError


def related(explanation: ExplainedError) -> list[tuple[int, str]]:
    return [(site.line, words) for site, words in explanation.other_locations]


def test_within_a_forward(assert_explained: Callable[..., ExplainedError]):
    explanation = assert_explained(
        """
        import torch
        from torch import nn
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b, self.calls = nn.Linear(4, 8), nn.Linear(8, 1), 0
            def forward(self, x):
                self.calls += 1
                h = torch.sigmoid(self.a(x))
                h += 1
                return self.b(h)
        model, done = Net(), 0
        for step in range(2):
            done += 1
            loss = model(torch.randn(16, 4)).square().mean()
            loss.backward()  # <- raised
        """,
        "modified-in-place",
        "has the shape (16, 8) and is the result of Sigmoid; later it was changed in place once",
    )
    assert related(explanation) == [(11, "an in-place operation")]


def test_layers_that_work_in_place(assert_explained: Callable[..., ExplainedError]):
    assert_explained(
        """
        import torch
        from torch import nn
        model = nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.ReLU(inplace=True), nn.Linear(8, 1))
        model(torch.randn(16, 4)).mean().backward()  # <- raised
        """,
        "modified-in-place",
        "These modules work in place: 2 (ReLU)",
    )


def test_a_step_between_forward_and_backward(assert_explained: Callable[..., ExplainedError]):
    explanation = assert_explained(
        """
        import torch
        from torch import nn
        G, D = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(D.parameters(), lr=0.1)
        fake = G(torch.randn(8, 4))
        g_loss = -D(fake).mean()
        d_loss = D(fake.detach()).mean() - D(torch.randn(8, 4)).mean()
        d_loss.backward()
        optimizer.step()
        g_loss.backward()  # <- raised
        """,
        "modified-in-place",
        "The weight `D.2.weight` was changed in place once",
        "optimizer step on line 10",
    )
    assert related(explanation) == [(10, "this step ran in between")]


def test_a_step_followed_by_another_forward(assert_explained: Callable[..., ExplainedError]):
    explanation = assert_explained(
        """
        import torch
        from torch import nn
        vae, critic = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), nn.Linear(3, 1)
        optimizer = torch.optim.Adam(vae.parameters(), lr=0.1)
        scores = critic(vae(torch.randn(8, 4)))
        scores.mean().backward(retain_graph=True)
        optimizer.step()
        others = critic(vae(torch.randn(8, 4)).detach())
        (scores.mean() - others.mean()).backward()  # <- raised
        """,
        "modified-in-place",
        "The weight `vae.2.weight` was changed in place once",
        "step on line 8 came after the forward pass of this loss",
    )
    assert related(explanation) == [(8, "this step ran in between")]


def test_a_weight_of_the_same_shape_is_not_named(assert_explained: Callable[..., ExplainedError]):
    explanation = assert_explained(
        """
        import torch
        from torch import nn
        model = nn.Linear(8, 1)
        x = torch.randn(8, 8)
        out = torch.exp(model(x))
        out[out > 1] = 1.0
        out.mean().backward()  # <- raised
        """,
        "modified-in-place",
        "the result of Exp",
    )
    assert "weight" not in explanation.meaning
    assert related(explanation) == [(7, "an in-place operation")]
