"""Every network's forward pass against the same layers written out plainly, from the papers' tables, with its weights."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import relu

from calibrant.study import models
from calibrant.study.data.text import TreeSplit, build_tree, parse
from calibrant.study.models import TreeLSTM


class Plain:
    """Layers applied one by one with the weights of a network, which are taken in the order in which it declares them."""

    def __init__(self, network: nn.Module) -> None:
        kinds = nn.Conv2d | nn.Conv1d | nn.BatchNorm2d | nn.BatchNorm1d | nn.Linear | nn.Embedding
        self.rest: Iterator[Any] = iter([module for module in network.modules() if isinstance(module, kinds)])

    def conv(self, x: Tensor, stride: int = 1) -> Tensor:
        """A convolution over one or two axes that keeps the size at stride 1."""
        layer = next(self.rest)
        convolve = F.conv1d if x.dim() == 3 else F.conv2d
        return convolve(x, layer.weight, layer.bias, stride, padding=layer.weight.shape[-1] // 2)

    def norm(self, x: Tensor) -> Tensor:
        """Batch norm in evaluation mode."""
        n = next(self.rest)
        return F.batch_norm(x, n.running_mean, n.running_var, n.weight, n.bias)

    def linear(self, x: Tensor) -> Tensor:
        layer = next(self.rest)
        return F.linear(x, layer.weight, layer.bias)

    def embed(self, words: Tensor) -> Tensor:
        return next(self.rest).weight[words].transpose(1, 2)

    def done(self) -> bool:
        return next(self.rest, None) is None


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


def residual(block: Callable[..., Tensor], *stages: tuple[int, int]) -> Callable[[Plain, Tensor], Tensor]:
    """Return the chain of stages of (width, blocks), of which all but the first halve the image."""

    def chain(p: Plain, x: Tensor) -> Tensor:
        x = relu(p.norm(p.conv(x)))
        for stage, (width, blocks) in enumerate(stages):
            for index in range(blocks):
                x = block(p, x, width, 2 if stage and not index else 1)
        return p.linear(x.mean((2, 3)))

    return chain


def densenet121(p: Plain, x: Tensor) -> Tensor:
    x = p.conv(x)
    for stage, layers in enumerate((6, 12, 24, 16)):
        for _ in range(layers):
            new = p.conv(relu(p.norm(p.conv(relu(p.norm(x))))))
            x = torch.cat([new, x], dim=1)
        if stage < 3:
            x = p.conv(relu(p.norm(x)))
            assert x.shape[1] % 2 == 0
            x = F.avg_pool2d(x, 2)
    return p.linear(relu(p.norm(x)).mean((2, 3)))


def vgg16(p: Plain, x: Tensor) -> Tensor:
    for convolutions in (2, 2, 3, 3, 3):
        for _ in range(convolutions):
            x = relu(p.norm(p.conv(x)))
        x = F.max_pool2d(x, 2)
    return p.linear(x.mean((2, 3)))


def deep_text(p: Plain, words: Tensor) -> Tensor:
    x = p.embed(words)
    for pool in (1, 4, 1, 4, 1, 4):
        x = F.max_pool1d(relu(p.norm(p.conv(x))), pool)
    return p.linear(x.amax(2))


def pooled_text(p: Plain, words: Tensor) -> Tensor:
    # the inner part is the convolution without padding
    x = relu(p.conv(p.embed(words)))[..., 2:-2].unfold(2, 5, 1).amax(3)
    x = relu(p.conv(x))[..., 2:-2].unfold(2, 5, 1).amax(3)
    return p.linear(relu(p.linear(relu(p.conv(x))[..., 2:-2].amax(2))))


def perceptron(p: Plain, x: Tensor) -> Tensor:
    x = x.flatten(1)
    return p.linear(relu(p.linear(relu(p.linear(x)))))


WORDS: dict[str, Any] = {"vocabulary": 40, "embedding": 6, "channels": 5}


@pytest.mark.parametrize(
    ("name", "options", "plain"),
    [
        ("ResNet", {"depth": 18}, residual(basic, (64, 2), (128, 2), (256, 2), (512, 2))),
        ("ResNet", {"depth": 50}, residual(bottleneck, (64, 3), (128, 4), (256, 6), (512, 3))),
        ("ThinResNet", {"depth": 20}, residual(partial(basic, padded=True), (16, 3), (32, 3), (64, 3))),
        ("WideResNet", {"depth": 14, "widen": 2}, residual(basic, (32, 2), (64, 2), (128, 2))),
        ("DenseNet", {"growth": 4}, densenet121),
        ("VGG", {}, vgg16),
        ("MLP", {"inputs": 3 * 32 * 32, "hidden": (9, 8)}, perceptron),
        ("DeepTextCNN", WORDS, deep_text),
        ("PooledTextCNN", WORDS, pooled_text),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_the_forward_pass_is_the_published_chain_of_layers_and_each_learns(
    name: str, options: dict[str, Any], plain: Callable[[Plain, Tensor], Tensor]
) -> None:
    torch.manual_seed(4)
    network = getattr(models, name)(classes=7, **options)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias, 0, 0.1)
    network.double().eval()
    text = options is WORDS
    side = 32 if name in ("VGG", "MLP") else 16  # VGG halves it five times
    inputs = torch.randint(0, 40, (2, 203)) if text else torch.randn(2, 3, side, side, dtype=torch.float64)
    with torch.no_grad():
        weights = Plain(network)
        expected = plain(weights, inputs)
        assert weights.done()  # no layer of the network was left out
    found = network(inputs)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))
    found.square().sum().backward()
    assert all(p.grad is not None for p in network.parameters() if p.requires_grad)
    assert isinstance(network.classifier, nn.Linear)
    assert not text or not network.embedding.weight[0].any()  # padding


def test_the_vision_transformer_is_the_published_blocks_over_patches() -> None:
    torch.manual_seed(0)
    model = models.ViT(5, image=8, patch=4, width=6, depth=2, heads=2).double().eval()
    images = torch.randn(3, 3, 8, 8, dtype=torch.float64)
    patches = images.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).reshape(3, 4, 48)
    x = patches @ model.patches.weight.reshape(6, 48).T + model.patches.bias + model.positions

    def normed(x: Tensor, norm: Any) -> Tensor:
        return F.layer_norm(x, (6,), norm.weight, norm.bias)

    for block in model.blocks.layers:
        attention = block.self_attn
        q, k, v = (normed(x, block.norm1) @ attention.in_proj_weight.T + attention.in_proj_bias).chunk(3, dim=-1)
        heads = [part.unflatten(-1, (2, 3)).transpose(1, 2) for part in (q, k, v)]
        mixed = (heads[0] @ heads[1].mT / 3**0.5).softmax(-1) @ heads[2]
        x = x + attention.out_proj(mixed.transpose(1, 2).flatten(2))
        x = x + block.linear2(F.gelu(block.linear1(normed(x, block.norm2))))
    expected = model.classifier(normed(x, model.blocks.norm).mean(1))
    torch.testing.assert_close(model(images), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "options", "parameters", "norms"),
    [
        ("ResNet", {"classes": 10, "depth": 50}, 23_520_842, 53),
        ("ResNet", {"classes": 1000, "depth": 50, "stem": "imagenet"}, 25_557_032, 53),
        # 64-wide bottleneck 3-4-26-3: ResNet-50 and 20 more blocks of the third stage, 1,117,184 parameters each
        ("ResNet", {"classes": 10, "depth": 110}, 23_520_842 + 20 * 1_117_184, 53 + 20 * 3),
        ("ResNet", {"classes": 200, "depth": 50, "pool": 2}, 23_520_842 - 2049 * 10 + 8193 * 200, 53),
        ("ThinResNet", {"classes": 10, "depth": 110}, 1_727_962, 109),
        ("WideResNet", {"classes": 10, "depth": 26}, 36_481_434, 28),
        ("DenseNet", {"classes": 10}, 6_956_298, 121 - 1),
        ("DenseNet", {"classes": 1000, "stem": "imagenet"}, 7_978_856, 121),
        ("VGG", {"classes": 10}, 14_728_266, 13),
    ],
)
def test_parameters_and_batch_norms_are_as_many_as_published(
    name: str, options: dict[str, Any], parameters: int, norms: int
) -> None:
    with torch.device("meta"):
        network = getattr(models, name)(**options)
    assert sum(p.numel() for p in network.parameters() if p.requires_grad) == parameters
    assert sum(isinstance(module, nn.BatchNorm2d) for module in network.modules()) == norms


def test_the_eight_layer_network_pools_where_it_is_told() -> None:
    model = models.DeepTextCNN(classes=2, vocabulary=50, pools=(4, 1, 1, 1, 1, 1), embedding_scale=0.1)
    assert sum(isinstance(m, nn.Conv1d | nn.Linear | nn.Embedding) for m in model.modules()) == 8
    assert [m.kernel_size for m in model.modules() if isinstance(m, nn.MaxPool1d)] == [4]
    assert 0.05 < float(model.embedding.weight[1:].detach().std()) < 0.15


def recursive(model: TreeLSTM, node: list[Any], index: dict[str, int]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return hidden, cell and the logits of all nodes below, by the definition: the oracle."""
    if len(node) == 2:
        word = model.embedding(torch.tensor([index.get(node[1], 0)]))
        gate, cell = model.leaf(word).chunk(2, dim=1)
        hidden = torch.sigmoid(gate) * torch.tanh(cell)
        return hidden, cell, [model.classifier(hidden)]
    (hl, cl, ll), (hr, cr, lr) = recursive(model, node[1], index), recursive(model, node[2], index)
    if model.output_gate:
        i, fl, fr, o, u = model.node(torch.cat([hl, hr], dim=1)).chunk(5, dim=1)
    else:  # as in Mukhoti et al.'s code
        i, fl, fr, u = (model.left(hl) + model.right(hr)).chunk(4, dim=1)
    cell = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(fl) * cl + torch.sigmoid(fr) * cr
    hidden = (torch.sigmoid(o) if model.output_gate else 1) * torch.tanh(cell)
    return hidden, cell, [*ll, *lr, model.classifier(hidden)]


LINES = ["(3 (2 a) (4 (1 b) (2 (0 c) (3 d))))", "(0 (1 (1 d) (2 a)) (4 (3 b) (2 e)))", "(4 a)"]


@pytest.mark.parametrize("output_gate", [True, False])
def test_level_by_level_is_the_recursion(output_gate: bool) -> None:
    torch.manual_seed(0)
    index = {word: place for place, word in enumerate("abcd", start=1)}
    roots = [parse(line) for line in LINES]
    classes = {0: 0, 1: 0, 3: 1, 4: 1}
    split = TreeSplit([build_tree(root, index=index, labels=classes) for root in roots])
    model = TreeLSTM(2, vocabulary=5, embedding=3, hidden=4, output_gate=output_gate)
    batch, labels = split.batch(torch.tensor([1, 0, 2]))
    expected = torch.cat([recursive(model, roots[row], index)[2][-1] for row in (1, 0, 2)])
    assert torch.allclose(model(batch), expected, atol=1e-6)
    assert labels.tolist() == split.labels[[1, 0, 2]].tolist() == [0, 1, 1]
    batch, labels = split.batch(torch.tensor([0, 1]), training=True)
    found = sorted((*row.tolist(), int(label)) for row, label in zip(model(batch), labels, strict=True))
    marks = (2, 1, 0, 3, 2, 4, 3, 1, 2, 1, 3, 2, 4, 0)  # of the nodes of the first two trees, children first
    logits = [z[0].tolist() for root in roots[:2] for z in recursive(model, root, index)[2]]
    known = [(*row, classes[mark]) for row, mark in zip(logits, marks, strict=True) if mark in classes]
    assert found == [pytest.approx(node, abs=2e-5) for node in sorted(known)]
