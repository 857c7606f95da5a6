"""DAT041: the next state that is never taken over."""

import pytest

HEAD = "import torch\n"
FAULTY = {
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
}
CORRECT = {
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
