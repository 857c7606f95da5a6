"""Online one-step actor-critic: batches of one, an evaluation that acts with the policy, two heads, two optimizers."""

import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(1)
actor = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
log_std = nn.Parameter(torch.zeros(1))
critic = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
actor_optim = torch.optim.Adam([*actor.parameters(), log_std], lr=1e-3)
critic_optim = torch.optim.Adam(critic.parameters(), lr=5e-3)


def env_step(s, a):
    position, speed = s
    speed = 0.9 * speed + 0.1 * a.clamp(-2, 2)
    position = position + 0.1 * speed
    return torch.stack([position, speed]), -(position**2) - 0.01 * a**2


rewards = []
for episode in range(4):
    state = torch.tensor([1.0, 0.0])
    ep = 0.0
    for t in range(30):
        dist = Normal(actor(state).squeeze(), log_std.exp().squeeze())
        action = dist.sample()
        next_state, reward = env_step(state, action)
        with torch.no_grad():
            target = reward + 0.95 * critic(next_state).squeeze()
        value = critic(state).squeeze()
        advantage = target - value

        critic_loss = advantage.pow(2)
        critic_optim.zero_grad()
        critic_loss.backward()
        critic_optim.step()

        actor_loss = -dist.log_prob(action) * advantage.detach() - 0.01 * dist.entropy()
        actor_optim.zero_grad()
        actor_loss.backward()
        actor_optim.step()
        state = next_state
        ep += reward.item()
    rewards.append(ep)
print(rewards)
