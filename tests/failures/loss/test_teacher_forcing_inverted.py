"""LOS056: teacher forcing that gives the decoder its own prediction."""

import pytest

START = """
import random
import torch
from torch import nn

class Decoder(nn.Module):
    def forward(self, h, trg, teacher_forcing_ratio=0.5, sampling_prob=0.1):
        token = trg[:, 0]
        steps = []
        for t in range(1, trg.shape[1]):
            h = self.cell(self.embed(token), h)
            logits = self.out(h)
            steps.append(logits)
"""


def _model(*lines):
    return START + "".join(f"            {line}\n" for line in lines) + "        return torch.stack(steps, 1)\n"


FAULTY = {
    "a conditional expression": _model(
        "token = logits.argmax(1) if random.random() < teacher_forcing_ratio else trg[:, t]  # <- LOS056"
    ),
    "an if": _model(
        "top1 = logits.max(1)[1]",
        "if random.random() < teacher_forcing_ratio:  # <- LOS056",
        "    token = top1",
        "else:",
        "    token = trg[:, t]",
    ),
    "greater": _model(
        "if torch.rand(1).item() > teacher_forcing_ratio:  # <- LOS056",
        "    token = trg[:, t]",
        "else:",
        "    _, token = logits.topk(1)",
        "    token = token.squeeze(1)",
    ),
    "where": _model(
        "mask = torch.rand(len(h)) < teacher_forcing_ratio",
        "token = torch.where(mask, logits.argmax(-1), trg[:, t])  # <- LOS056",
    ),
    "a mask": _model(
        "own = logits.softmax(-1).multinomial(1)[:, 0]",
        "mask = (torch.rand(len(h)) < teacher_forcing_ratio).long()",
        "token = mask * own + (1 - mask) * trg[:, t]  # <- LOS056",
    ),
    "not": _model(
        "use_tf = random.random() < teacher_forcing_ratio",
        "token = trg[:, t] if not use_tf else logits.argmax(1)  # <- LOS056",
    ),
    "replaced later": _model(
        "token = trg[:, t]",
        "if self.training and random.random() < teacher_forcing_ratio:  # <- LOS056",
        "    token = logits.argmax(1)",
    ),
    "the tutorial": """
import random
import torch

def train(target_tensor, decoder, decoder_input, decoder_hidden, criterion, tf_ratio=0.5):
    loss = 0
    use_teacher_forcing = True if random.random() < tf_ratio else False
    if use_teacher_forcing:  # <- LOS056
        for di in range(len(target_tensor)):
            decoder_output, decoder_hidden = decoder(decoder_input, decoder_hidden)
            topv, topi = decoder_output.topk(1)
            decoder_input = topi.squeeze().detach()
            loss += criterion(decoder_output, target_tensor[di])
    else:
        for di in range(len(target_tensor)):
            decoder_output, decoder_hidden = decoder(decoder_input, decoder_hidden)
            loss += criterion(decoder_output, target_tensor[di])
            decoder_input = target_tensor[di]
    loss.backward()
""",
    "a forecast": """
import numpy as np
import torch
from torch import nn

class Forecaster(nn.Module):
    def forward(self, x, y, tf_prob):
        state, step, found = None, x[:, -1:], []
        for i in range(y.size(1)):
            hidden, state = self.lstm(step, state)
            value = self.head(hidden)
            found.append(value)
            if np.random.rand() <= tf_prob:  # <- LOS056
                step = value
            else:
                step = y[:, i : i + 1]
        return torch.cat(found, 1)
""",
    "a function": """
import random
import torch

def next_token(prediction, correct, teacher_forcing):
    if random.random() < 1 - teacher_forcing:  # <- LOS056
        return correct[:, 0]
    return prediction.argmax(-1)
""",
    "a setting": _model(
        "if self.teacher_forcing:  # <- LOS056",
        "    token = logits.argmax(1)",
        "else:",
        "    token = trg[:, t]",
    ),
}
CORRECT = {
    "a conditional expression": _model(
        "token = trg[:, t] if random.random() < teacher_forcing_ratio else logits.argmax(1)"
    ),
    "both exchanged": _model("token = logits.argmax(1) if random.random() > teacher_forcing_ratio else trg[:, t]"),
    "a complement": _model("token = logits.argmax(1) if random.random() < 1 - teacher_forcing_ratio else trg[:, t]"),
    "scheduled sampling": _model("token = logits.argmax(1) if random.random() < sampling_prob else trg[:, t]"),
    "where": _model(
        "mask = torch.rand(len(h)) < teacher_forcing_ratio",
        "token = torch.where(mask, trg[:, t], logits.argmax(-1))",
    ),
    "a mask": _model(
        "mask = (torch.rand(len(h)) < teacher_forcing_ratio).long()",
        "token = mask * trg[:, t] + (1 - mask) * logits.argmax(1)",
    ),
    "not": _model(
        "use_tf = random.random() < teacher_forcing_ratio",
        "token = logits.argmax(1) if not use_tf else trg[:, t]",
    ),
    "the first step": _model(
        "token = trg[:, t] if t == 1 or random.random() < teacher_forcing_ratio else logits.argmax(1)"
    ),
    "replaced later": _model(
        "token = logits.argmax(1)",
        "if self.training and random.random() < teacher_forcing_ratio:",
        "    token = trg[:, t]",
    ),
    "two ways to decode": """
import random
import torch
from torch import nn

class Decoder(nn.Module):
    def forward(self, x, trg, teacher_forcing_ratio=0.5):
        h = self.encode(x)
        if random.random() < teacher_forcing_ratio:
            out = self.decode_all(h, trg)
        else:
            out = self.greedy(trg[:, 0])
        return out
""",
    "an inner function": """
import random
import torch
from torch import nn

class Decoder(nn.Module):
    def forward(self, inputs, hidden, teacher_forcing_ratio=0):
        inputs, length = self._validate(inputs, hidden)
        use_teacher_forcing = True if random.random() < teacher_forcing_ratio else False
        steps = []

        def decode(step):
            steps.append(step)
            return steps[-1].topk(1)[1]

        if use_teacher_forcing:
            decoder_input = inputs[:, :-1]
            scores, hidden = self.forward_step(decoder_input, hidden)
            for i in range(scores.size(1)):
                decode(scores[:, i])
        else:
            decoder_input = inputs[:, 0].unsqueeze(1)
            for i in range(length):
                scores, hidden = self.forward_step(decoder_input, hidden)
                symbols = decode(scores.squeeze(1))
                decoder_input = symbols
        return steps
""",
    "one-hot targets": _model(
        "token = trg[:, t].argmax(-1) if random.random() < teacher_forcing_ratio else logits.argmax(1)"
    ),
    "a distilled teacher": """
import torch
def loss(teacher_logits, labels, use_teacher, student_out):
    target = teacher_logits.argmax(1) if use_teacher else labels
    loss = torch.nn.functional.cross_entropy(student_out, target)
    return loss
""",
    "an evaluation without teacher forcing": _model(
        "token = trg[:, t] if self.training or teacher_forcing_ratio == 1 else logits.argmax(1)"
    ),
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_exchanged_branches(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_teacher_forcing_and_scheduled_sampling(lint_is_clean, script):
    lint_is_clean(script, "LOS056")
