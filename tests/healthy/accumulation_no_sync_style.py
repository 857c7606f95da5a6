"""Train in nanoGPT style: get_batch samples micro-batches, the loss is scaled, and a scaler exists from the start."""

import math

import torch
from torch import nn
from torch.nn import functional as F

# -----------------------------------------------------------------------------
batch_size = 8
block_size = 16
gradient_accumulation_steps = 3
learning_rate = 3e-3
max_iters = 20
warmup_iters = 5
lr_decay_iters = 20
min_lr = 3e-4
eval_interval = 10
eval_iters = 3
grad_clip = 1.0
# -----------------------------------------------------------------------------
torch.manual_seed(1337)
text = "the quick brown fox jumps over the lazy dog. " * 60
stoi = {c: i for i, c in enumerate(sorted(set(text)))}
data = torch.tensor([stoi[c] for c in text])
train_data, val_data = data[: int(0.9 * len(data))], data[int(0.9 * len(data)) :]


def get_batch(split):
    d = train_data if split == "train" else val_data
    ix = torch.randint(len(d) - block_size - 1, (batch_size,))
    x = torch.stack([d[i : i + block_size] for i in ix])
    y = torch.stack([d[i + 1 : i + 1 + block_size] for i in ix])
    return x, y


class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n), nn.LayerNorm(n)
        self.attn = nn.Linear(n, 3 * n, bias=False)
        self.proj = nn.Linear(n, n, bias=False)
        self.mlp = nn.Sequential(nn.Linear(n, 4 * n), nn.GELU(), nn.Linear(4 * n, n), nn.Dropout(0.1))

    def forward(self, x):
        q, k, v = (t.unsqueeze(1) for t in self.attn(self.ln_1(x)).chunk(3, dim=-1))
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocab, n=32):
        super().__init__()
        self.wte = nn.Embedding(vocab, n)
        self.wpe = nn.Embedding(block_size, n)
        self.h = nn.ModuleList([Block(n) for _ in range(2)])
        self.ln_f = nn.LayerNorm(n)
        self.lm_head = nn.Linear(n, vocab, bias=False)
        self.wte.weight = self.lm_head.weight  # weight tying

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for block in self.h:
            x = block(x)
        x = self.ln_f(x)
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / (lr_decay_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ["train", "val"]:
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            X, Y = get_batch(split)
            logits, loss = model(X, Y)
            losses[k] = loss.item()
        out[split] = losses.mean()
    model.train()
    return out


model = GPT(len(stoi))
scaler = torch.amp.GradScaler("cpu", enabled=False)
decay = [p for p in model.parameters() if p.dim() >= 2]
nodecay = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": nodecay, "weight_decay": 0.0}],
    lr=learning_rate,
    betas=(0.9, 0.95),
)
X, Y = get_batch("train")
for iter_num in range(max_iters):
    lr = get_lr(iter_num)
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr
    if iter_num % eval_interval == 0:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.9f}, val loss {losses['val']:.9f}")
    for micro_step in range(gradient_accumulation_steps):
        logits, loss = model(X, Y)
        loss = loss / gradient_accumulation_steps
        X, Y = get_batch("train")
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
print(loss.item() * gradient_accumulation_steps)
