"""MDL017: a view splits merged dimensions in the other order."""

import pytest

HEAD = """
import torch
import torch.nn as nn
import torch.nn.functional as F
"""

FAULTY = {
    "frames of a clip": """
class CNNLSTM(nn.Module):
    def forward(self, clips):
        b, t, c, h, w = clips.shape
        feats = self.cnn(clips.view(b * t, c, h, w))
        feats = feats.view(t, b, -1)  # <- MDL017
        out, _ = self.lstm(feats)
        return self.fc(out[-1])
""",
    "several statements": """
class Net(nn.Module):
    def forward(self, x):
        B = x.size(0)
        T = x.size(1)
        z = x.flatten(0, 1)
        z = F.relu(self.conv1(z))
        z = self.pool(z).flatten(1)
        z = torch.relu(self.fc(z))
        h, _ = self.rnn(z.reshape(T, B, self.dim))  # <- MDL017
        return h[-1]
""",
    "the rest of the shape": """
class Net(nn.Module):
    def forward(self, video):
        n, frames = video.shape[:2]
        x = video.reshape(-1, *video.shape[2:])
        x = self.backbone(x)
        x = x.reshape((frames, n, x.shape[-1]))  # <- MDL017
        return self.temporal(x)
""",
    "a function, the product in a variable": """
def encode(encoder, rnn, windows):
    batch, steps, features = windows.size()
    total = batch * steps
    codes = encoder(windows.view(total, features))
    codes = codes.view(steps, batch, 64)  # <- MDL017
    return rnn(codes)[0][-1]
""",
    "tokens": """
class Seq(nn.Module):
    def forward(self, tokens, lengths):
        bs, length = tokens.shape
        x = self.embedding(tokens.view(bs * length))
        x = self.proj(x.view(length, bs, self.width))  # <- MDL017
        return self.gru(x)[1][-1]
""",
    "sizes of a view": """
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(32, 32)

    def forward(self, x, batch_size, seq_len):
        x = x.view(batch_size, seq_len, -1)
        x = torch.relu(x)
        x = x.view(seq_len, batch_size, -1)  # <- MDL017
        return self.rnn(x)[0][-1]
""",
    "sizes in one statement": """
class Decoder(nn.Module):
    def forward(self, x):
        batch, frames = x.size(0), x.size(1)
        seq = x.view(frames, batch, self.in_dim)  # <- MDL017
        return self.lstm(seq)[0][-1]
""",
}

CORRECT = {
    "transposed after the view": """
class Net(nn.Module):
    def forward(self, clips):
        b, t, c, h, w = clips.shape
        feats = self.cnn(clips.view(b * t, c, h, w))
        feats = feats.view(b, t, -1).transpose(0, 1)
        return self.lstm(feats)[0][-1]
""",
    "transposed before, under the same name": """
class Net(nn.Module):
    def forward(self, clips):
        b, t, c, h, w = clips.shape
        clips = clips.transpose(0, 1).contiguous()
        feats = self.cnn(clips.view(b * t, c, h, w))
        return self.lstm(feats.view(t, b, -1))[0][-1]
""",
    "permuted before": """
class Net(nn.Module):
    def forward(self, clips):
        b, t, c, h, w = clips.shape
        feats = self.cnn(clips.permute(1, 0, 2, 3, 4).reshape(t * b, c, h, w))
        return self.lstm(feats.view(t, b, -1))[0][-1]
""",
    "steps joined by cat": """
class Net(nn.Module):
    def forward(self, x):
        b, t = x.shape[:2]
        outs = [self.cell(x[:, i]) for i in range(t)]
        y = torch.cat(outs)
        return y.view(t, b, -1)
""",
    "time first": """
class Net(nn.Module):
    def forward(self, x):
        t, b, d = x.shape
        y = self.fc(x.view(t * b, d))
        return y.view(t, b, -1)
""",
    "time first, the factors exchanged": """
class Net(nn.Module):
    def forward(self, x):
        t, b, d = x.shape
        y = self.fc(x.view(b * t, d))
        return y.view(t, b, -1)
""",
    "heads of an attention": """
class Net(nn.Module):
    def forward(self, query, heads):
        tgt, bsz, dim = query.size()
        q = self.q(query)
        q = q.contiguous().view(tgt, bsz * heads, dim // heads).transpose(0, 1)
        attn = torch.bmm(q, q.transpose(1, 2))
        out = torch.bmm(attn, q).transpose(0, 1).contiguous().view(tgt, bsz, dim)
        return out
""",
    "transposed under a condition": """
class Net(nn.Module):
    def forward(self, x):
        b, t, d = x.shape
        if self.time_first:
            x = x.transpose(0, 1)
        return x.reshape(t, b, d)
""",
    "outputs of a time-first layer": """
class Net(nn.Module):
    def forward(self, x):
        b, t, d = x.shape
        z = torch.randn(t, b, d)
        out, hidden = self.lstm(x.transpose(0, 1), z)
        return self.fc(out.reshape(t * b, -1)).view(t, b, -1)
""",
    "channels last": """
class Net(nn.Module):
    def forward(self, x):
        b, c, h, w = x.shape
        x = x.view(b, c, h * w).transpose(1, 2)
        return x.reshape(b, h, w, c)
""",
    "a layer that transposes": """
class Net(nn.Module):
    def forward(self, x):
        b, t, d = x.shape
        x = self.to_time_first(x)
        return self.fc(x.reshape(t, b, -1))
""",
    "back to the same order": """
class Net(nn.Module):
    def forward(self, tokens):
        b, n = tokens.shape
        x = self.embed(tokens)
        x = x.view(b * n, -1)
        x = x.view(b, n, -1)
        return x
""",
    "filled by time step": """
class Net(nn.Module):
    def forward(self, x):
        b, t, d = x.shape
        y = x.new_zeros(t, b, d)
        for i in range(t):
            y[i] = x[:, i]
        return y.view(t * b, d).view(t, b, d)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_views_in_the_other_order(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "MDL017")
