"""PPO in the CleanRL style: rollouts without graph, several epochs of minibatches over them, clipped objective."""

import numpy as np
import torch
import torch.nn as nn
from torch.distributions.categorical import Categorical


def layer_init(layer, std=np.sqrt(2), bias_const=0.0):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias_const)
    return layer


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(layer_init(nn.Linear(3, 32)), nn.Tanh(), layer_init(nn.Linear(32, 1), std=1.0))
        self.actor = nn.Sequential(layer_init(nn.Linear(3, 32)), nn.Tanh(), layer_init(nn.Linear(32, 2), std=0.01))

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


class Envs:
    def __init__(self, n, seed):
        self.rng = np.random.default_rng(seed)
        self.n = n

    def reset(self):
        self.s = self.rng.normal(size=(self.n, 3)).astype(np.float32)
        return self.s

    def step(self, a):
        r = np.where(a == (self.s.sum(1) > 0), 1.0, 0.0).astype(np.float32)
        return self.reset(), r


args = dict(
    num_envs=8, num_steps=16, update_epochs=3, num_minibatches=4, clip=0.2, ent=0.01, vf=0.5, lr=2.5e-3, updates=5
)
np.random.seed(1)
torch.manual_seed(1)
envs, agent = Envs(args["num_envs"], 1), Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=args["lr"], eps=1e-5)
next_obs = torch.Tensor(envs.reset())
for update in range(1, args["updates"] + 1):
    optimizer.param_groups[0]["lr"] = (1.0 - (update - 1.0) / args["updates"]) * args["lr"]
    obs, actions, logprobs, rewards, values = [], [], [], [], []
    for step in range(args["num_steps"]):
        with torch.no_grad():
            action, logprob, _, value = agent.get_action_and_value(next_obs)
        obs.append(next_obs), actions.append(action), logprobs.append(logprob), values.append(value.flatten())
        s, r = envs.step(action.numpy())
        next_obs = torch.Tensor(s)
        rewards.append(torch.tensor(r))
    b_obs, b_actions, b_logprobs = torch.cat(obs), torch.cat(actions), torch.cat(logprobs)
    b_returns, b_values = torch.cat(rewards), torch.cat(values)
    b_advantages = b_returns - b_values
    b_inds = np.arange(len(b_obs))
    for epoch in range(args["update_epochs"]):
        np.random.shuffle(b_inds)
        for mb in np.split(b_inds, args["num_minibatches"]):
            _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[mb], b_actions[mb])
            ratio = (newlogprob - b_logprobs[mb]).exp()
            adv = b_advantages[mb]
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            pg_loss = torch.max(-adv * ratio, -adv * torch.clamp(ratio, 1 - args["clip"], 1 + args["clip"])).mean()
            v_loss = 0.5 * ((newvalue.view(-1) - b_returns[mb]) ** 2).mean()
            loss = pg_loss - args["ent"] * entropy.mean() + v_loss * args["vf"]
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
    print(update, b_returns.mean().item(), loss.item())
