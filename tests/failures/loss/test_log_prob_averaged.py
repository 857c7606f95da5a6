"""LOS057: policy gradients of averaged log-probabilities."""

import pytest

FAULTY = {
    "both averaged": """
import torch
for episode in range(10):
    log_probs, returns = play(policy)
    loss = -(torch.stack(log_probs).mean() * returns.mean())  # <- LOS057
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a function": """
import torch

def policy_loss(log_probs, advantages):
    mean = log_probs.mean()  # <- LOS057
    return -(mean * advantages).mean()

loss = policy_loss(dist.log_prob(actions), returns - values.detach())
loss.backward()
""",
    "a class": """
import torch

class Reinforce:
    def update(self):
        returns = torch.tensor(self.compute_returns())
        log_probs = torch.cat(self.saved_log_probs)
        loss = (-torch.mean(log_probs) * returns).sum()  # <- LOS057
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
""",
    "a loop over returns": """
import torch
mean_log_prob = torch.stack(log_probs).mean()  # <- LOS057
policy_loss = []
for G in returns:
    policy_loss.append(-mean_log_prob * G)
loss = torch.stack(policy_loss).sum()
loss.backward()
""",
    "in a loop": """
import torch
loss = 0
for G in returns:
    loss -= torch.stack(log_probs).mean() * G  # <- LOS057
loss.backward()
""",
    "a list filled in a loop": """
import torch
policy_loss = []
for R in returns:
    policy_loss.append(-torch.cat(log_probs).mean() * R)  # <- LOS057
loss = torch.stack(policy_loss).sum()
loss.backward()
""",
    "a cross-entropy": """
import torch
import torch.nn.functional as F
nll = F.cross_entropy(policy(states), actions)  # <- LOS057
loss = (nll * returns).mean()
loss.backward()
""",
    "a module for the cross-entropy": """
import torch
criterion = torch.nn.CrossEntropyLoss()
loss = torch.mean(criterion(policy(states), actions) * advantages)  # <- LOS057
loss.backward()
""",
    "log_softmax": """
import torch
chosen = torch.log_softmax(policy(states), 1).gather(1, actions)
loss = -(chosen.mean() * returns).mean()  # <- LOS057
loss.backward()
""",
    "returns by cumsum": """
import torch
returns = rewards.flip(0).cumsum(0).flip(0)
loss = -(log_probs.mean() * returns).mean()  # <- LOS057
loss.backward()
""",
    "a comprehension": """
import torch
loss = sum(-torch.stack(logps).mean() * g for g in returns)  # <- LOS057
loss.backward()
""",
    "the sum of a list": """
import torch
total = torch.stack(log_probs).sum()  # <- LOS057
weighted = total * (returns - baseline)
loss = -weighted.mean() + 0.5 * value_loss
loss.backward()
""",
    "actor and critic": """
import torch

def train(batch, actor, critic, optimizer):
    dist = actor(batch.states)
    adv = batch.returns - critic(batch.states).detach()
    logp = dist.log_prob(batch.actions)
    actor_loss = -(logp.mean() * adv.mean())  # <- LOS057
    loss = actor_loss - 0.01 * dist.entropy().mean()
    loss.backward()
""",
    "normalised rewards": """
import torch
rewards = torch.tensor(discount(rewards))
rewards = (rewards - rewards.mean()) / (rewards.std() + 1e-8)
loss = -(torch.stack(log_probs).mean() * rewards).sum()  # <- LOS057
loss.backward()
""",
}
CORRECT = {
    "each step": """
import torch
loss = -(torch.stack(log_probs) * returns).mean()
loss.backward()
""",
    "the reward of the episode": """
import torch
total_reward = sum(rewards)
loss = -torch.stack(log_probs).mean() * total_reward
loss.backward()
""",
    "the return of the episode": """
import torch
loss = -torch.stack(log_probs).sum() * episode_return
loss.backward()
""",
    "rewards of one episode": """
import torch
loss = -(torch.stack(log_probs).sum() * torch.tensor(rewards).sum())
loss.backward()
""",
    "dimensions of an action": """
import torch
for log_prob, G in zip(log_probs, returns):
    loss = loss - log_prob.sum() * G
loss.backward()
""",
    "dimensions of actions": """
import torch
loss = -(dist.log_prob(actions).sum(-1) * advantages).mean()
loss.backward()
""",
    "one step of an actor": """
import torch
log_prob = dist.log_prob(action).sum()
loss = -(log_prob * advantage.detach()).mean()
loss.backward()
""",
    "an entropy": """
import torch
loss = (alpha * log_probs - q).mean()
loss.backward()
""",
    "printed": """
import torch
loss = -(log_probs * returns).mean()
loss.backward()
print(log_probs.mean() * returns.mean())
""",
    "each sequence of a group": """
import torch
losses = []
for answer, advantage in zip(answers, advantages):
    token_log_probs = score(answer)
    losses.append(-token_log_probs.mean() * advantage)
loss = torch.stack(losses).mean()
loss.backward()
""",
    "a cross-entropy for each step": """
import torch
import torch.nn.functional as F
nll = F.cross_entropy(policy(states), actions, reduction="none")
loss = (nll * returns).mean()
loss.backward()
""",
    "a module for each step": """
import torch
criterion = torch.nn.CrossEntropyLoss(reduction="none")
loss = torch.mean(criterion(policy(states), actions) * advantages)
loss.backward()
""",
    "one step after the other": """
import torch
import torch.nn.functional as F
for state, action, G in zip(states, actions, returns):
    loss = F.cross_entropy(policy(state[None]), action[None]) * G
    loss.backward()
""",
    "each sequence": """
import torch
loss = -(token_log_probs.mean(dim=1) * advantages).mean()
loss.backward()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_averaged_log_probabilities(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_products_of_each_step_and_of_whole_episodes(lint_is_clean, script):
    lint_is_clean(script, "LOS057")
