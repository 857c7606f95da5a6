"""A small GPT on characters: it reads Python's own manual, which comes with the standard library.

python language_model.py --epochs 2
python language_model.py --save ckpt.pt --stop-after 1 && python language_model.py --resume ckpt.pt
"""

import argparse
import math
import pydoc_data.topics

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    """Every stretch of `size` characters, and the same one character later."""

    def __init__(self, tokens, size):
        self.tokens, self.size = tokens, size

    def __len__(self):
        return (len(self.tokens) - 1) // self.size

    def __getitem__(self, i):
        chunk = self.tokens[i * self.size : (i + 1) * self.size + 1]
        return chunk[:-1], chunk[1:]


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        return x + F.dropout(self.mlp(self.ln2(x)), self.dropout, self.training)


class GPT(nn.Module):
    def __init__(self, vocab, size, width=64, layers=2, heads=4, dropout=0.1):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, width), nn.Embedding(size, width)
        self.blocks = nn.ModuleList([Block(width, heads, dropout) for _ in range(layers)])
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        for p in self.parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, idx):
        x = self.tok(idx) + self.pos(torch.arange(idx.shape[1], device=idx.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    loss = count = 0
    for x, y in loader:
        loss += F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum").item()
        count += y.numel()
    return loss / count


@torch.no_grad()
def sample(model, tokens, count, size):
    model.eval()
    for _ in range(count):
        logits = model(tokens[None, -size:])[0, -1]
        tokens = torch.cat([tokens, torch.multinomial(logits.softmax(0), 1)])
    return tokens


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--characters", type=int, default=240_000, help="how much of the text to use")
    parser.add_argument("--size", type=int, default=64, help="context, in characters")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=4, help="batches per update")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--half", action="store_true", help="float16 with a scaled loss (slow on a CPU)")
    parser.add_argument("--save", help="write a checkpoint after every epoch")
    parser.add_argument("--stop-after", type=int, help="end after this many epochs, as where a job's time is up")
    parser.add_argument("--resume", help="go on from a checkpoint")
    args = parser.parse_args()
    torch.manual_seed(0)

    text = "".join(pydoc_data.topics.topics.values())[: args.characters]
    letters = sorted(set(text))
    tokens = torch.tensor([letters.index(c) for c in text])
    cut = int(0.9 * len(tokens))
    train_loader = DataLoader(Windows(tokens[:cut], args.size), args.batch_size, shuffle=True)
    val_loader = DataLoader(Windows(tokens[cut:], args.size), 64)

    model = GPT(len(letters), args.size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    updates = args.epochs * math.ceil(len(train_loader) / args.accumulate)
    warmup = max(1, updates // 10)
    scheduler = SequentialLR(
        optimizer,
        [LinearLR(optimizer, 0.1, total_iters=warmup), CosineAnnealingLR(optimizer, updates - warmup, args.lr / 10)],
        milestones=[warmup],
    )
    scaler = torch.amp.GradScaler("cpu", enabled=args.half)
    first = 0
    if args.resume:
        checkpoint = torch.load(args.resume)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        scaler.load_state_dict(checkpoint["scaler"])
        first = checkpoint["epoch"]

    for epoch in range(first, args.epochs):
        model.train()
        running = 0.0
        for i, (x, y) in enumerate(train_loader):
            in_window = min(args.accumulate, len(train_loader) - i + i % args.accumulate)  # the last may be short
            with torch.autocast("cpu", torch.float16, enabled=args.half):
                loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            scaler.scale(loss / in_window).backward()
            running += loss.item()
            if (i + 1) % args.accumulate == 0:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                scheduler.step()
                optimizer.zero_grad(set_to_none=True)
            if (i + 1) % 50 == 0:
                print(f"epoch {epoch + 1}  batch {i + 1:3}  lr {scheduler.get_last_lr()[0]:.2e}  loss {loss:.3f}")
        val_loss = evaluate(model, val_loader)
        print(f"epoch {epoch + 1}  train loss {running / len(train_loader):.3f}  val loss {val_loss:.3f}")
        if args.save:
            states = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
            torch.save({name: it.state_dict() for name, it in states.items()} | {"epoch": epoch + 1}, args.save)
        if epoch + 1 == args.stop_after:
            return
    print("".join(letters[i] for i in sample(model, tokens[:8], 200, args.size)))


if __name__ == "__main__":
    main()
