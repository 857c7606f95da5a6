"""CKP017: two networks that are loaded from one file, or saved to it."""

import pytest

HEAD = """
import torch
from torch import nn

"""
FAULTY = {
    "own methods, one network is never saved": """
class Agent:
    def save(self):
        self.policy.save(self.folder + "/policy.pt")
        self.q_net1.save(self.folder + "/q.pt")
    def load(self, folder):
        self.policy.load(folder + "/policy.pt", self.device)
        self.q_net1.load(folder + "/q.pt", self.device)
        self.q_net2.load(folder + "/q.pt", self.device)  # <- CKP017
""",
    "two directions": """
class Cycle:
    def store(self, step):
        torch.save(self.G_AB.state_dict(), f"out/G_AB_{step}.pt")
        torch.save(self.G_BA.state_dict(), f"out/G_BA_{step}.pt")
    def restore(self, step):
        self.G_AB.load_state_dict(torch.load(f"out/G_AB_{step}.pt", weights_only=True))
        self.G_BA.load_state_dict(torch.load(f"out/G_AB_{step}.pt", weights_only=True))  # <- CKP017
""",
    "saved to one file": """
def store(critic_a, critic_b, folder):
    torch.save(critic_a.state_dict(), folder / "critic.pt")
    torch.save(critic_b.state_dict(), folder / "critic.pt")  # <- CKP017
""",
    "in functions": """
def save(net1, net2):
    torch.save(net1.state_dict(), "net1.pt")
    torch.save(net2.state_dict(), "net2.pt")
def load(net1, net2):
    net1.load_state_dict(torch.load("net2.pt"))
    net2.load_state_dict(torch.load("net2.pt"))  # <- CKP017
""",
}
CORRECT = {
    "a path that is set anew": """
path = "first.pt"
torch.save(sub1.state_dict(), path)
path = "second.pt"
torch.save(sub2.state_dict(), path)
""",
    "files of their own": """
def save(net1, net2):
    torch.save(net1.state_dict(), "net1.pt")
    torch.save(net2.state_dict(), "net2.pt")
def load(net1, net2):
    net1.load_state_dict(torch.load("net1.pt"))
    net2.load_state_dict(torch.load("net2.pt"))
""",
    "keys of their own": """
def save(net1, net2):
    torch.save({"one": net1.state_dict(), "two": net2.state_dict()}, "nets.pt")
def load(net1, net2):
    net1.load_state_dict(torch.load("nets.pt")["one"])
    net2.load_state_dict(torch.load("nets.pt")["two"])
""",
    "the same pretrained weights": """
def build(net1, net2):
    net1.load_state_dict(torch.load("pretrained.pt"))
    net2.load_state_dict(torch.load("pretrained.pt"))
def save(net1, net2):
    torch.save(net1.state_dict(), "net1.pt")
    torch.save(net2.state_dict(), "net2.pt")
""",
    "a target network": """
class Agent:
    def save(self, path):
        torch.save(self.critic.state_dict(), path + "/critic.pt")
    def load(self, path):
        self.critic.load_state_dict(torch.load(path + "/critic.pt"))
        self.critic_target.load_state_dict(torch.load(path + "/critic.pt"))
""",
    "one of two files": """
def save(net1, net2, best):
    if best:
        torch.save(net1.state_dict(), "net.pt")
    else:
        torch.save(net2.state_dict(), "net.pt")
""",
    "other objects": """
def store(fig1, fig2, log1, log2):
    fig1.save("figure1.png")
    fig2.save("figure2.png")
    log1.load("log.txt")
    log2.load("log.txt")
""",
}

FAULTY |= {
    "states of two players": """
def finish(epoch):
    save_checkpoint({"epoch": epoch, "state_dict": generator.state_dict(), "optimizer": opt_g.state_dict()},
                    f"epoch_{epoch}.pt", folder, "g_best.pt")
    save_checkpoint({"epoch": epoch, "state_dict": critic.state_dict(), "optimizer": opt_c.state_dict()},  # <- CKP017
                    f"epoch_{epoch}.pt", folder, "c_best.pt")
""",
    "encoder and decoder": """
for epoch in range(9):
    torch.save(encoder.state_dict(), "weights.pt")
    torch.save(decoder.state_dict(), "weights.pt")  # <- CKP017
""",
    "states under keys": """
def store(self):
    torch.save({"net": self.actor.state_dict()}, self.folder / "net.pt")
    torch.save({"net": self.critic.state_dict()}, self.folder / "net.pt")  # <- CKP017
""",
}
CORRECT |= {
    "one open file": """
with open("both.pt", "wb") as file:
    torch.save(encoder.state_dict(), file)
    torch.save(decoder.state_dict(), file)
""",
    "names of their own": """
def finish(epoch):
    save_checkpoint({"state_dict": generator.state_dict()}, f"g_{epoch}.pt")
    save_checkpoint({"state_dict": critic.state_dict()}, f"c_{epoch}.pt")
""",
    "one of two": """
if use_average:
    torch.save(average.state_dict(), "net.pt")
else:
    torch.save(net.state_dict(), "net.pt")
""",
    "the same network twice": """
torch.save(net.state_dict(), "last.pt")
train(net)
torch.save(net.state_dict(), "last.pt")
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_second_network(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "CKP017")


AGENT = """
import torch
from torch import nn

class Agent:
    def __init__(self):
        self.actor = nn.Linear(4, 2)
        self.critic_1 = nn.Linear(4, 1)
        self.critic_2 = nn.Linear(4, 1)
        self.optimizer = torch.optim.Adam([*self.critic_1.parameters(), *self.critic_2.parameters()])

    def save(self, path):
        torch.save(self.actor.state_dict(), path + "actor.pt")
        torch.save(self.critic_1.state_dict(), path + "critic_1.pt")
"""
MARKED = AGENT.replace('"critic_1.pt")', '"critic_1.pt")  # <- CKP017')
FORGOTTEN = {
    "states": MARKED,
    "a method of the network": MARKED.replace("torch.save(self.critic_1.state_dict(), path", "self.critic_1.save(path"),
    "letters": MARKED.replace("critic_1", "critic_A").replace("critic_2", "critic_B"),
    "a dictionary": MARKED.replace("self.critic_1.state_dict(),", '{"critic": self.critic_1.state_dict()},'),
}
SAVED_APART = {
    "both": AGENT + '        torch.save(self.critic_2.state_dict(), path + "critic_2.pt")\n',
    "only the actor": AGENT[: AGENT.rindex("        torch.save")],
    "a target": AGENT.replace("critic_2", "critic_1_target"),
    "all attributes": AGENT + "        torch.save(self.__dict__, path)\n",
    "not trained": AGENT.replace(", *self.critic_2.parameters()", ""),
    "another kind": AGENT.replace("self.critic_2 = nn.Linear(4, 1)", "self.critic_2 = Lookup(4)"),
}


@pytest.mark.parametrize("script", FORGOTTEN.values(), ids=FORGOTTEN)
def test_lint_reports_a_network_that_is_not_saved(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", SAVED_APART.values(), ids=SAVED_APART)
def test_lint_ignores_networks_that_need_not_be_saved(lint_is_clean, script):
    lint_is_clean(script, "CKP017")
