"""LOS073: a critic that learns from scaled actions and judges unscaled ones."""

import pytest

DDPG = """
import random

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

MAX_ACTION = 2.0


class Agent:
    def __init__(self, bound):
        self.actor, self.actor_target, self.critic, self.critic_target = Actor(), Actor(), Critic(), Critic()
        self.actor_target.load_state_dict(self.actor.state_dict())
        self.critic_target.load_state_dict(self.critic.state_dict())
        self.opt = torch.optim.Adam(self.critic.parameters())
        self.opt_actor = torch.optim.Adam(self.actor.parameters())
        self.bound, self.memory = bound, Memory()

    def act(self, state):
        action = self.actor(torch.as_tensor(state)).detach().numpy(){scale}
        return action + np.random.normal(size=1)

    def learn(self, gamma=0.99):
        s, a, r, s2, done = self.memory.sample(64)
        with torch.no_grad():
            a2 = {next_action}
            target = r + (1 - done) * gamma * self.critic_target(s2, a2){mark}
        loss = F.mse_loss(self.critic(s, a), target)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        actor_loss = -self.critic(s, {new_action}).mean()
        self.opt_actor.zero_grad()
        actor_loss.backward()
        self.opt_actor.step()


def main(env, agent):
    state = env.reset()
    while True:
        action = agent.act(state)
        next_state, reward, done, _ = env.step({stepped})
        agent.memory.push(state, {stored}, reward, next_state, done)
        agent.learn()
        state = env.reset() if done else next_state
"""
PARTS = {
    "scale": "",
    "next_action": "self.actor_target(s2)",
    "new_action": "self.actor(s)",
    "stepped": "action",
    "stored": "action",
    "mark": "",
}
MARK = "  # <- LOS073"


def ddpg(**parts: str) -> str:
    return DDPG.format(**(PARTS | parts))


SAC = """
import torch
from torch.distributions import Normal
import torch.nn.functional as F


class Agent:
    def get_action(self, s):
        mean, std = self.policy_net(torch.as_tensor(s))
        a = torch.tanh(Normal(mean, std).rsample())
        return self.bound * a.detach().item()

    def get_logprob(self, s):
        mean, std = self.policy_net(s)
        u = Normal(mean, std).rsample()
        a = torch.tanh(u)
        return a, (Normal(mean, std).log_prob(u) - torch.log(1 - a.pow(2) + 1e-6)).sum(-1, keepdim=True)

    def learn(self):
        s, a, s_, r, done = self.memory.get_sample()
        q_loss = F.mse_loss(self.q_net(s, a), (r + (1 - done) * 0.99 * self.v_net(s_)).detach())
        self.opt_q.zero_grad()
        q_loss.backward()
        self.opt_q.step()
        new_a, log_prob = self.get_logprob(s)
        policy_loss = (0.2 * log_prob - self.q_net(s, new_a)).mean()  # <- LOS073
        self.opt_policy.zero_grad()
        policy_loss.backward()
        self.opt_policy.step()


def main(agent, env):
    s = env.reset()
    for t in range(1000):
        a = agent.get_action(s)
        s_, r, done, info = env.step(a)
        agent.memory.store_transition(s, a, s_, r, done)
        agent.learn()
        s = env.reset() if done else s_
"""
FAULTY = {
    "an attribute": ddpg(scale=" * self.bound", mark=MARK),
    "a constant": ddpg(scale=" * MAX_ACTION", mark=MARK),
    "a number": ddpg(scale=" * 2", mark=MARK),
    "a stochastic policy": SAC,
}
CORRECT = {
    "no bound": ddpg(),
    "scaled in both": ddpg(
        scale=" * self.bound", next_action="self.bound * self.actor_target(s2)", new_action="self.bound * self.actor(s)"
    ),
    "scaled for the environment only": ddpg(stepped="MAX_ACTION * action"),
    "stored without the bound": ddpg(scale=" * MAX_ACTION", stored="action / MAX_ACTION"),
    "divided in the update": ddpg(scale=" * self.bound").replace(
        "sample(64)", "sample(64)\n        a = a / self.bound"
    ),
    "scaled actions are not stored": ddpg(scale=" * self.bound", stored="env.last_action"),
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_critics_with_two_scales(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_one_scale(lint_is_clean, script):
    lint_is_clean(script)
