"""Three small PyTorch models, each with a batch and a loss function."""

from typing import NamedTuple

import torch
from torch import nn


class Training(NamedTuple):
    build: object
    batch: object
    loss_fn: object

    def train(self, optimizer, num_steps, device):
        """Train ``num_steps`` steps on the same batch, and return the last loss."""
        model = self.build().to(device)
        steps = optimizer(model.parameters())
        inputs, targets = (each.to(device) for each in self.batch())
        for _ in range(num_steps):
            steps.zero_grad()
            loss = self.loss_fn(model(inputs), targets)
            loss.backward()
            steps.step()
        return loss.item()


def mlp(batch, width, depth=4):
    def build():
        layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
        return nn.Sequential(*layers, nn.Linear(width, 10))

    return Training(build, lambda: (torch.randn(batch, width), torch.zeros(batch, dtype=torch.long)), _cross_entropy())


class Block(nn.Module):
    """Two convolutions with a shortcut, as in ResNet-18."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.first, self.norm_1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.second, self.norm_2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.short_cut = nn.Identity()
        if stride != 1 or before != after:
            self.short_cut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        y = self.norm_2(self.second(self.relu(self.norm_1(self.first(x)))))
        return self.relu(y + self.short_cut(x))


def resnet(batch, size, width=64):
    def build():
        stem = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
        blocks, before = [], width
        for i in range(8):
            after = width * 2 ** (i // 2)
            blocks.append(Block(before, after, 2 if i % 2 == 0 and i else 1))
            before = after
        return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))

    batch_of = lambda: (torch.randn(batch, 3, size, size), torch.zeros(batch, dtype=torch.long))  # noqa: E731
    return Training(build, batch_of, _cross_entropy())


class Transformer(nn.Module):
    def __init__(self, width, depth, words):
        super().__init__()
        self.words = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        return self.head(self.layers(self.words(tokens))).flatten(0, 1)


def transformer(batch, length, width=256, depth=4, words=1000):
    def batch_of():
        tokens = torch.zeros(batch, length, dtype=torch.long)
        return tokens, tokens.flatten()

    return Training(lambda: Transformer(width, depth, words), batch_of, _cross_entropy())


def _cross_entropy():
    return nn.CrossEntropyLoss()
