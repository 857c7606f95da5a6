"""LOS030: PPO losses that take the larger surrogate."""

import pytest

START = """
import torch
ratio = torch.exp(log_probs - old_log_probs)
clipped = torch.clamp(ratio, 1 - eps, 1 + eps)
"""
FAULTY = {
    "in a loop": START + "loss = -torch.max(ratio * adv, clipped * adv).mean()  # <- LOS030\nloss.backward()\n",
    "the minus at the end": START
    + """
surr1 = ratio * advantages
surr2 = clipped * advantages
policy_loss = torch.maximum(surr1, surr2).mean()  # <- LOS030
loss = -policy_loss + 0.5 * value_loss
loss.backward()
""",
    "in a class": """
import torch

class PPO:
    def update(self, batch):
        for _ in range(self.epochs):
            ratios = (self.actor.log_prob(batch.actions) - batch.logp).exp()
            surr1 = ratios * batch.advantages
            surr2 = ratios.clamp(1 - self.clip, 1 + self.clip) * batch.advantages
            actor_loss = -surr1.max(surr2).mean()  # <- LOS030
            loss = actor_loss + self.c1 * critic_loss
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
""",
    "the minimum of two losses": START
    + """
pg_loss1 = -adv * ratio
pg_loss2 = -adv * torch.clip(ratio, 1 - eps, 1 + eps)
pg_loss = torch.min(pg_loss1, pg_loss2).mean()  # <- LOS030
loss = pg_loss + v_loss
loss.backward()
""",
    "in a function": """
import torch

def surrogate_loss(new, old, advantage, eps):
    ratio = torch.exp(new - old)
    left = ratio * advantage
    right = torch.clamp(ratio, 1 - eps, 1 + eps) * advantage
    return -torch.max(input=left, other=right).mean()  # <- LOS030

for epoch in range(4):
    loss = surrogate_loss(logp, batch["logp"], batch["adv"], 0.2)
    loss.backward()
""",
    "a loss that another file minimises": """
import torch

def compute(data):
    ratio = torch.exp(logp - data["logp"])
    clip_adv = torch.clamp(ratio, 1 - clip_ratio, 1 + clip_ratio) * data["adv"]
    loss_pi = -(torch.max(ratio * data["adv"], clip_adv)).mean()  # <- LOS030
    return loss_pi, dict(kl=0)
""",
}
CORRECT = {
    "the smaller objective": START + "loss = -torch.min(ratio * adv, clipped * adv).mean()\nloss.backward()\n",
    "the larger loss": START + "loss = torch.max(-ratio * adv, -clipped * adv).mean()\nloss.backward()\n",
    "the minus in the advantage's factor": START
    + "loss = torch.max(-adv * ratio, -adv * clipped).mean()\nloss.backward()\n",
    "value clipping": START
    + """
v_clipped = v_old + torch.clamp(v - v_old, -eps, eps)
v_loss = 0.5 * torch.max((v - returns) ** 2, (v_clipped - returns) ** 2).mean()
loss = -torch.min(ratio * adv, clipped * adv).mean() + v_loss
loss.backward()
""",
    "dual clip": START
    + """
clip1 = torch.min(ratio * adv, clipped * adv)
clip2 = torch.max(clip1, 3.0 * adv)
loss = -torch.where(adv < 0, clip2, clip1).mean()
loss.backward()
""",
    "dual clip as losses": START
    + """
pg1 = torch.max(-adv * ratio, -adv * clipped)
pg2 = torch.min(pg1, -adv * 3.0)
loss = torch.where(adv < 0, pg2, pg1).mean()
loss.backward()
""",
    "a cost": START + "loss = torch.max(ratio * cost_adv, clipped * cost_adv).mean()\nloss.backward()\n",
    "a negative advantage": START
    + """
adv = -(returns - values)
loss = torch.max(ratio * adv, clipped * adv).mean()
loss.backward()
""",
    "the maximum of a positive sum": START + "loss = torch.max(ratio * adv, clipped * adv).mean()\nloss.backward()\n",
    "negated later": START
    + """
objective = torch.min(ratio * adv, clipped * adv).mean()
(-objective).backward()
""",
    "maximize": START
    + """
optimizer = torch.optim.Adam(p, maximize=True)
loss = -torch.max(-ratio * adv, -clipped * adv).mean()
loss.backward()
""",
    "twin critics": START + "adv = 1\nloss = -torch.min(q1(s, a), q2(s, a)).mean()\nloss.backward()\n",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_larger_surrogate(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(script, "LOS030")
