"""LOS029: losses that lower the entropy of a policy."""

import pytest

FAULTY = {
    "in one sum": """
def update(states, actions, returns, values):
    dist = Categorical(logits=actor(states))
    advantage = returns - values.detach()
    loss = -(dist.log_prob(actions) * advantage).mean() + 0.01 * dist.entropy().mean()  # <- LOS029
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "in a class, with PPO": """
class Agent:
    def evaluate(self, states, actions):
        dist = Categorical(logits=self.actor(states))
        return dist.log_prob(actions), dist.entropy(), self.critic(states)

    def update(self, states, actions, old_log_probs, advantages, returns):
        for _ in range(self.epochs):
            log_probs, dist_entropy, values = self.evaluate(states, actions)
            ratios = torch.exp(log_probs - old_log_probs)
            surr1 = ratios * advantages
            surr2 = torch.clamp(ratios, 1 - self.eps, 1 + self.eps) * advantages
            loss = -torch.min(surr1, surr2) + 0.5 * F.mse_loss(values, returns)
            loss = loss + self.entropy_coef * dist_entropy  # <- LOS029
            self.optimizer.zero_grad()
            loss.mean().backward()
            self.optimizer.step()
""",
    "two minuses": """
def update(batch):
    log_prob, ent = policy(batch.obs, batch.act)
    entropy_loss = -policy.dist.entropy().mean()
    pg = (log_prob * batch.adv).mean()
    total = -pg + vf_coef * value_loss - args.ent_coef * entropy_loss  # <- LOS029
    total.backward()
""",
    "by hand": """
for step in range(100):
    logits = net(obs)
    log_probs = F.log_softmax(logits, dim=-1)
    probs = F.softmax(logits, dim=-1)
    entropy = -(probs * log_probs).sum(-1)
    chosen = log_probs.gather(1, actions)
    loss = -(chosen * rewards).mean()
    loss += beta * entropy.mean()  # <- LOS029
    loss.backward()
""",
    "lists of an episode": """
def finish():
    log_probs, entropies, policy_losses = [], [], []
    for t in range(10):
        dist = Categorical(probs=policy(s))
        a = dist.sample()
        log_probs.append(dist.log_prob(a))
        entropies.append(dist.entropy())
    for lp, R in zip(log_probs, returns):
        policy_losses.append(-lp * R)
    loss = torch.stack(policy_losses).sum() + 0.01 * torch.stack(entropies).sum()  # <- LOS029
    loss.backward()
""",
    "a masked mean, and a scaler": """
def masked_mean(x, mask):
    return (x * mask).sum() / mask.sum()

def step(batch):
    dist = Categorical(logits=model(batch["ids"]))
    ratio = (dist.log_prob(batch["next"]) - batch["old_logp"]).exp()
    policy_loss = masked_mean(-ratio * batch["advantages"], mask)
    entropy = masked_mean(dist.entropy(), mask)
    loss = policy_loss + cfg.ent_coef * entropy  # <- LOS029
    scaler.scale(loss).backward()
""",
    "inside the negated objective": """
for batch in rollouts:
    dist = policy(batch.states)
    loss = -(dist.log_prob(batch.actions) * batch.advantages - 0.01 * dist.entropy()).mean()  # <- LOS029
    loss.backward()
""",
}
START = """
dist = Categorical(logits=policy(states))
policy_loss = -(dist.log_prob(actions) * advantages).mean()
"""
CORRECT = {
    "subtracted": START + "loss = policy_loss - 0.01 * dist.entropy().mean()\nloss.backward()\n",
    "a negative entropy": START
    + """
entropy_loss = -dist.entropy().mean()
loss = policy_loss + 0.01 * entropy_loss
loss.backward()
""",
    "a negative coefficient": START
    + "beta = -0.01\nloss = policy_loss + beta * dist.entropy().mean()\nloss.backward()\n",
    "a negative coefficient of the command line": START
    + """
parser.add_argument("--entropy-coef", type=float, default=-0.01)
loss = policy_loss + args.entropy_coef * dist.entropy().mean()
loss.backward()
""",
    "a negated sum": """
dist = Categorical(logits=policy(states))
objective = (dist.log_prob(actions) * advantages).mean() + 0.01 * dist.entropy().mean()
(-objective).backward()
""",
    "a negated sum in another function": """
def objective(dist, advantages):
    return (dist.log_prob(actions) * advantages).mean() + 0.01 * dist.entropy().mean()

def train():
    loss = -objective(policy(states), advantages)
    loss.backward()
""",
    "maximize": START
    + """
optimizer = torch.optim.Adam(policy.parameters(), maximize=True)
loss = policy_loss + 0.01 * dist.entropy().mean()
loss.backward()
""",
    "test-time adaptation": """
def adapt(x, rewards):
    p = model(x).softmax(1)
    entropy = -(p * p.log()).sum(1).mean()
    loss = entropy
    loss.backward()
""",
    "semi-supervised learning": """
returns = None
probs, log_probs = F.softmax(out, 1), F.log_softmax(out, 1)
loss = F.cross_entropy(model(x), y) + 0.1 * -(probs * log_probs).sum(1).mean()
loss.backward()
""",
    "soft actor-critic": """
log_prob = dist.log_prob(action)
loss = (alpha * log_prob - q_value).mean()
loss.backward()
alpha_loss = (log_alpha * (dist.entropy() - target_entropy).detach()).mean()
alpha_loss.backward()
reward = 1
""",
    "in the return": """
dist = policy(states)
advantages = rewards + 0.01 * dist.entropy().detach()
loss = -(dist.log_prob(actions) * advantages).mean()
loss.backward()
""",
    "only recorded": START
    + """
loss = policy_loss
stats = policy_loss.item() + dist.entropy().mean().item()
loss.backward()
""",
    "a sum of p log p": """
probs, log_probs = F.softmax(out, 1), F.log_softmax(out, 1)
negative = (probs * log_probs).sum(1).mean()
loss = -(log_probs.gather(1, a) * returns).mean() + 0.01 * negative
loss.backward()
""",
    "a mean of each": """
def masked_mean(x, mask):
    return (x * mask).sum() / mask.sum()

dist = Categorical(logits=model(ids))
loss = masked_mean(-dist.log_prob(a) * advantages, m) - 0.01 * masked_mean(dist.entropy(), m)
loss.backward()
""",
    "minuses in a returned entropy": """
def evaluate(s, a):
    dist = Categorical(logits=policy(s))
    return dist.log_prob(a), -dist.entropy()

log_prob, entropy = evaluate(s, a)
loss = -(log_prob * advantages).mean() + 0.01 * entropy.mean()
loss.backward()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_a_minimised_entropy(lint_reports, script):
    lint_reports("import torch\n" + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean("import torch\n" + script, "LOS029")
