"""Every network's forward pass against the same layers written out plainly, from the papers' tables, with its weights."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibrant.study import models


class Plain:
    """Layers applied one by one with the weights of a network, which are taken in the order in which it declares them."""

    def __init__(self, network: nn.Module) -> None:
        kinds = nn.Conv2d | nn.Conv1d | nn.BatchNorm2d | nn.BatchNorm1d | nn.Linear | nn.Embedding
        self.rest: Iterator[Any] = iter([module for module in network.modules() if isinstance(module, kinds)])

    def conv(self, x: Tensor, stride: int = 1) -> Tensor:
        """A convolution that keeps the size at stride 1, by unfolding the image into patches; over one or two axes."""
        layer = next(self.rest)
        flat = x.dim() == 3
        weight = layer.weight[:, :, None, :] if flat else layer.weight
        image = x[:, :, None, :] if flat else x
        height, width = weight.shape[2:]
        patches = F.unfold(image, (height, width), padding=(height // 2, width // 2), stride=stride)
        out = weight.flatten(1) @ patches
        out = out if layer.bias is None else out + layer.bias[:, None]
        if flat:
            return out
        side = (x.shape[-1] - 1) // stride + 1
        return out.unflatten(2, (side, side))

    def norm(self, x: Tensor) -> Tensor:
        """Batch norm in evaluation mode."""
        n = next(self.rest)
        shape = (1, -1, *[1] * (x.dim() - 2))
        standard = (x - n.running_mean.view(shape)) / torch.sqrt(n.running_var.view(shape) + 1e-5)
        return standard * n.weight.view(shape) + n.bias.view(shape)

    def linear(self, x: Tensor) -> Tensor:
        layer = next(self.rest)
        return x @ layer.weight.T + layer.bias

    def embed(self, words: Tensor) -> Tensor:
        return next(self.rest).weight[words].transpose(1, 2)

    def done(self) -> bool:
        return next(self.rest, None) is None


def relu(x: Tensor) -> Tensor:
    return x.clamp(min=0)


def pooled(x: Tensor, size: int) -> Tensor:
    """The maxima of disjoint squares (or stretches) of this size; a remainder at the end is left out."""
    for axis in range(2, x.dim()):
        whole = x.shape[axis] // size * size
        x = x.narrow(axis, 0, whole).unflatten(axis, (-1, size)).amax(axis + 1)
    return x


def basic(p: Plain, x: Tensor, width: int, stride: int, *, padded: bool = False) -> Tensor:
    out = relu(p.norm(p.conv(x, stride)))
    out = p.norm(p.conv(out))
    if stride == 1 and x.shape[1] == width:
        return relu(out + x)
    if padded:  # He et al.'s option A: every second pixel, zeros on both sides of the channels
        extra = width - x.shape[1]
        zeros = x.new_zeros(len(x), extra // 2, *out.shape[2:])
        return relu(out + torch.cat([zeros, x[:, :, ::2, ::2], zeros], dim=1))
    return relu(out + p.norm(p.conv(x, stride)))


def bottleneck(p: Plain, x: Tensor, width: int, stride: int) -> Tensor:
    out = relu(p.norm(p.conv(x)))
    out = relu(p.norm(p.conv(out, stride)))
    out = p.norm(p.conv(out))
    return relu(out + (x if stride == 1 and x.shape[1] == 4 * width else p.norm(p.conv(x, stride))))


def resnet18(p: Plain, x: Tensor) -> Tensor:
    x = relu(p.norm(p.conv(x)))
    for width, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        x = basic(p, x, width, stride)
    return p.linear(x.mean((2, 3)))


def resnet50(p: Plain, x: Tensor) -> Tensor:
    x = relu(p.norm(p.conv(x)))
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for index in range(blocks):
            x = bottleneck(p, x, width, 2 if index == 0 and width > 64 else 1)
    return p.linear(x.mean((2, 3)))


def thin20(p: Plain, x: Tensor) -> Tensor:
    x = relu(p.norm(p.conv(x)))
    for width, stride in ((16, 1), (16, 1), (16, 1), (32, 2), (32, 1), (32, 1), (64, 2), (64, 1), (64, 1)):
        x = basic(p, x, width, stride, padded=True)
    return p.linear(x.mean((2, 3)))


def wide16x2_before(p: Plain, x: Tensor) -> Tensor:
    x = p.conv(x)
    for width, stride in ((32, 1), (32, 1), (64, 2), (64, 1), (128, 2), (128, 1)):
        ready = relu(p.norm(x))
        out = p.conv(relu(p.norm(p.conv(ready, stride))))
        x = out + (x if x.shape[1] == width else p.conv(ready, stride))
    return p.linear(relu(p.norm(x)).mean((2, 3)))


def densenet121(p: Plain, x: Tensor) -> Tensor:
    x = p.conv(x)
    for stage, layers in enumerate((6, 12, 24, 16)):
        for _ in range(layers):
            new = p.conv(relu(p.norm(p.conv(relu(p.norm(x))))))
            x = torch.cat([new, x], dim=1)
        if stage < 3:
            x = p.conv(relu(p.norm(x)))
            assert x.shape[1] % 2 == 0
            x = x.unflatten(3, (-1, 2)).mean(4).unflatten(2, (-1, 2)).mean(3)
    return p.linear(relu(p.norm(x)).mean((2, 3)))


def vgg16(p: Plain, x: Tensor) -> Tensor:
    for convolutions in (2, 2, 3, 3, 3):
        for _ in range(convolutions):
            x = relu(p.norm(p.conv(x)))
        x = pooled(x, 2)
    return p.linear(x.mean((2, 3)))


def deep_text(p: Plain, words: Tensor) -> Tensor:
    x = p.embed(words)
    for pool in (1, 4, 1, 4, 1, 4):
        x = pooled(relu(p.norm(p.conv(x))), pool)
    return p.linear(x.amax(2))


def pooled_text(p: Plain, words: Tensor) -> Tensor:
    x = (
        relu(p.conv(p.embed(words)))[..., 2:-2].unfold(2, 5, 1).amax(3)
    )  # the inner part is the convolution without padding
    x = relu(p.conv(x))[..., 2:-2].unfold(2, 5, 1).amax(3)
    return p.linear(relu(p.linear(relu(p.conv(x))[..., 2:-2].amax(2))))


def perceptron(p: Plain, x: Tensor) -> Tensor:
    x = x.flatten(1)
    return p.linear(relu(p.linear(relu(p.linear(x)))))


def small(p: Plain, x: Tensor) -> Tensor:
    return p.linear(relu(p.conv(pooled(relu(p.conv(x)), 2))).mean((2, 3)))


WORDS: dict[str, Any] = {"vocabulary": 40, "embedding": 6, "channels": 5}


@pytest.mark.parametrize(
    ("name", "options", "plain"),
    [
        ("ResNet", {"depth": 18}, resnet18),
        ("ResNet", {"depth": 50}, resnet50),
        ("ThinResNet", {"depth": 20}, thin20),
        ("WideResNet", {"depth": 16, "widen": 2, "norm": "before"}, wide16x2_before),
        ("DenseNet", {"growth": 4}, densenet121),
        ("VGG", {}, vgg16),
        ("SmallCNN", {}, small),
        ("MLP", {"inputs": 3 * 32 * 32, "hidden": (9, 8)}, perceptron),
        ("DeepTextCNN", WORDS, deep_text),
        ("PooledTextCNN", WORDS, pooled_text),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_the_forward_pass_is_the_published_chain_of_layers(
    name: str, options: dict[str, Any], plain: Callable[[Plain, Tensor], Tensor]
) -> None:
    torch.manual_seed(4)
    network = getattr(models, name)(classes=7, **options)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
            module.running_mean.normal_(0, 0.1)  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias, 0, 0.1)
    network.double().eval()
    text = options is WORDS
    inputs = torch.randint(0, 40, (2, 203)) if text else torch.randn(2, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        weights = Plain(network)
        expected = plain(weights, inputs)
        assert weights.done()  # no layer of the network was left out
        torch.testing.assert_close(network(inputs), expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))
