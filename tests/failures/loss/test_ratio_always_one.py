"""LOS031: PPO whose ratio compares the current policy with itself."""

import pytest

FAULTY = {
    "detached": """
import torch
for it in range(100):
    states, actions, adv = collect(env, policy)
    for epoch in range(4):
        logp = policy(states).log_prob(actions)
        ratio = torch.exp(logp - logp.detach())  # <- LOS031
        loss = -torch.min(ratio * adv, torch.clamp(ratio, 0.8, 1.2) * adv).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
    "computed twice": """
import torch

def update(states, actions, adv):
    for _ in range(10):
        with torch.no_grad():
            old_dist = Categorical(logits=actor(states))
            old_log_prob = old_dist.log_prob(actions)
        dist = Categorical(logits=actor(states))
        log_ratio = dist.log_prob(actions) - old_log_prob
        ratio = log_ratio.exp()  # <- LOS031
        surr = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv)
        optimizer.zero_grad()
        (-surr.mean()).backward()
        optimizer.step()
""",
    "in a class, by a method that returns several": """
import torch

class PPO:
    def update(self):
        for _ in range(self.k_epochs):
            logprobs, entropy = self.policy.evaluate(self.buffer.states, self.buffer.actions)
            old, _ = self.policy.evaluate(self.buffer.states, self.buffer.actions)
            ratios = torch.exp(logprobs - old.detach())  # <- LOS031
            surr1 = ratios * self.buffer.advantages
            surr2 = torch.clamp(ratios, 1 - self.eps, 1 + self.eps) * self.buffer.advantages
            loss = -torch.min(surr1, surr2) - 0.01 * entropy
            self.optimizer.zero_grad()
            loss.mean().backward()
            self.optimizer.step()
""",
    "minibatches": """
import torch

def learn(memory):
    for epoch in range(4):
        for idx in torch.randperm(len(memory.states)).split(64):
            s, a, adv = memory.states[idx], memory.actions[idx], memory.advantages[idx]
            new = pi.log_prob(s, a)
            old = new.clone().detach()
            r = (new - old).exp()  # <- LOS031
            loss = -torch.minimum(r * adv, torch.clip(r, 0.9, 1.1) * adv).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
""",
    "in a function": """
import torch

def clipped_loss(new_logp, old_logp, adv, eps=0.2):
    ratio = torch.exp(new_logp - old_logp)  # <- LOS031
    return -torch.min(ratio * adv, torch.clamp(ratio, 1 - eps, 1 + eps) * adv).mean()

for iteration in range(100):
    batch = collect(policy, env)
    for epoch in range(8):
        logp = policy.log_prob(batch.obs, batch.act)
        loss = clipped_loss(logp, logp.detach(), adv=batch.adv)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
}
LOOP = """
import torch
for it in range(100):
    states, actions, adv, stored = collect(env, policy)
    old = policy(states).log_prob(actions).detach()
    for epoch in range(4):
        logp = policy(states).log_prob(actions)
        {line}
        loss = -torch.min(ratio * adv, torch.clamp(ratio, 0.8, 1.2) * adv).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
"""
CORRECT = {
    "computed before the epochs": LOOP.format(line="ratio = torch.exp(logp - old)"),
    "stored": LOOP.format(line="ratio = torch.exp(logp - stored)"),
    "stored in the first epoch": """
import torch
for it in range(100):
    states, actions, adv = collect(env, policy)
    for epoch in range(4):
        logp = policy(states).log_prob(actions)
        if epoch == 0:
            old = logp.detach()
        ratio = torch.exp(logp - old)
        loss = -torch.min(ratio * adv, torch.clamp(ratio, 0.8, 1.2) * adv).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
    "one update": """
import torch
for it in range(100):
    states, actions, adv = collect(env, policy)
    logp = policy(states).log_prob(actions)
    ratio = torch.exp(logp - logp.detach())
    loss = -torch.min(ratio * adv, torch.clamp(ratio, 0.8, 1.2) * adv).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    "new data in each iteration": """
import torch
for epoch in range(100):
    prompts = next(loader)
    for group in range(4):
        ids = model.generate(prompts)
        logp = logprobs(model, ids)
        ratio = torch.exp(logp - logp.detach())
        loss = -torch.min(ratio * adv, torch.clamp(ratio, 0.8, 1.2) * adv).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
    "micro-batches of one update": """
import torch
def update(batch):
    opt.zero_grad()
    for mb in batch.split(8):
        logp = policy(mb.states).log_prob(mb.actions)
        ratio = torch.exp(logp - logp.detach())
        loss = -torch.min(ratio * mb.adv, torch.clamp(ratio, 0.8, 1.2) * mb.adv).mean()
        loss.backward()
    opt.step()
""",
    "without clipping": LOOP.format(line="ratio = torch.exp(logp - logp.detach())").replace(
        "torch.clamp(ratio, 0.8, 1.2)", "1"
    ),
    "another network": LOOP.format(line="ratio = torch.exp(logp - old_policy(states).log_prob(actions).detach())"),
    "one iteration": LOOP.format(line="ratio = torch.exp(logp - logp.detach())").replace("range(4)", "range(1)"),
    "given or made": LOOP.format(line="ratio = torch.exp(logp - (stored if stored is not None else logp.detach()))"),
    "another action": LOOP.format(line="ratio = torch.exp(logp - policy(states).log_prob(others).detach())"),
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_a_policy_compared_with_itself(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(script, "LOS031")


AGENT = """
import copy, torch
from torch import nn
from torch.distributions import Categorical
class Agent:
    def __init__(self):
        self.policy = nn.Linear(4, 2)
        self.policy_old = copy.deepcopy(self.policy)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=0.01)
    def act(self, state):
        dist = Categorical(logits=self.policy_old(state))
        return dist.sample(), dist
    def evaluate(self, states, actions):
        dist = Categorical(logits=%s)
        return dist.log_prob(actions), dist.entropy()
    def update(self, states, actions, old_logprobs, advantages):
        for _ in range(4):
            logprobs, entropy = self.evaluate(states, actions)
            %s
            loss = -torch.min(ratios * advantages, torch.clamp(ratios, 0.8, 1.2) * advantages).mean()
            loss = loss + 0.5 * (self.policy(states).sum(1) - advantages).pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.policy_old.load_state_dict(self.policy.state_dict())
"""
RATIO = "ratios = torch.exp(logprobs - old_logprobs)"
MARKED = RATIO + "  # <- LOS031"
OF_OLD = {
    "in a method": AGENT % ("self.policy_old(states)", MARKED),
    "with another name": AGENT.replace("policy_old", "old_actor") % ("self.old_actor(states)", MARKED),
    "both in the loop": AGENT
    % ("self.policy_old(states)", "ratios = (logprobs - old_logprobs.detach()).exp()  # <- LOS031"),
}
OF_NEW = {
    "the new policy": AGENT % ("self.policy(states)", RATIO),
    "the old side is computed again": AGENT.replace(
        "%s\n            loss", "old = %s.detach()\n            %s\n            loss"
    )
    % (
        "self.policy(states)",
        "Categorical(logits=self.policy_old(states)).log_prob(actions)",
        "ratios = torch.exp(logprobs - old)",
    ),
    "both networks": AGENT % ("self.policy(states) + 0 * self.policy_old(states)", RATIO),
    "an old policy that is never the copy": AGENT.replace("self.policy_old.load_state_dict", "keep")
    % ("self.policy_old(states)", RATIO),
}


@pytest.mark.parametrize("script", OF_OLD.values(), ids=OF_OLD)
def test_lint_reports_new_log_probabilities_of_the_old_policy(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", OF_NEW.values(), ids=OF_NEW)
def test_lint_accepts_other_policies(lint_is_clean, script):
    lint_is_clean(script)
