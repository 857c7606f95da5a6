"""A translator from digits to words with attention and teacher forcing; the running loss keeps more than a number."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim

SOS_token, EOS_token, MAX_LENGTH = 0, 1, 6
hidden_size, vocab = 24, 14
random.seed(0)
torch.manual_seed(0)


class EncoderRNN(nn.Module):
    def __init__(self, input_size, hidden_size, dropout_p=0.1):
        super().__init__()
        self.embedding = nn.Embedding(input_size, hidden_size)
        self.gru = nn.GRU(hidden_size, hidden_size, batch_first=True)
        self.dropout = nn.Dropout(dropout_p)

    def forward(self, input):
        return self.gru(self.dropout(self.embedding(input)))


class BahdanauAttention(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.Wa, self.Ua, self.Va = (
            nn.Linear(hidden_size, hidden_size),
            nn.Linear(hidden_size, hidden_size),
            nn.Linear(hidden_size, 1),
        )

    def forward(self, query, keys):
        scores = self.Va(torch.tanh(self.Wa(query) + self.Ua(keys)))
        weights = F.softmax(scores.squeeze(2).unsqueeze(1), dim=-1)
        return torch.bmm(weights, keys), weights


class AttnDecoderRNN(nn.Module):
    def __init__(self, hidden_size, output_size):
        super().__init__()
        self.embedding = nn.Embedding(output_size, hidden_size)
        self.attention = BahdanauAttention(hidden_size)
        self.gru = nn.GRU(2 * hidden_size, hidden_size, batch_first=True)
        self.out = nn.Linear(hidden_size, output_size)

    def forward(self, encoder_outputs, hidden, target):
        decoder_input = torch.full((encoder_outputs.size(0), 1), SOS_token)
        outputs = []
        for i in range(MAX_LENGTH):
            context, _ = self.attention(hidden.permute(1, 0, 2), encoder_outputs)
            step, hidden = self.gru(torch.cat((self.embedding(decoder_input), context), dim=2), hidden)
            outputs.append(self.out(step))
            decoder_input = target[:, i].unsqueeze(1)
        return F.log_softmax(torch.cat(outputs, dim=1), dim=-1)


def get_pairs(n, size):
    for _ in range(n):
        source = torch.randint(2, vocab, (size, MAX_LENGTH - 1))
        target = torch.cat([source.flip(1), torch.full((size, 1), EOS_token)], dim=1)
        yield source, target


def train_epoch(dataloader, encoder, decoder, encoder_optimizer, decoder_optimizer, criterion):
    total_loss, batches = 0, 0
    for input_tensor, target_tensor in dataloader:
        encoder_optimizer.zero_grad()
        decoder_optimizer.zero_grad()
        encoder_outputs, encoder_hidden = encoder(input_tensor)
        decoder_outputs = decoder(encoder_outputs, encoder_hidden, target_tensor)
        loss = criterion(decoder_outputs.view(-1, decoder_outputs.size(-1)), target_tensor.view(-1))
        loss.backward()
        encoder_optimizer.step()
        decoder_optimizer.step()
        total_loss += loss  # <- MEM001
        batches += 1
    return total_loss / batches


def train(n_epochs, learning_rate=5e-3, print_every=1):
    encoder, decoder = EncoderRNN(vocab, hidden_size), AttnDecoderRNN(hidden_size, vocab)
    encoder_optimizer = optim.Adam(encoder.parameters(), lr=learning_rate)
    decoder_optimizer = optim.Adam(decoder.parameters(), lr=learning_rate)
    criterion = nn.NLLLoss()
    history = []
    for epoch in range(1, n_epochs + 1):
        loss = train_epoch(get_pairs(80, 32), encoder, decoder, encoder_optimizer, decoder_optimizer, criterion)
        history.append(loss.item())
        if epoch % print_every == 0:
            print(f"{epoch} {history[-1]:.4f}")


train(2)
