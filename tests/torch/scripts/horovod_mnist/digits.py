"""Images of 28x28 in ten classes, made up: ten patterns in noise."""

import torch
from torch.utils.data import Dataset


class Digits(Dataset):
    def __init__(self, count, seed):
        patterns = torch.rand(10, 1, 28, 28, generator=torch.Generator().manual_seed(3))
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(10, (count,), generator=generator)
        noise = torch.rand(count, 1, 28, 28, generator=generator)
        self.images = patterns[self.labels] + noise - 1

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]
