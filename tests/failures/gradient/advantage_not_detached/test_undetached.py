"""GRD017: advantages with a graph, in the source."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F

class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.pi, self.v = nn.Linear(4, 16), nn.Linear(16, 2), nn.Linear(16, 1)
    def forward(self, x):
        h = torch.tanh(self.body(x))
        return torch.distributions.Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)

model = ActorCritic()
optimizer = torch.optim.Adam(model.parameters())
"""

FAULTY = {
    "normalised": """
for states, actions, returns in batches:
    policy, v = model(states)
    adv = returns - v
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    pg_loss = -(policy.log_prob(actions) * adv).mean()  # <- GRD017
    loss = pg_loss + 0.5 * F.mse_loss(v, returns)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "one step at a time": """
def finish_episode(saved, returns):
    policy_losses, value_losses = [], []
    for (log_prob, value), R in zip(saved, returns):
        advantage = R - value
        policy_losses.append(-log_prob * advantage)  # <- GRD017
        value_losses.append(F.smooth_l1_loss(value, torch.tensor([R])))
    optimizer.zero_grad()
    loss = torch.stack(policy_losses).sum() + torch.stack(value_losses).sum()
    loss.backward()
    optimizer.step()
""",
    "a TD error": """
class Agent:
    def __init__(self, actor, critic):
        self.actor, self.critic = actor, critic
        self.opt = torch.optim.Adam([*actor.parameters(), *critic.parameters()])

    def update(self, s, a, r, s2, done):
        with torch.no_grad():
            target = r + 0.99 * self.critic(s2) * (1 - done)
        delta = target - self.critic(s)
        logp = torch.log_softmax(self.actor(s), -1).gather(1, a)
        actor_loss = -(logp * delta).mean()  # <- GRD017
        critic_loss = delta.pow(2).mean()
        self.opt.zero_grad()
        (actor_loss + critic_loss).backward()
        self.opt.step()
""",
    "the ratio of PPO": """
def ppo_loss(policy, actions, old_logp, returns, values, clip=0.2):
    advantages = returns - values
    ratio = (policy.log_prob(actions) - old_logp).exp()
    surrogate = torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)  # <- GRD017
    return -surrogate.mean() + 0.5 * ((returns - values) ** 2).mean()

for states, actions, old, returns in batches:
    policy, values = model(states)
    loss = ppo_loss(policy, actions, old, returns, values)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a baseline network": """
policy_net, baseline_net = nn.Linear(4, 2), nn.Linear(4, 1)
opt = torch.optim.Adam([*policy_net.parameters(), *baseline_net.parameters()])
mse = nn.MSELoss()
for obs, act, ret in batches:
    baseline = baseline_net(obs)[:, 0]
    dist = torch.distributions.Categorical(logits=policy_net(obs))
    reinforce = torch.mean(-dist.log_prob(act) * (ret - baseline))  # <- GRD017
    total = reinforce + mse(baseline, ret)
    opt.zero_grad()
    total.backward()
    opt.step()
""",
    "a target of a library": """
from elsewhere import unpack
for batch in batches:
    states, actions, state_values = unpack(batch, model)
    policy, v = model(states)
    advantage = state_values - v
    loss = -(policy.log_prob(actions) * advantage).mean() + F.mse_loss(v, state_values)  # <- GRD017
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "the item of an output": """
def predict(net, states):
    policy, v = net(states)
    return {"policy": policy, "value": v.squeeze(-1)}

for states, actions, returns in batches:
    output = predict(model, states)
    adv = returns - output["value"]
    error = F.mse_loss(output["value"], returns)
    loss = error - (output["policy"].log_prob(actions) * adv).mean()  # <- GRD017
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a view of the values": """
for states, actions, returns in batches:
    policy, v = model(states)
    adv = returns - v.view(-1)
    loss = 0.5 * F.mse_loss(v.squeeze(-1), returns) - (policy.log_prob(actions) * adv).mean()  # <- GRD017
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a target with a graph, whose subtrahend is detached": """
critic, actor = nn.Linear(4, 1), nn.Linear(4, 2)
for s, a, r, s2 in batches:
    next_values = critic(s2)
    value_loss = F.mse_loss(critic(s), r + 0.9 * next_values)
    log_prob = torch.distributions.Categorical(logits=actor(s)).log_prob(a)[:, None]
    policy_loss = -(log_prob * (r + 0.9 * next_values - critic(s).detach())).mean()  # <- GRD017
    optimizer.zero_grad()
    (value_loss + policy_loss).backward()
    optimizer.step()
""",
    "a value that only the standard deviation has without a graph": """
for states, actions, returns in batches:
    policy, v = model(states)
    adv = (returns - v) / (returns - v.detach()).std()
    loss = -(policy.log_prob(actions) * adv).mean() + 0.5 * (v - returns).pow(2).mean()  # <- GRD017
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
}

REFERENCES = {
    "of a library": "from elsewhere import unpack\n",
    "of a function that goes through NumPy": """
import numpy as np

def unpack(batch, net):
    states = torch.FloatTensor(np.array([each.state for each in batch]))
    actions = torch.LongTensor([each.action for each in batch])
    rewards = np.array([each.reward for each in batch], dtype=np.float32)
    following = torch.FloatTensor(np.array([each.following for each in batch]))
    rewards += 0.9 * net(following)[1].data.numpy()
    state_values = torch.FloatTensor(rewards).to("cpu")
    return states, actions, state_values
""",
    "of a function with torch.from_numpy": """
import numpy as np

def unpack(batch, net):
    states, actions, rewards = (np.array(each) for each in batch)
    vals = torch.from_numpy(rewards).float()
    return torch.as_tensor(states), torch.as_tensor(actions), vals.unsqueeze(0)[0]
""",
}
USES = {
    "detached": "advantage = state_values - v.detach()",
    "a number": "advantage = state_values - v.item()",
    "without the new values": "advantage = state_values - state_values.mean()",
}
VALUE_LOSSES = {
    "mse_loss": "F.mse_loss(v, state_values)",
    "mse_loss of a view": "F.mse_loss(v.squeeze(-1), state_values)",
    "a square": "(state_values - v).pow(2).mean()",
}
WITH_REFERENCE = """
for batch in batches:
    states, actions, state_values = unpack(batch, model)
    policy, v = model(states)
    USE
    loss = -(policy.log_prob(actions) * advantage).mean() + VALUE_LOSS
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

CORRECT = {
    **{
        f"values {name}, {how}, {error}": made + WITH_REFERENCE.replace("USE", use).replace("VALUE_LOSS", loss)
        for name, made in REFERENCES.items()
        for how, use in USES.items()
        for error, loss in VALUE_LOSSES.items()
    },
    "arguments of a function": """
def a2c_loss(policy, actions, values, lambda_values):
    advantage = lambda_values - values.detach()
    return -(policy.log_prob(actions) * advantage).mean() + F.smooth_l1_loss(values, lambda_values)

for states, actions, lambda_values in batches:
    policy, values = model(states)
    loss = a2c_loss(policy, actions, values, lambda_values)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "other items of the rollout": """
def policy_loss(advantages, ratio):
    return -(advantages * ratio).mean()

def value_loss(new_values, old_values, returns):
    clipped = old_values + torch.clamp(new_values.view(-1) - old_values, -0.2, 0.2)
    return F.mse_loss(clipped, returns)

def advantages_of(rewards, values):
    advantages = torch.zeros_like(rewards)
    for t in reversed(range(len(rewards) - 1)):
        advantages[t] = rewards[t] + 0.99 * values[t + 1] - values[t]
    return advantages + values, advantages

rewards, values = torch.zeros(64), torch.zeros(64)
with torch.no_grad():
    for step in range(64):
        values[step] = model(states[step])[1].flatten()
returns, advantages = advantages_of(rewards, values)
data = {
    "advantages": advantages.reshape(-1), "returns": returns.reshape(-1), "values": values.reshape(-1),
    "log_prob": log_prob.reshape(-1),
}
for k in torch.randperm(64).split(16):
    policy, new_values = model(states[k])
    ratio = (policy.log_prob(actions[k]) - data["log_prob"][k]).exp()
    weights = data["advantages"][k]
    weights = (weights - weights.mean()) / weights.std()
    loss = policy_loss(weights, ratio) + value_loss(new_values, data["values"][k], data["returns"][k])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "items of a dictionary that a comprehension cuts": """
class Agent:
    def __init__(self, net):
        self.net = net

    def training_step(self, batch):
        policy, v = self.net(batch["states"])
        advantage = batch["advantages"] - batch["advantages"].mean()
        policy_loss = -(policy.log_prob(batch["actions"]) * advantage).mean()
        clipped = batch["values"] + (v - batch["values"]).clamp(-0.2, 0.2)
        return policy_loss + F.mse_loss(clipped, batch["returns"])

agent = Agent(model)
values = torch.stack(collected).detach()
data = {"states": states, "actions": actions, "returns": returns, "values": values.reshape(-1)}
data["advantages"] = (returns - values).reshape(-1)
for k in torch.randperm(64).split(16):
    loss = agent.training_step({name: each[k] for name, each in data.items()})
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a target network": """
critic, critic_target, actor = nn.Linear(4, 1), nn.Linear(4, 1), nn.Linear(4, 2)
for s, a, r, s2 in batches:
    target = r + 0.9 * critic_target(s2)
    log_prob = torch.distributions.Categorical(logits=actor(s)).log_prob(a)[:, None]
    loss = F.mse_loss(critic(s), target) - (log_prob * (target - critic(s).detach())).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "detached": """
for states, actions, returns in batches:
    policy, v = model(states)
    adv = (returns - v).detach()
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    loss = -(policy.log_prob(actions) * adv).mean() + 0.5 * F.mse_loss(v, returns)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "detached in the product": """
for states, actions, returns in batches:
    policy, v = model(states)
    td = returns - v
    loss = -(policy.log_prob(actions) * td.detach()).mean() + td.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a number": """
def finish_episode(saved, returns):
    policy_losses, value_losses = [], []
    for (log_prob, value), R in zip(saved, returns):
        advantage = R - value.item()
        policy_losses.append(-log_prob * advantage)
        value_losses.append(F.smooth_l1_loss(value, torch.tensor([R])))
    optimizer.zero_grad()
    (torch.stack(policy_losses).sum() + torch.stack(value_losses).sum()).backward()
    optimizer.step()
""",
    "computed without a graph": """
for states, actions, returns in batches:
    policy, v = model(states)
    with torch.no_grad():
        adv = returns - v
    loss = -(policy.log_prob(actions) * adv).mean() + 0.5 * F.mse_loss(v, returns)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "values of the rollout": """
for epoch in range(4):
    for states, actions, old_logp, old_values, returns in batches:
        policy, new_values = model(states)
        advantages = returns - old_values
        ratio = (policy.log_prob(actions) - old_logp).exp()
        loss = -(ratio * advantages).mean() + 0.5 * F.mse_loss(new_values, returns)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "two optimizers, whose gradients are cleared": """
actor, critic = nn.Linear(4, 2), nn.Linear(4, 1)
actor_opt, critic_opt = torch.optim.Adam(actor.parameters()), torch.optim.Adam(critic.parameters())
for s, a, ret in batches:
    v = critic(s)[:, 0]
    adv = ret - v
    actor_loss = -(torch.distributions.Categorical(logits=actor(s)).log_prob(a) * adv).mean()
    actor_opt.zero_grad()
    actor_loss.backward(retain_graph=True)
    actor_opt.step()
    critic_opt.zero_grad()
    critic_loss = F.mse_loss(v, ret)
    critic_loss.backward()
    critic_opt.step()
""",
}

STEPS = """
def advantages_of(returns, values, scale=True):
    advantages = returns - values
    if scale:
        advantages = (advantages - advantages.mean()) / advantages.std()
    return advantages

def update(advantages, log_probs, returns, values):
    policy_loss = -(advantages * log_probs).mean()  # <- GRD017
    loss = policy_loss + 0.5 * F.smooth_l1_loss(returns.detach(), values)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

for states, actions, returns in batches:
    policy, values = model(states)
    log_probs = policy.log_prob(actions)
    advantages = advantages_of(returns, values)
    update(advantages, log_probs, returns, values)
"""
FAULTY["a function computes it, another one the loss"] = STEPS
CHANGES = {
    "detached by the function that computes it": ("    return advantages", "    return advantages.detach()"),
    "detached where it is passed": ("    update(advantages,", "    update(advantages.detach(),"),
    "computed from detached values": ("of(returns, values)\n", "of(returns, values.detach())\n"),
    "detached before the loss": ("    policy_loss", "    advantages = advantages.detach()\n    policy_loss"),
}
CORRECT |= {name: STEPS.replace(*change, 1) for name, change in CHANGES.items()}
CORRECT = {name: each.replace("  # <- GRD017", "") for name, each in CORRECT.items()}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_advantages_with_a_graph(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_advantages_without_a_graph(lint_is_clean, script):
    lint_is_clean(HEAD + script, "GRD017")
