"""Sentences of a made-up language: after each word come three others, as likely as each other."""

import torch

WORDS = 60
SENTENCES = {"train": 720, "valid": 40, "test": 40}


class Corpus:
    """Words as numbers, one sentence after the other."""

    def __init__(self):
        generator = torch.Generator().manual_seed(2)
        self.train, self.valid, self.test = (
            self._sentences(count, generator) for count in SENTENCES.values()
        )

    def _sentences(self, count, generator, length=10):
        words = torch.empty(count, length, dtype=torch.int64)
        words[:, 0] = torch.randint(WORDS, (count,), generator=generator)
        for place in range(1, length):
            choice = torch.randint(3, (count,), generator=generator)
            words[:, place] = (7 * words[:, place - 1] + choice) % WORDS
        return words.flatten()
