"""A recurrent network that guesses the next word."""

from torch import nn


class Recurrent(nn.Module):
    def __init__(self, words, width, dropout):
        super().__init__()
        self.width = width
        self.dropout = nn.Dropout(dropout)
        self.meaning = nn.Embedding(words, width)
        self.cells = nn.LSTM(width, width, num_layers=2, dropout=dropout)
        self.guess = nn.Linear(width, words)

    def forward(self, words, hidden):
        seen, hidden = self.cells(self.dropout(self.meaning(words)), hidden)
        return self.guess(self.dropout(seen)).flatten(0, 1).log_softmax(1), hidden

    def first_hidden(self, batch):
        nothing = next(self.parameters()).new_zeros(2, batch, self.width)
        return nothing, nothing
