"""A second backward: on the same loss, on a loss that shares its graph, on a tensor of an earlier iteration."""

from __future__ import annotations

from collections.abc import Callable

from trueloop.core.findings import ExplainedError


def related(explanation: ExplainedError) -> list[tuple[int, str]]:
    return [(site.line, words) for site, words in explanation.other_locations]


def test_the_same_loss(assert_explained: Callable[..., ExplainedError]):
    explanation = assert_explained(
        """
        import torch
        model = torch.nn.Linear(4, 1)
        loss = model(torch.randn(8, 4)).square().mean()  # <- created
        loss.backward()
        loss.backward()  # <- raised
        """,
        "backward-twice",
        "was already called on `loss` on line 5",
        "retain_graph=True",
    )
    assert related(explanation) == [(5, "this `backward()` freed the graph")]


def test_two_losses_of_one_forward(assert_explained: Callable[..., ExplainedError]):
    assert_explained(
        """
        import torch
        from torch import nn
        body, a, b = nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Linear(8, 1), nn.Linear(8, 1)
        features = body(torch.randn(8, 4))
        first = a(features).square().mean()
        second = b(features).square().mean()  # <- created
        first.backward()
        second.backward()  # <- raised
        """,
        "backward-twice",
        "`second` shares a part of its graph with another loss, and backward() on line 8 freed this part",
        "the sum of the losses",
    )


def test_a_hidden_state_across_iterations(assert_explained: Callable[..., ExplainedError]):
    assert_explained(
        """
        import torch
        from torch import nn
        rnn, head = nn.GRU(4, 8), nn.Linear(8, 1)
        optimizer = torch.optim.SGD([*rnn.parameters(), *head.parameters()], lr=0.1)
        hidden = None
        for step in range(5):
            out, hidden = rnn(torch.randn(6, 2, 4), hidden)
            loss = head(out).square().mean()
            optimizer.zero_grad()
            loss.backward()  # <- raised
            optimizer.step()
        """,
        "backward-twice",
        "from before the latest backward() on line 11",
        "hidden.detach()",
    )


def test_samples_of_a_generator(assert_explained: Callable[..., ExplainedError]):
    explanation = assert_explained(
        """
        import torch
        from torch import nn
        G, D = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Sequential(nn.Linear(4, 1), nn.Tanh())
        fake = G(torch.randn(8, 4))
        d_loss = D(fake).mean() - D(torch.randn(8, 4)).mean()
        d_loss.backward()
        g_loss = -D(fake).mean()
        g_loss.backward()  # <- raised
        """,
        "backward-twice",
        "an operation (TanhBackward",
        "fake.detach()",
    )
    assert related(explanation) == [(7, "this `backward()` freed the graph")]


def test_untraced_updates_give_a_general_explanation(assert_explained: Callable[..., ExplainedError]):
    explanation = assert_explained(
        """
        import torch
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(530):
            loss = model(torch.randn(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        loss.backward()  # <- raised
        """,
        "backward-twice",
        "for this loss, for another loss with the same graph, or in an earlier iteration",
    )
    assert not explanation.other_locations
    assert explanation.update == 530
