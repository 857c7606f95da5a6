"""Fine-tunes a small encoder for sentence classification, in the way of the run_glue examples."""

import argparse

import torch
from evaluation import evaluate
from model import SentenceClassifier
from torch.optim.lr_scheduler import LambdaLR

from data import build_dataloaders


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--per_device_train_batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=3e-3)
    parser.add_argument("--weight_decay", type=float, default=0.01)
    parser.add_argument("--num_train_epochs", type=int, default=3)
    parser.add_argument("--num_warmup_steps", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def get_linear_schedule_with_warmup(optimizer, warmup, total):
    def lr_lambda(step):
        if step < warmup:
            return (step + 1) / (warmup + 1)
        return max(0.0, (total - step) / max(1, total - warmup))

    return LambdaLR(optimizer, lr_lambda)


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    train_dataloader, eval_dataloader = build_dataloaders(args.per_device_train_batch_size)
    model = SentenceClassifier(vocab_size=40, num_labels=2)
    no_decay = ["bias", "norm"]
    grouped = [
        {
            "params": [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)],
            "weight_decay": args.weight_decay,
        },
        {"params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(grouped, lr=args.learning_rate)
    total = args.num_train_epochs * len(train_dataloader)
    lr_scheduler = get_linear_schedule_with_warmup(optimizer, args.num_warmup_steps, total)
    for epoch in range(args.num_train_epochs):
        model.train()
        for batch in train_dataloader:
            outputs = model(**batch)
            loss = outputs["loss"]
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        print(f"epoch {epoch}: {evaluate(model, eval_dataloader)}")


if __name__ == "__main__":
    main()
