"""Networks: parameter counts as papers or their authors' code have them, output shapes, and the Tree-LSTM against recursion."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.study import models
from calibrant.study.data.text import TreeSplit, build, parse
from calibrant.study.models import TreeLSTM


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("name", "options", "parameters"),
    [
        ("ResNet", {"classes": 10, "depth": 18}, 11_173_962),
        ("ResNet", {"classes": 10, "depth": 50}, 23_520_842),
        ("ResNet", {"classes": 1000, "depth": 50, "stem": "imagenet"}, 25_557_032),
        ("ThinResNet", {"classes": 10, "depth": 20}, 269_722),
        ("ThinResNet", {"classes": 10, "depth": 32}, 464_154),
        ("ThinResNet", {"classes": 10, "depth": 110}, 1_727_962),
        ("WideResNet", {"classes": 10, "depth": 28, "norm": "before"}, 36_479_194),
        ("WideResNet", {"classes": 10}, 36_481_434),
        ("DenseNet", {"classes": 10}, 6_956_298),
        ("VGG", {"classes": 10}, 14_728_266),
        ("PooledTextCNN", {"classes": 20, "vocabulary": 20_000}, 247_316),
    ],
)
def test_parameter_counts_are_the_published_ones(name: str, options: dict[str, Any], parameters: int) -> None:
    with torch.device("meta"):
        assert count(getattr(models, name)(**options)) == parameters


def test_the_papers_names_for_depths_are_understood() -> None:
    with torch.device("meta"):
        assert count(models.WideResNet(10, depth=26)) == count(models.WideResNet(10, depth=28))
        # 64-wide Bottleneck 3-4-26-3: ResNet-50 and 20 more blocks of the third stage, 1,117,184 parameters each
        assert count(models.ResNet(10, depth=110)) == 23_520_842 + 20 * 1_117_184
        assert models.ResNet(200, depth=50, pool=2).classifier.in_features == 8192


@pytest.mark.parametrize(
    ("name", "options", "size"),
    [
        ("ResNet", {"depth": 18}, 32),
        ("ResNet", {"depth": 50, "pool": 2}, 64),
        ("ThinResNet", {"depth": 8}, 32),
        ("WideResNet", {"depth": 10, "widen": 1}, 32),
        ("WideResNet", {"depth": 10, "widen": 1, "norm": "before"}, 32),
        ("DenseNet", {"growth": 4}, 32),
        ("VGG", {}, 32),
        ("VGG", {}, 64),
        ("SmallCNN", {}, 32),
    ],
)
def test_images_become_logits_and_every_parameter_learns(name: str, options: dict[str, Any], size: int) -> None:
    torch.manual_seed(0)
    model = getattr(models, name)(classes=7, **options)
    logits = model(torch.randn(2, 3, size, size))
    assert logits.shape == (2, 7)
    logits.square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert isinstance(model.classifier, nn.Linear)


@pytest.mark.parametrize("name", ["DeepTextCNN", "PooledTextCNN"])
def test_words_become_logits(name: str) -> None:
    model = getattr(models, name)(classes=20, vocabulary=50, embedding=8, channels=8)
    assert model(torch.randint(0, 50, (3, 200))).shape == (3, 20)
    assert torch.equal(model.embedding.weight[0], torch.zeros(8))


def test_the_eight_layer_network_has_eight_layers() -> None:
    model = models.DeepTextCNN(classes=2, vocabulary=5)
    assert sum(isinstance(m, nn.Conv1d | nn.Linear | nn.Embedding) for m in model.modules()) == 8


def test_the_eight_layer_network_pools_where_it_is_told() -> None:
    model = models.DeepTextCNN(classes=2, vocabulary=50, pools=(4, 1, 1, 1, 1, 1), embedding_scale=0.1)
    assert [m.kernel_size for m in model.modules() if isinstance(m, nn.MaxPool1d)] == [4]
    assert 0.05 < float(model.embedding.weight[1:].detach().std()) < 0.15
    with pytest.raises(InputError, match="expected pools as a list of 6 sizes, got 2"):
        models.DeepTextCNN(classes=2, vocabulary=5, pools=(4, 0))
    with pytest.raises(InputError, match="expected each of pools as an integer ≥ 1, got 0"):
        models.DeepTextCNN(classes=2, vocabulary=5, pools=(4, 1, 1, 1, 1, 0))


@pytest.mark.parametrize(
    ("name", "depth", "said"),
    [("ThinResNet", 33, "6·n \\+ 2"), ("WideResNet", 27, "6·n"), ("ResNet", 20, "one of '18'")],
)
def test_a_depth_that_is_not_is_refused(name: str, depth: int, said: str) -> None:
    with pytest.raises(InputError, match=said):
        getattr(models, name)(classes=10, depth=depth)


def recursive(model: TreeLSTM, node: list[Any], index: dict[str, int]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return hidden, cell and the logits of all nodes below, by the definition: the oracle."""
    if len(node) == 2:
        word = model.embedding(torch.tensor([index.get(node[1], 0)]))
        gate, cell = model.leaf(word).chunk(2, dim=1)
        hidden = torch.sigmoid(gate) * torch.tanh(cell)
        return hidden, cell, [model.classifier(hidden)]
    (hl, cl, ll), (hr, cr, lr) = recursive(model, node[1], index), recursive(model, node[2], index)
    i, fl, fr, o, u = model.node(torch.cat([hl, hr], dim=1)).chunk(5, dim=1)
    cell = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(fl) * cl + torch.sigmoid(fr) * cr
    hidden = torch.sigmoid(o) * torch.tanh(cell)
    return hidden, cell, [*ll, *lr, model.classifier(hidden)]


LINES = ["(3 (2 a) (4 (1 b) (2 (0 c) (3 d))))", "(0 (1 (1 d) (2 a)) (4 (3 b) (2 e)))", "(4 a)"]


def test_level_by_level_is_the_recursion() -> None:
    torch.manual_seed(0)
    index = {word: place for place, word in enumerate("abcd", start=1)}
    roots = [parse(line) for line in LINES]
    classes = {0: 0, 1: 0, 3: 1, 4: 1}
    split = TreeSplit([build(root, index=index, labels=classes) for root in roots])
    model = TreeLSTM(classes=2, vocabulary=5, embedding=3, hidden=4)
    batch, labels = split.batch(torch.tensor([1, 0, 2]))
    expected = torch.cat([recursive(model, roots[row], index)[2][-1] for row in (1, 0, 2)])
    assert torch.allclose(model(batch), expected, atol=1e-6)
    assert labels.tolist() == split.labels[[1, 0, 2]].tolist() == [0, 1, 1]
    batch, labels = split.batch(torch.tensor([0, 1]), training=True)
    found = sorted((round(row[0].item(), 5), int(label)) for row, label in zip(model(batch), labels, strict=True))
    wanted = []
    for root in roots[:2]:
        marks = [classes.get(label, -1) for label in _labels(root)]
        logits = recursive(model, root, index)[2]
        wanted += [(round(z[0, 0].item(), 5), mark) for z, mark in zip(logits, marks, strict=True) if mark >= 0]
    assert [label for _, label in found] == [label for _, label in sorted(wanted)]
    assert [value for value, _ in found] == pytest.approx([value for value, _ in sorted(wanted)], abs=2e-5)


def _labels(node: list[Any]) -> list[int]:
    return [node[0]] if len(node) == 2 else [*_labels(node[1]), *_labels(node[2]), node[0]]
