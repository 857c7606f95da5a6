"""LOS045: the log-probability of a sample that is drawn only for it."""

import pytest

HEAD = "import torch\nfrom torch.distributions import Categorical\n"
FAULTY = {
    "returned together": """
def act(policy, state):
    dist = Categorical(logits=policy(state))
    return dist.sample().item(), dist.log_prob(dist.sample())  # <- LOS045
""",
    "an attribute": """
class Agent:
    def step(self, state):
        self.dist = self.policy(state)
        self.action = self.dist.sample()
        self.log_prob = self.dist.log_prob(self.dist.sample()).sum(-1)  # <- LOS045
""",
    "a stored rollout": """
def learn(self, rollout):
    dist = Categorical(logits=self.pi(rollout.states))
    logp = dist.log_prob(dist.sample())  # <- LOS045
    loss = -(logp * (rollout.gains - rollout.gains.mean()) / (rollout.gains.std() + 1e-6)).mean()
    loss.backward()
""",
    "a sample under a name": """
def policy_loss(policy, states, advantages):
    dist = Categorical(logits=policy(states))
    new = dist.sample()  # <- LOS045
    log_prob = dist.log_prob(new)
    return -(log_prob * advantages.detach()).mean()
""",
    "a ratio": """
def ppo(policy, batch):
    dist = policy(batch["obs"])
    ratio = (dist.log_prob(dist.sample()) - batch["logp"]).exp()  # <- LOS045
    adv = batch["adv"]
    return -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
""",
    "in a loop over the steps": """
states, returns = torch.randn(5, 2, 3), torch.randn(5, 2)
for state, ret in zip(states, returns):
    dist = Categorical(logits=state)
    loss = -ret * dist.log_prob(dist.sample())  # <- LOS045
""",
}
CORRECT = {
    "the same action": """
def act(policy, state):
    dist = Categorical(logits=policy(state))
    action = dist.sample()
    return action.item(), dist.log_prob(action)
""",
    "an estimate of the entropy": """
def entropy(dist):
    return -dist.log_prob(dist.sample()).mean()
""",
    "an entropy with a temperature": """
def actor_loss(dist, log_alpha):
    return (log_alpha.exp() * dist.log_prob(dist.rsample())).mean()
def penalty(dist, reward_scale):
    return reward_scale * dist.log_prob(dist.sample()).mean()
""",
    "actions of a rollout": """
def learn(policy, rollout, advantages):
    dist = policy(rollout.states)
    return -(dist.log_prob(rollout.actions) * advantages).mean()
""",
    "rewards of the new action": """
def bandit(policy, env, states):
    dist = Categorical(logits=policy(states))
    action = dist.sample()
    reward = env.reward(states, action)
    return -(dist.log_prob(action) * reward).mean()
""",
    "two distributions": """
def ratio(p, q):
    x = p.sample()
    return p.log_prob(x) - q.log_prob(q.sample())
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_log_prob_of_another_sample(lint_reports, script):
    lint_reports(HEAD + script, fixes=False)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_the_log_prob_of_the_action(lint_is_clean, script):
    lint_is_clean(HEAD + script, "LOS045")
