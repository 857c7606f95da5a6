"""DAT041: the next state that is never taken over."""

import pytest

HEAD = "import torch\n"
FAULTY = {
    "a reset at the end of each episode only": """
def collect(env, policy, steps):
    state = torch.as_tensor(env.reset())
    for t in range(steps):
        action = policy(state)
        next_state, reward, done, _ = env.step(action)  # <- DAT041
        if done:
            state = env.reset()
            state = torch.as_tensor(state)
""",
    "a reset of Gymnasium in a loop of steps": """
obs, info = env.reset()
for t in range(10000):
    action = act(torch.as_tensor(obs))
    next_obs, reward, terminated, truncated, info = env.step(action)  # <- DAT041
    memory.push(obs, action, reward, next_obs, terminated)
    if terminated or truncated:
        obs, info = env.reset()
""",
    "an evaluation in a class, the state from before": """
class Trainer:
    def evaluate(self):
        eval_state = None
        for episode in range(10):
            if eval_state is None:
                eval_state = self.env.reset()
            for t in range(100):
                if eval_state is not None:
                    action = self.actor(torch.tensor(eval_state))
                    new_state, reward, over, success = self.env.step(action)  # <- DAT041
                    if over:
                        eval_state = self.env.reset()
""",
    "reset before the episodes only": """
state = env.reset()
for episode in range(100):  # <- DAT041
    done = False
    while not done:
        action = act(torch.as_tensor(state))
        state, reward, done, info = env.step(action)
""",
    "reset once, episodes that break": """
def run(env, policy, episodes):
    obs, info = env.reset(seed=0)
    for _ in range(episodes):  # <- DAT041
        for t in range(500):
            obs, reward, terminated, truncated, info = env.step(policy(torch.tensor(obs)))
            if terminated or truncated:
                break
""",
    "a class, a limit of steps": """
class Agent:
    def train(self, episodes):
        for _ in range(episodes):
            obs, _ = self.env.reset()
            for t in range(200):
                action = self.act(torch.as_tensor(obs))
                new_obs, reward, terminated, truncated, _ = self.env.step(action)  # <- DAT041
                self.buffer.push(obs, action, reward, new_obs, terminated)
                if terminated or truncated:
                    break
""",
    "the old state twice": """
def collect(env, memory, state=None):
    state = env.reset()
    for t in range(100):
        action = env.action_space.sample()
        old = state
        state, reward, done, _ = env.step(action)
        memory.append((old, action, reward, old))  # <- DAT041
        state = env.reset() if done else state
""",
    "the new state twice, as tensors": """
def collect(env, policy, memory):
    s = env.reset()
    while True:
        a = policy(torch.tensor(s))
        s, r, done, _ = env.step(a.item())
        memory.push(torch.tensor(s), a, torch.tensor([r]), torch.tensor(s), done)  # <- DAT041
        if done:
            s = env.reset()
""",
    "a named tuple, a copy of the same state": """
class Agent:
    def collect(self, steps):
        obs, _ = self.env.reset()
        for _ in range(steps):
            action = self.act(obs)
            obs, reward, terminated, truncated, _ = self.env.step(action)
            next_obs = obs.copy()
            self.buffer.append(Transition(obs=obs, action=action, reward=reward, next_obs=next_obs))  # <- DAT041
""",
    "the state before the step twice": """
def collect(env, policy, memory):
    state = env.reset()
    for t in range(100):
        action = policy(state)
        following, reward, done, _ = env.step(action)
        row = (state, action, reward, state, done)  # <- DAT041
        memory.append(row)
        state = following
""",
    "a list of each part": """
def collect(env, policy):
    states, next_states = [], []
    state = env.reset()
    for t in range(100):
        state, reward, done, _ = env.step(policy(state))
        states.append(state)
        next_states.append(state)  # <- DAT041
""",
    "rows of arrays": """
def collect(env, policy, self):
    obs = env.reset()
    for t in range(100):
        following, reward, done, _ = env.step(policy(obs))
        self.obs_buf[t] = obs
        self.next_obs_buf[t] = obs  # <- DAT041
        obs = following
""",
}
CORRECT = {
    "the next state unless the episode is over": """
obs, info = env.reset()
for t in range(10000):
    action = act(torch.as_tensor(obs))
    next_obs, reward, terminated, truncated, info = env.step(action)
    memory.push(obs, action, reward, next_obs, terminated)
    obs = next_obs
    if terminated or truncated:
        obs, info = env.reset()
""",
    "the next state in the other arm": """
state = env.reset()
for t in range(10000):
    action = act(torch.as_tensor(state))
    next_state, reward, done, info = env.step(action)
    memory.push(state, action, reward, next_state, done)
    if not done:
        state = next_state
    else:
        state = env.reset()
""",
    "episodes of one step": """
state = env.reset()
for t in range(10000):
    action = act(torch.as_tensor(state))
    _, reward, done, info = env.step(action)
    memory.push(state, action, reward)
    state = env.reset()
""",
    "the step after a reset": """
state = env.reset()
for t in range(10000):
    action = act(torch.as_tensor(state))
    next_state, reward, done, info = env.step(action)
    if done:
        next_state = env.reset()
    state = next_state
""",
    "the action is chosen for the next state": """
first = env.reset()
action = act(torch.as_tensor(first))
while len(rows) < 100:
    observation, reward, done, info = env.step(action)
    rows.append(observation)
    action = act(torch.as_tensor(observation))
    print(len(first))
""",
    "reset at the end of each episode": """
state = env.reset()
for episode in range(100):
    done = False
    while not done:
        state, reward, done, info = env.step(act(torch.as_tensor(state)))
    state = env.reset()
""",
    "reset by another function": """
state = env.reset()
for episode in range(100):
    state, done = begin(env), False
    while not done:
        state, reward, done, info = env.step(act(torch.as_tensor(state)))
""",
    "steps in windows, reset when done": """
state = env.reset()
for update in range(100):
    for t in range(64):
        state, reward, done, info = env.step(act(torch.as_tensor(state)))
        if done:
            state = env.reset()
""",
    "an environment that starts again by itself": """
envs = SyncVectorEnv(makers)
obs, _ = envs.reset()
for update in range(100):
    for t in range(64):
        obs, reward, done, truncated, info = envs.step(act(torch.as_tensor(obs)))
""",
    "both states": """
def collect(env, memory):
    state = env.reset()
    for t in range(100):
        action = env.action_space.sample()
        old = state
        state, reward, done, _ = env.step(action)
        memory.append((old, action, reward, state))
        state = env.reset() if done else state
""",
    "both states in lists": """
def collect(env, policy):
    states, next_states = [], []
    state = env.reset()
    for t in range(100):
        states.append(state)
        state, reward, done, _ = env.step(policy(state))
        next_states.append(state)
""",
    "a copy before the step": """
def collect(env, policy, memory):
    state = env.reset()
    for t in range(100):
        old = state.copy()
        state, reward, done, _ = env.step(action := policy(state))
        memory.push(old, action, reward, state.copy(), done)
""",
    "the end of an episode": """
def collect(env, policy, memory):
    state = env.reset()
    for t in range(100):
        action = policy(state)
        following, reward, done, _ = env.step(action)
        if done:
            memory.push(state, action, reward, state, done)
        else:
            memory.push(state, action, reward, following, done)
        state = following
""",
    "no next state": """
def collect(env, policy, memory):
    state = env.reset()
    for t in range(100):
        action = policy(state)
        following, reward, done, _ = env.step(action)
        memory.push(state, action, reward, policy.value(state), done)
        print(state, action, reward, state)
        state = following
""",
    "parts of a state": """
def collect(env, policy, memory):
    state = env.reset()
    for t in range(100):
        action = policy(state)
        state, reward, done, _ = env.step(action)
        memory.push((state[0], action, reward, state[1]))
""",
    "taken over": """
def run(env, policy):
    state = env.reset()
    done = False
    while not done:
        following, reward, done, _ = env.step(policy(state))
        state = following
""",
    "the same name": """
def run(env, policy):
    state = env.reset()
    for t in range(10):
        state, reward, done, _ = env.step(policy(state))
""",
    "copied": """
def run(env, policy):
    state = env.reset()
    for t in range(10):
        following, reward, done, _ = env.step(policy(state))
        state[:] = following
""",
    "an optimizer": """
def run(optimizer, model, x):
    for t in range(10):
        loss, steps = optimizer.step(lambda: model(x).sum())
""",
    "only the first state is needed": """
def run(env, plan):
    state = env.reset()
    actions = plan(state)
    for action in actions:
        following, reward, done, _ = env.step(action)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_missing_assignment(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_loops_that_go_on(lint_is_clean, script):
    lint_is_clean(HEAD + script, "DAT041")
