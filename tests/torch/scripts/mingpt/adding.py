"""Sums of two numbers of two digits, one digit after the other; what is learned is the sum, reversed."""

import argparse

import torch
from torch.utils.data import Dataset


class Sums(Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        one, other = divmod(index, 100)
        digits = torch.tensor([int(digit) for digit in f"{one:02}{other:02}" + f"{one + other:03}"[::-1]])
        targets = digits[1:].clone()
        targets[:3] = -1  # what is asked has not to be learned
        return digits[:-1], targets


def config():
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-iters", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--grad-norm-clip", type=float, default=1.0)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--save", default="model.pt")
    return parser.parse_args()
