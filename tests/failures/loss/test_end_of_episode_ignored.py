"""LOS022: targets of Q-learning that bootstrap from terminal states."""

import re

import pytest

TAIL = """
    loss = F.smooth_l1_loss(q(s).gather(1, a), y)
    loss.backward()
"""

FAULTY = {
    "a mask that is unpacked only": """
def update(self, n):
    states, actions, reward_batch, next_states, masks = self.buffer.sample(n)
    masks = torch.FloatTensor(masks)
    next_q = self.critic_target.forward(next_states, self.actor_target(next_states).detach())
    expected = reward_batch + self.gamma * next_q  # <- LOS022
    loss = F.mse_loss(self.critic(states, actions), expected.detach())
    loss.backward()
""",
    "another name of the flag": """
def learn(self, batch):
    s, a, r, s2, fell = batch
    with torch.no_grad():
        best_next = self.target(s2).max(dim=1).values
        goal = r + self.gamma * best_next  # <- LOS022
    loss = F.smooth_l1_loss(self.q(s).gather(1, a[:, None]).squeeze(1), goal)
    loss.backward()
""",
    "another name of the flag, in a loop over the batch": """
def replay(self):
    for state, action, reward, next_state, crashed in random.sample(self.memory, 32):
        target = reward + 0.95 * self.q(next_state).max()  # <- LOS022
        loss = F.mse_loss(self.q(state)[action], target.detach())
        loss.backward()
""",
    "unpacked and converted": """
def learn(self, n=32):
    s, a, r, s2, done = zip(*random.sample(self.memory, n))
    s, s2 = self.encode(s), self.encode(s2)
    r = torch.tensor(r)
    done = torch.tensor(done).float()
    with torch.no_grad():
        q_next = self.target(s2).max(1).values
        y = r + self.gamma * q_next  # <- LOS022
    loss = F.mse_loss(self.q(s).gather(1, torch.tensor(a)[:, None])[:, 0], y)
    loss.backward()
""",
    "in one expression, from a loader": """
for states, actions, rewards, next_states, dones in loader:
    dones = dones.to(device)
    target = rewards + 0.99 * torch.max(target_net(next_states), dim=1)[0].detach()  # <- LOS022
    F.mse_loss(net(states).gather(1, actions), target[:, None]).backward()
""",
    "moved to the device together": """
def step(batch, gamma):
    state, action, reward, next_state, terminal = [each.to(device) for each in batch]
    best = policy(next_state).argmax(1, keepdim=True)
    future = gamma * target(next_state).gather(1, best)
    expected = reward + future  # <- LOS022
    F.mse_loss(policy(state).gather(1, action), expected).backward()
""",
    "a dictionary, two critics": """
def update(data):
    o, a, r, o2, d = data["obs"], data["act"], data["rew"], data["obs2"], data["done"]
    a2, logp = pi(o2)
    q_next = torch.min(q1_targ(o2, a2), q2_targ(o2, a2))
    backup = r + gamma * (q_next - alpha * logp)  # <- LOS022
    ((q1(o, a) - backup) ** 2).mean().backward()
""",
    "a parameter": """
class Agent:
    def td_target(self, reward, next_state, terminated):
        return reward + self.gamma * self.critic(next_state)  # <- LOS022
    def learn(self, s, r, s2, terminated):
        F.mse_loss(self.critic(s), self.td_target(r, s2, terminated).detach()).backward()
""",
    "stored, and dropped where it is sampled": """
class Agent:
    def remember(self, state, action, reward, next_state, done):
        self.memory.append((state, action, reward, next_state, done))
    def learn(self):
        s, a, r, s2, _ = map(torch.stack, zip(*random.sample(self.memory, 32)))
        y = r + self.gamma * self.target(s2).amax(1)  # <- LOS022
        F.mse_loss(self.q(s).gather(1, a)[:, 0], y).backward()

state = env.reset()
while True:
    next_state, reward, done, _ = env.step(agent.act(state))
    agent.remember(state, a, reward, next_state, done)
    agent.learn()
    state = next_state
    if done:
        break
""",
    "one step after the other": """
for episode in range(100):
    state, done = env.reset(), False
    while not done:
        action = act(state)
        next_state, reward, done, _ = env.step(action)
        target = reward + gamma * net(next_state).max().detach()  # <- LOS022
        loss = (net(state)[action] - target) ** 2
        loss.backward()
        state = next_state
""",
}

CORRECT = {
    "a mask that is used": """
def update(self, n):
    states, actions, reward_batch, next_states, masks = self.buffer.sample(n)
    next_q = self.critic_target.forward(next_states, self.actor_target(next_states).detach()) * masks
    expected = reward_batch + self.gamma * next_q
    loss = F.mse_loss(self.critic(states, actions), expected.detach())
    loss.backward()
""",
    "another name of the flag, which is used": """
def learn(batch):
    s, a, r, s2, fell = batch
    y = r + gamma * target(s2).max(1).values * (1 - fell)
"""
    + TAIL,
    "weights of the replay memory, and next states without terminal ones": """
def learn(batch):
    s, a, r, s2, weights = batch
    y = r + gamma * target(s2).max(1).values
"""
    + TAIL,
    "one minus done": """
def learn(batch):
    s, a, r, s2, done = batch
    y = r + gamma * target(s2).max(1).values * (1 - done)
"""
    + TAIL,
    "not done": """
def learn(batch):
    s, a, r, s2, done = batch
    y = r + gamma * target(s2).max(1).values * ~done
"""
    + TAIL,
    "a mask of its own": """
def learn(batch):
    s, a, r, s2, done = batch
    alive = 1 - done.float()
    y = r + gamma * target(s2).max(1).values * alive
"""
    + TAIL,
    "a discount that contains it": """
def learn(batch):
    s, a, r, s2, done = batch
    discount = gamma * (1 - done)
    y = r + discount * target(s2).max(1).values
"""
    + TAIL,
    "values set to zero": """
def learn(batch):
    s, a, r, s2, done = batch
    q_next = target(s2).max(1).values
    q_next[done] = 0.0
    y = r + gamma * q_next
"""
    + TAIL,
    "filled in place": """
def learn(batch):
    s, a, r, s2, done = batch
    q_next = target(s2).max(1).values
    q_next.masked_fill_(done, 0.0)
    y = r + gamma * q_next
"""
    + TAIL,
    "chosen afterwards": """
def learn(batch):
    s, a, r, s2, done = batch
    y = r + gamma * target(s2).max(1).values
    y = torch.where(done, r, y)
"""
    + TAIL,
    "a condition": """
def learn(s, a, r, s2, done):
    if done:
        y = r
    else:
        y = r + gamma * target(s2).max()
"""
    + TAIL,
    "no future for the last step": """
for s, a, r, s2, done in batch:
    future = 0 if done else target(s2).max()
    y = r + gamma * future
    F.mse_loss(q(s)[a], y).backward()
""",
    "the last step is skipped": """
for s, a, r, s2, done in batch:
    if done:
        continue
    y = r + gamma * target(s2).max()
    F.mse_loss(q(s)[a], y).backward()
""",
    "next states that are no end": """
def learn(batch):
    s, a, r, next_s, done = batch
    keep = done == 0
    q_next = torch.zeros(len(r))
    q_next[keep] = target(next_s[keep]).max(1).values
    y = r + gamma * q_next
    F.mse_loss(q(s).gather(1, a), y).backward()
""",
    "no flag is stored": """
def learn(batch):
    s, a, r, s2 = batch
    y = r + gamma * target(s2).max(1).values
"""
    + TAIL,
    "None for the state after the end": """
def learn():
    batch = Transition(*zip(*memory.sample(32)))
    mask = torch.tensor([each is not None for each in batch.next_state])
    q_next = torch.zeros(32)
    q_next[mask] = target(torch.cat([e for e in batch.next_state if e is not None])).max(1).values
    y = batch.reward + gamma * q_next
    F.mse_loss(q(batch.state), y).backward()

next_state, reward, done, _ = env.step(a)
memory.push(state, a, reward, None if done else next_state, done)
""",
    "the flag is masked elsewhere": """
class Buffer:
    def add(self, s, a, r, s2, done):
        self.rows.append((s, a, r, s2, gamma * (1 - done)))
        self.memory.append((r, done))

def learn(batch):
    s, a, r, s2, discount = batch
    y = r + discount * target(s2).max(1).values
"""
    + TAIL,
    "passed to a function that uses it": """
def learn(batch):
    s, a, r, s2, done = batch
    q_next = cut(target(s2).max(1).values, done)
    y = r + gamma * q_next
"""
    + TAIL,
    "advantages": """
def gae(rewards, values, dones):
    last = 0
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * values[t + 1] * (1 - dones[t]) - values[t]
        last = delta + gamma * 0.95 * (1 - dones[t]) * last
    loss.backward()
""",
    "returns over several steps": """
def returns(rewards, dones, next_state):
    total = critic(next_state)
    for r, done in zip(reversed(rewards), reversed(dones)):
        total = r + gamma * total * (1 - done)
    loss.backward()
""",
    "a flag and a mask": """
def learn(batch):
    s, a, r, s2, done, mask = batch
    q_next = mask * target(s2).max(1).values
    y = r + gamma * q_next
"""
    + TAIL,
    "a table": """
def learn(s, a, r, s2, done):
    Q[s, a] += 0.1 * (r + gamma * max(Q[s2]) - Q[s, a])
    other(loss).backward()
""",
    "an environment without ends": """
env = gym.make("Pendulum-v1")
def learn(batch):
    s, a, r, s2, done = batch
    y = r + gamma * target(s2, actor(s2))
"""
    + TAIL,
}


NOT_STORED = {
    "a memory of four values, in functions": """
def learn(net, frozen, memory, optimizer):
    batch = memory.sample(32)
    s, a, r, s2 = [torch.stack(each) for each in zip(*batch)]
    with torch.no_grad():
        best, _ = frozen(s2).max(1)
        y = r + 0.99 * best  # <- LOS022
    optimizer.zero_grad()
    F.mse_loss(net(s).gather(1, a).squeeze(1), y).backward()
    optimizer.step()
def play(env, net, frozen, memory, optimizer):
    steps_done = 0
    for episode in range(100):
        state = env.reset()
        while True:
            steps_done += 1
            action = choose(net, state, steps_done)
            next_state, reward, done, _ = env.step(action)
            memory.push(state, action, next_state, reward)
            state = next_state
            learn(net, frozen, memory, optimizer)
            if done:
                break
""",
    "a class with a table of rows": """
class Agent:
    def store_transition(self, s, a, r, s_):
        self.memory[self.counter % 500] = np.hstack((s, [a, r], s_))
        self.counter += 1
    def learn(self):
        rows = torch.as_tensor(self.memory[np.random.choice(500, 32)])
        states, rewards, next_states = rows[:, :4], rows[:, 5:6], rows[:, -4:]
        future = self.target(next_states).detach()
        goal = rewards + GAMMA * future.max(1)[0].view(-1, 1)  # <- LOS022
        self.loss(self.net(states).max(1)[0], goal).backward()
agent = Agent()
for episode in range(400):
    s = env.reset()
    while True:
        a = agent.act(s)
        s_, r, done, info = env.step(a)
        agent.store_transition(s, a, r, s_)
        if agent.counter > 500:
            agent.learn()
            if done:
                print(episode, agent.counter)
        if done:
            break
        s = s_
""",
    "five results of a step, and keywords": """
obs, _ = env.reset()
for step in range(10000):
    action = policy(obs)
    new_obs, reward, terminated, truncated, _ = env.step(action)
    replay.add(obs=obs, action=action, reward=reward, next_obs=new_obs)
    obs = new_obs
    if terminated or truncated:
        obs, _ = env.reset()
    data = replay.sample(64)
    q_next = critic(data.next_obs, actor(data.next_obs))
    goal = data.reward + gamma * q_next.detach()  # <- LOS022
    F.mse_loss(critic(data.obs, data.action), goal).backward()
""",
}
NOT_STORED["passed to the learner without it"] = """
def learn(net, frozen, s, a, r, s2, gamma, optimizer):
    with torch.no_grad():
        y = r + gamma * frozen(s2).max(1).values  # <- LOS022
    loss = F.mse_loss(net(s)[:, a], y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
def play(env, net, frozen, optimizer):
    s, done = env.reset(), False
    while not done:
        a = net(s).argmax()
        s2, r, done, _ = env.step(a)
        learn(net, frozen, s, a, r, s2, 0.99, optimizer)
        s = s2
"""

LOOP = """
    F.smooth_l1_loss(net(s).gather(1, a), y).backward()
s, done = env.reset(), False
while not done:
    s2, r, done, _ = env.step(act(s))
    memory.push(s, a, r, s2, done)
    s = s2
"""
INVERTED = {
    "a factor": """
def learn(s, a, r, s2, done, gamma):
    q_next = frozen(s2).max(1).values
    y = r + q_next * gamma * done  # <- LOS022
""",
    "a converted factor": """
def learn(batch):
    s, a, r, s2, done = batch
    y = r[:, None] + done.float().unsqueeze(1) * 0.99 * frozen(s2).max(1, keepdim=True)[0]  # <- LOS022
""",
    "where": """
def learn(batch):
    s, a, r, s2, done = batch
    y = torch.where(done, r + gamma * frozen(s2).amax(1), r)  # <- LOS022
""",
    "one of two branches": """
def learn(s, a, r, s2, done):
    if done:  # <- LOS022
        y = r + gamma * frozen(s2).max()
    else:
        y = r
""",
}
NOT_INVERTED = {
    "a complement": INVERTED["a factor"].replace("* done  # <- LOS022", "* (1 - done)"),
    "where, the other way round": INVERTED["where"].replace("r + gamma * frozen(s2).amax(1), r)  # <- LOS022",
                                                            "r, r + gamma * frozen(s2).amax(1))"),
    "the other branch": INVERTED["one of two branches"].replace("if done:  # <- LOS022", "if not done:"),
    "stored the other way round": INVERTED["a factor"].replace("  # <- LOS022", "") + """
    F.mse_loss(net(s).gather(1, a), y).backward()
def store(s, a, r, s2, done):
    memory.append((s, a, r, s2, 0.0 if done else 1.0))
""",
    "converted before": """
def learn(s, a, r, s2, done):
    done = torch.logical_not(done).float()
    y = r + gamma * done * frozen(s2).max(1).values
""",
    "a mask": INVERTED["a factor"].replace("done", "not_done").replace("  # <- LOS022", ""),
    "a penalty at the end": """
def learn(s, a, r, s2, done):
    y = r + penalty * done + gamma * (1 - done) * frozen(s2).max(1).values
""",
}  # fmt: skip


@pytest.mark.parametrize("script", INVERTED.values(), ids=INVERTED)
def test_lint_reports_inverted_flags(lint_reports, script):
    assert "only where the episode has ended" in lint_reports(script + LOOP)[0].message


@pytest.mark.parametrize("script", NOT_INVERTED.values(), ids=NOT_INVERTED)
def test_lint_accepts_other_factors(lint_is_clean, script):
    lint_is_clean(script + LOOP, "LOS022")


STORED = {
    "the flag is stored in a mask": """
def learn(batch):
    s, a, r, s2, alive = batch
    y = r + 0.99 * frozen(s2).max(1)[0] * alive
    F.mse_loss(net(s).gather(1, a), y).backward()
for step in range(1000):
    s2, r, done, _ = env.step(a)
    memory.append((s, a, r, s2, 1 - done))
    s = env.reset() if done else s2
""",
    "the next state is None at the end": """
def learn(batch):
    s, a, r, next_states = batch
    ends = torch.tensor([each is not None for each in next_states])
    values = torch.zeros(32)
    values[ends] = frozen(torch.cat([each for each in next_states if each is not None])).max(1)[0]
    y = r + 0.99 * values
    F.mse_loss(net(s).gather(1, a), y).backward()
for step in range(1000):
    next_state, r, done, _ = env.step(a)
    if done:
        next_state = None
    memory.push(s, a, r, next_state)
""",
    "an environment without ends": """
env = gym.make("Pendulum-v1")
def learn(batch):
    s, a, r, s2 = batch
    y = r + 0.99 * critic(s2, actor(s2))
    F.mse_loss(critic(s, a), y).backward()
for step in range(1000):
    s2, r, done, _ = env.step(a)
    memory.push(s, a, r, s2)
    if done:
        break
""",
    "the reward of the last step tells the end": """
def learn(batch):
    s, a, r, s2 = batch
    y = r + 0.99 * frozen(s2).max(1)[0]
    F.mse_loss(net(s).gather(1, a), torch.where(r < 0, r, y)).backward()
for step in range(1000):
    s2, r, done, _ = env.step(a)
    r = -1.0 if done else r
    memory.push(s, a, r, s2)
""",
    "a loader steps, not an environment": """
def learn(batch):
    s, a, r, s2 = batch
    y = r + 0.99 * frozen(s2).max(1)[0]
    F.mse_loss(net(s).gather(1, a), y).backward()
for state, action, reward, next_state in data:
    memory.push(state, action, reward, next_state)
    learn(memory.sample())
done = True
""",
}


@pytest.mark.parametrize("script", NOT_STORED.values(), ids=NOT_STORED)
def test_lint_reports_transitions_without_the_flag(lint_reports, script):
    assert re.search("is not passed on|nothing uses `terminated`", lint_reports(script)[0].message)


@pytest.mark.parametrize("script", STORED.values(), ids=STORED)
def test_lint_accepts_other_transitions(lint_is_clean, script):
    lint_is_clean(script, "LOS022")


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_target(lint_reports, script):
    assert "nothing uses" in lint_reports(script)[0].message


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(script, "LOS022")


REPLAY_LOOP = """
import random
from collections import deque, namedtuple

env, agent, memory = make_env(), Agent(), Memory(1000)
for episode in range(100):
    state = env.reset()
    for t in range(40):
        action = agent.act(state)
        next_state, reward, done, info = env.step(action)
        STORE
        agent.learn(memory.sample(32))
        state = next_state
        if done:
            break
"""
LEARN = """
class Agent:
    def learn(self, batch):
        state, action, reward, next_state, mask = batch
        q = self.q(state).gather(1, action)
        with torch.no_grad():
            best = self.target(next_state).max(1, keepdim=True)[0]
            goal = reward + self.gamma * FACTOR * best
        F.mse_loss(q, goal).backward()
"""
MEMORY = """
class Memory:
    def __init__(self, size):
        self.rows = deque(maxlen=size)
    def push(self, *row):
        self.rows.append(Transition(*row))
    def sample(self, n):
        return map(torch.tensor, zip(*random.sample(self.rows, n)))
"""
ARRAYS = """
class Memory:
    def push(self, state, action, reward, next_state, done):
        self.state[self.ptr] = state
        self.reward[self.ptr] = reward
        self.not_done[self.ptr] = VALUE
    def sample(self, n):
        i = np.random.randint(0, self.size, n)
        return (torch.tensor(self.state[i]), torch.tensor(self.action[i]), torch.tensor(self.reward[i]),
                torch.tensor(self.next_state[i]), torch.tensor(self.not_done[i]))
"""


def replay(store: str, factor: str, memory: str = MEMORY) -> str:
    """Return a program that stores a flag and reads it."""
    return REPLAY_LOOP.replace("STORE", store) + LEARN.replace("FACTOR", factor) + memory


NEGATED_TWICE = {
    "a mask that is stored and negated": replay(
        "mask = 1 - done\n        memory.push(state, action, reward, next_state, mask)", "(1 - mask)"
    ),
    "a flag that is negated when it is stored": replay(
        "memory.push(state, action, reward, next_state, float(not done))", "(1.0 - mask.float())"
    ),
    "arrays of the memory": replay(
        "memory.push(state, action, reward, next_state, done)", "(1 - mask)", ARRAYS.replace("VALUE", "1.0 - done")
    ),
    "a flag that is stored and taken for a mask": replay(
        "memory.push(state, action, reward, next_state, done)", "mask"
    ),
}
NEGATED_ONCE = {
    "a mask": replay("memory.push(state, action, reward, next_state, 1 - done)", "mask"),
    "a flag": replay("memory.push(state, action, reward, next_state, done)", "(1 - mask)"),
    "negated where the batch is drawn": replay(
        "memory.push(state, action, reward, next_state, done)",
        "mask",
        MEMORY.replace(
            "return map(torch.tensor, zip(*random.sample(self.rows, n)))",
            "s, a, r, s2, d = map(torch.tensor, zip(*random.sample(self.rows, n)))\n        return s, a, r, s2, 1 - d",
        ),
    ),
    "negated back where the batch is drawn": replay(
        "memory.push(state, action, reward, next_state, not done)",
        "(1 - mask)",
        MEMORY.replace(
            "return map(torch.tensor, zip(*random.sample(self.rows, n)))",
            "s, a, r, s2, m = map(torch.tensor, zip(*random.sample(self.rows, n)))\n        return s, a, r, s2, ~m",
        ),
    ),
    "negated three times": replay(
        "memory.push(state, action, reward, next_state, done)",
        "mask",
        ARRAYS.replace("VALUE", "1.0 - done"),
    ),
    "stored inverted by the caller and by the memory": replay(
        "memory.push(state, action, reward, next_state, not done)",
        "(1 - mask)",
        ARRAYS.replace("VALUE", "1.0 - done"),
    ),
    "a mask of actions": replay("memory.push(state, action, reward, next_state, done)", "(1 - done) * action_mask"),
}


@pytest.mark.parametrize("script", NEGATED_TWICE.values(), ids=NEGATED_TWICE.keys())
def test_lint_reports_flags_that_are_negated_twice_or_never(lint_reports, script):
    lines = script.splitlines()
    number = next(i for i, each in enumerate(lines) if "goal = reward" in each)
    lines[number] += "  # <- LOS022"
    lint_reports("\n".join(["import numpy as np\nimport torch\nimport torch.nn.functional as F", *lines]))


@pytest.mark.parametrize("script", NEGATED_ONCE.values(), ids=NEGATED_ONCE.keys())
def test_lint_accepts_flags_that_are_negated_once(lint_is_clean, script):
    lint_is_clean("import numpy as np\nimport torch\nimport torch.nn.functional as F\n" + script)
