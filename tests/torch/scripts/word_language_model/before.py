"""Learns which word follows which: truncated backpropagation, clipping by norm, a step written by hand."""

import argparse

import torch
from corpus import WORDS, Corpus
from network import Recurrent
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=20)
parser.add_argument("--length", type=int, default=15)
parser.add_argument("--lr", type=float, default=5.0)
parser.add_argument("--clip", type=float, default=0.25)
parser.add_argument("--dropout", type=float, default=0.2)
parser.add_argument("--save", default="model.pt")
args = parser.parse_args()
torch.manual_seed(1)


def columns(words, count):
    """As many columns of words that follow each other: the model takes them for unrelated texts."""
    rows = len(words) // count
    return words[: rows * count].view(count, rows).t().contiguous()


corpus = Corpus()
train_words = columns(corpus.train, args.batch_size)
valid_words = columns(corpus.valid, 10)
test_words = columns(corpus.test, 10)
model = Recurrent(WORDS, 32, args.dropout)
criterion = nn.NLLLoss()
lr = args.lr


def pieces(words):
    """Words and those that follow them, `args.length` rows at a time."""
    for start in range(0, len(words) - 1, args.length):
        stop = min(start + args.length, len(words) - 1)
        yield words[start:stop], words[start + 1 : stop + 1].flatten()


def evaluate(words):
    model.eval()
    total, hidden = 0.0, model.first_hidden(10)
    with torch.no_grad():
        for inputs, targets in pieces(words):
            output, hidden = model(inputs, hidden)
            total += len(inputs) * criterion(output, targets).item()
    return total / (len(words) - 1)


def train():
    model.train()
    hidden = model.first_hidden(args.batch_size)
    for inputs, targets in pieces(train_words):
        model.zero_grad()
        output, hidden = model(inputs, tuple(part.detach() for part in hidden))
        loss = criterion(output, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
        print(f"loss {loss.item()}")


best = None
for epoch in range(args.epochs):
    train()
    found = evaluate(valid_words)
    print(f"epoch {epoch} valid {found}")
    if best is None or found < best:
        best = found
        torch.save(model, args.save)
    else:
        lr /= 4
with torch.serialization.safe_globals([Recurrent, nn.Dropout, nn.Embedding, nn.LSTM, nn.Linear]):
    model = torch.load(args.save)
model.cells.flatten_parameters()
print(f"test {evaluate(test_words)}")
