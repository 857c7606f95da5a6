"""LOS026: losses that lower a log-probability which shall rise."""

import pytest

FAULTY = {
    "a sum over a stacked list": """
def run(policy, optimizer, env):
    log_probs, rewards = [], []
    for t in range(10):
        dist = Categorical(policy(s))
        a = dist.sample()
        log_probs.append(dist.log_prob(a))
        s, r = env.step(a)
        rewards.append(r)
    G = discounted(rewards, 0.97)
    advantage = G - baseline
    loss = (torch.stack(log_probs) * advantage).sum()  # <- LOS026
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a list of losses": """
def finish_episode():
    policy_loss = []
    for log_prob, R in zip(policy.saved_log_probs, returns):
        policy_loss.append(log_prob * R)  # <- LOS026
    optimizer.zero_grad()
    policy_loss = torch.cat(policy_loss).sum()
    policy_loss.backward()
    optimizer.step()
""".replace(
        "    policy_loss = torch.cat(policy_loss).sum()\n    policy_loss.backward()",
        "    torch.cat(policy_loss).sum().backward()",
    ),
    "with an entropy bonus": """
def update(batch):
    logp = pi.log_prob(batch.actions)
    actor = (logp * batch.advantages).mean()  # <- LOS026
    total = actor - 0.01 * pi.entropy().mean() + 0.5 * critic_loss
    total.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "added up": """
loss = 0
for lp, ret in zip(logps, rets):
    loss += model.log_prob(lp) * ret  # <- LOS026
loss.backward()
""",
    "maximum likelihood": """
for x in loader:
    optimizer.zero_grad()
    loss = flow.log_prob(x).mean()  # <- LOS026
    loss.backward()
    optimizer.step()
""",
    "two minuses": """
for x, a, r in loader:
    loss = -(-1.0 * dist.log_prob(a) * returns).mean()  # <- LOS026
    loss.backward()
""",
}
CORRECT = {
    "a saliency map": """
def saliency(policy, s, a):
    s = torch.as_tensor(s)
    s.requires_grad_()
    log_prob = Categorical(policy(s)).log_prob(a)
    log_prob.backward()
    return s.grad.abs()
""",
    "a minus": "loss = -(torch.stack(log_probs) * advantage).sum()\nloss.backward()\n",
    "a minus at the end": "loss = (log_probs * returns).mean()\n(-loss).backward()\n",
    "a minus in the list": """
losses = []
for log_prob, R in zip(log_probs, returns):
    losses.append(-log_prob * R)
torch.stack(losses).sum().backward()
""",
    "subtracted": "loss = 0.0\nfor lp, R in items:\n    loss -= dist.log_prob(lp) * R\nloss.backward()\n",
    "maximize": "opt = torch.optim.Adam(p, maximize=True)\nloss = dist.log_prob(x).mean()\nloss.backward()\n",
    "a KL divergence": "kl = (q.log_prob(z) - p.log_prob(z)).mean()\nkl.backward()\n",
    "soft actor-critic": "loss = (alpha * log_prob - q_value).mean()\nloss.backward()\n",
    "a cost": "loss = (log_probs * costs).mean()\nloss.backward()\n",
    "a negated advantage": "advantage = -(r - b)\nloss = (log_probs * advantage).mean()\nloss.backward()\n",
    "a reversed difference": "adv = value - returns\nloss = (log_probs * adv.detach()).mean()\nloss.backward()\n",
    "PPO": "ratio = (new_log_prob - log_prob).exp()\nloss = -torch.min(ratio * adv, b * adv).mean()\nloss.backward()\n",
    "negative log-likelihood": "nll = -flow.log_prob(x)\nloss = nll.mean()\nloss.backward()\n",
    "another loss": "loss = criterion(model(x), y)\nloss.backward()\nprint(dist.log_prob(x).mean())\n",
    "ascent by hand": "loss = dist.log_prob(x).mean()\nloss.backward()\nw.data += lr * w.grad\n",
    "log-probabilities of a function": "def update(log_prob_loss):\n    log_prob_loss.backward()\n",
    "a regularizer": "loss = criterion(out, y) + 0.1 * prior.log_prob(w).sum()\nloss.backward()\n",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_a_missing_minus(lint_reports, script):
    lint_reports("import torch\n" + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean("import torch\n" + script, "LOS026")


CROSS_ENTROPY = """
import torch
def step(model, optimizer, x, y):
    p = torch.sigmoid(model(x))
    loss = {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_lint_reports_a_cross_entropy_without_a_minus(lint_reports):
    loss = "(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()  # <- LOS026"
    lint_reports(CROSS_ENTROPY.format(loss=loss), fixes=False)


@pytest.mark.parametrize(
    "loss",
    [
        "-(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()",
        "-(y * p.log()).mean() - ((1 - y) * (1 - p).log()).mean()",
        "torch.log(1 - p).mean()",
    ],
)
def test_lint_accepts_a_cross_entropy_with_a_minus(lint_is_clean, loss):
    lint_is_clean(CROSS_ENTROPY.format(loss=loss), "LOS026")
