"""The example's models: a GPT-style transformer, a ResNet-style convolutional net and a wide language model.

Written as a user would have them, for `train.py` beside this file; nothing here knows about BucketLab. They
differ in what data parallelism makes of them: many matrices of one size, many small tensors with BatchNorm
buffers, and one last layer that is larger than any usual gradient bucket and is ready first.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Causal self-attention. Input and output: (batch, sequence, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, sequence, width = x.shape
        q, k, v = self.qkv(x).view(batch, sequence, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(batch, sequence, width)
        return self.out(mixed)  # type: ignore[no-any-return]


class Block(nn.Module):
    """A pre-norm transformer block. Input and output: (batch, sequence, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """GPT-style language model: token ids (batch, sequence) to logits (batch, sequence, vocab).

    With `tied`, the output layer shares the token embedding's weight. The first part of its gradient is then
    ready at once, and the rest last of all.
    """

    def __init__(self, *, vocab: int, sequence: int, width: int, heads: int, layers: int, tied: bool) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        self.position = nn.Embedding(sequence, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.apply(self._initialise)
        if tied:
            self.head.weight = self.token.weight

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(positions)
        return self.head(self.norm(self.blocks(x)))  # type: ignore[no-any-return]


class Residual(nn.Module):
    """Convolutions added to their input: two of 3x3, or with `bottleneck` 1x1, 3x3 and 1x1.

    Input: (N, C, H, W). Output: (N, C', H / stride, W / stride).
    """

    def __init__(self, channels_in: int, channels: int, *, stride: int, bottleneck: bool) -> None:
        super().__init__()
        if bottleneck:
            middle = channels // 4
            shape = [(channels_in, middle, 1, 1), (middle, middle, 3, stride), (middle, channels, 1, 1)]
        else:
            shape = [(channels_in, channels, 3, stride), (channels, channels, 3, 1)]
        layers: list[nn.Module] = []
        for inputs, outputs, kernel, step in shape:
            layers += [
                _convolution(inputs, outputs, kernel, step),
                nn.BatchNorm2d(outputs),
                nn.ReLU(inplace=True),
            ]
        self.residual = nn.Sequential(*layers[:-1])
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(_convolution(channels_in, channels, 1, stride), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.residual(x) + self.shortcut(x))


class ConvNet(nn.Module):
    """ResNet-style classifier: images (N, 3, H, W) to logits (N, classes).

    Four stages of `layers` blocks each; the channels are `width` in the first stage and double from stage to
    stage (times four with `bottleneck`, as in ResNet-50, where width is 64). Images of 64 pixels and more go
    through the usual 7x7 convolution and pooling first, smaller ones through a 3x3 convolution.
    """

    def __init__(self, *, classes: int, pixels: int, width: int, layers: int, bottleneck: bool) -> None:
        super().__init__()
        if pixels >= 64:
            stem: list[nn.Module] = [_convolution(3, width, 7, 2), nn.MaxPool2d(3, stride=2, padding=1)]
        else:
            stem = [_convolution(3, width, 3, 1)]
        self.stem = nn.Sequential(stem[0], nn.BatchNorm2d(width), nn.ReLU(inplace=True), *stem[1:])
        blocks: list[nn.Module] = []
        channels = width
        for stage in range(4):
            outputs = width * 2**stage * (4 if bottleneck else 1)
            for layer in range(layers):
                stride = 2 if stage > 0 and layer == 0 else 1
                blocks.append(Residual(channels, outputs, stride=stride, bottleneck=bottleneck))
                channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.blocks(self.stem(images))
        return self.head(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


def _convolution(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


class Wide(nn.Module):
    """Predicts a token from the one before it: ids (batch, sequence) to logits (batch, sequence, vocab).

    With a vocabulary of 32,000 and a width of 1024 the last layer alone holds 500 MiB of fp32 gradients.
    """

    def __init__(self, *, vocab: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Embedding(vocab, width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, vocab)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layers(tokens)  # type: ignore[no-any-return]
