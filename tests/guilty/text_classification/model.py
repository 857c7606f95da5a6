"""A small transformer encoder with a classification head."""

import torch
import torch.nn as nn


class SentenceClassifier(nn.Module):
    def __init__(self, vocab_size, num_labels, dim=32, layers=2, dropout=0.1):
        super().__init__()
        self.embeddings = nn.Embedding(vocab_size, dim, padding_idx=0)
        self.position = nn.Embedding(16, dim)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, 64, dropout=dropout, batch_first=True) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(dim)
        self.classifier = nn.Linear(dim, num_labels)
        self.loss_fct = nn.CrossEntropyLoss()

    def forward(self, input_ids, attention_mask, labels=None):
        h = self.dropout(self.embeddings(input_ids) + self.position(torch.arange(input_ids.size(1))))
        for layer in self.layers:
            h = layer(h, src_key_padding_mask=attention_mask == 0)
        mask = attention_mask.unsqueeze(-1).float()
        logits = self.classifier(self.norm((h * mask).sum(1) / mask.sum(1)))
        return {"logits": logits, "loss": None if labels is None else self.loss_fct(logits, labels)}
