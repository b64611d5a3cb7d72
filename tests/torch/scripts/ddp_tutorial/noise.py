"""Inputs at random, and what a line makes of them."""

import torch
from torch.utils.data import Dataset


class Noise(Dataset):
    def __init__(self, size):
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(size, 20, generator=generator)
        self.targets = self.inputs @ torch.linspace(-0.5, 0.5, 20).unsqueeze(1)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]
