"""Networks with exactly known logits."""

import threading

import numpy as np
import torch

from triptych.vocab import Modality, Vocabulary

VOCABULARY = Vocabulary(text=40, image=30, audio=20)
TEXT, IMAGE, AUDIO = Modality


class Fake:
    """A network whose logits are a function of (context, position, modality). It records its inputs."""

    vocabulary = VOCABULARY

    def __init__(self, logits_of):
        self.lock = threading.Lock()
        self.logits_of, self.seen, self.positions, self.rows, self.contexts = logits_of, [], [], [], []

    def hidden_states(self, tokens, positions, *, query_idx):
        self.seen.append(tokens.clone())
        self.positions.append(positions.clone())
        with self.lock:  # several threads may call it at once
            first = len(self.contexts)
            self.contexts += [tuple(row) for row in tokens.tolist()]
        which = torch.arange(first, first + len(tokens))[:, None].expand_as(tokens)
        return torch.stack([which, positions], dim=-1).double().flatten(0, 1)[query_idx]

    def logits(self, hidden, modality, *, out=None):
        self.rows.append(len(hidden))
        rows = [self.logits_of(self.contexts[int(row)], int(position), modality) for row, position in hidden.tolist()]
        return torch.from_numpy(np.array(rows))

    @property
    def num_passes(self):
        return len(self.seen)


def arbitrary(context, position, modality):
    """Logits that depend on every token of the context."""
    return np.random.default_rng([*context, position]).normal(size=VOCABULARY.num_logits(modality)) * 2


def flat(context, position, modality):
    return np.zeros(VOCABULARY.num_logits(modality))


def ids_of(canvases):
    return [[span.ids.tolist() for span in canvas.spans] for canvas in canvases]
