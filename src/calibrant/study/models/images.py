"""Networks of images and rows: ResNet, thin ResNet, Wide-ResNet, DenseNet, VGG and ViT for 32×32 and 64×64 images, and an MLP."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibrant._core.check import check_choice
from calibrant.errors import InputError


class Classifier(nn.Module):
    """A network whose last layer, ``classifier``, takes what ``features`` returns; a subclass makes both."""

    features: nn.Module
    classifier: nn.Module

    def forward(self, inputs: Any) -> Tensor:
        """Return logits (N, K) of a batch: images (N, 3, H, W), rows (N, …), or what the class says."""
        return self.classifier(self.features(inputs))

    def _end(self, layers: list[nn.Module], width: int, classes: int, *, pool: int = 1) -> None:
        """Make the network: ``layers`` that end in ``width`` channels, their averages over ``pool`` × ``pool`` parts, a linear layer."""
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(pool), nn.Flatten())
        self.classifier = nn.Linear(width * pool * pool, classes)


class MLP(Classifier):
    """Linear layers with ReLU between them.

    Args:
        classes: Number of classes K.
        inputs: int of a flattened sample.
        hidden: Width of each hidden layer.
    """

    def __init__(self, classes: int, inputs: int, hidden: Sequence[int] = (128, 128)) -> None:
        super().__init__()
        widths = [inputs, *hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(widths[-1], classes)


LAYERS = {
    "18": ("basic", (2, 2, 2, 2)),
    "34": ("basic", (3, 4, 6, 3)),
    "50": ("bottleneck", (3, 4, 6, 3)),
    "101": ("bottleneck", (3, 4, 23, 3)),
    "110": ("bottleneck", (3, 4, 26, 3)),  # what Mukhoti et al.'s code calls ResNet-110; not He's
}


class Basic(nn.Module):
    """Two 3×3 convolutions plus a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, *, padded: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = _shortcut(inputs, width, stride, padded=padded)

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, width, H / stride, W / stride)."""
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions plus a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.shortcut = _shortcut(inputs, 4 * width, stride, padded=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, 4·width, H / stride, W / stride)."""
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        return F.relu(self.bn3(self.conv3(out)) + self.shortcut(x))


class Padded(nn.Module):
    """He et al.'s option A: take every second pixel, fill new channels with zeros; no parameters."""

    def __init__(self, extra: int) -> None:
        super().__init__()
        self.extra = extra

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, C + extra, H/2, W/2), half of the zeros before and half after."""
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2))


def _residual_stages(
    block: Any, counts: Sequence[int], widths: Sequence[int], inputs: int, **options: Any
) -> tuple[list[nn.Module], int]:
    """Return ``counts`` blocks of each width, of which the first of each stage but the first halves the image, and their channels."""
    layers: list[nn.Module] = []
    for stage, (count, width) in enumerate(zip(counts, widths, strict=True)):
        for index in range(count):
            layers.append(block(inputs, width, 2 if stage and not index else 1, **options))
            inputs = width * block.expansion
    return layers, inputs


def _stem(kind: str, width: int) -> list[nn.Module]:
    """Return the first layers: a 3×3 convolution for small images, or a 7×7 one with stride 2 and pooling."""
    if check_choice(kind, name="stem", choices=("small", "imagenet")) == "small":
        return [nn.Conv2d(3, width, 3, 1, 1, bias=False)]
    return [nn.Conv2d(3, width, 7, 2, 3, bias=False), *_active(width), nn.MaxPool2d(3, 2, 1)]


def _active(width: int) -> list[nn.Module]:
    return [nn.BatchNorm2d(width), nn.ReLU()]


def normal_by_outputs(network: nn.Module) -> None:
    """Draw the weights of every convolution from a normal distribution of variance 2 / (k²·outputs).

    References:
        He et al. 2015, Eq. 14 (backward case); Mukhoti et al. 2020, code of Wide-ResNet and of Tiny-ImageNet's ResNet.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def _shortcut(inputs: int, outputs: int, stride: int, *, padded: bool) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    if padded:
        return Padded(outputs - inputs)
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(Classifier):
    """ResNet-18, -34, -50, -101 and the "ResNet-110" of Mukhoti et al.'s code, with 64 channels in the first stage.

    Args:
        classes: Number of classes K.
        depth: 18, 34, 50, 101 or 110 (Bottleneck 3-4-26-3).
        stem: ``"small"``: one 3×3 convolution, for 32×32 and 64×64 images; ``"imagenet"``: 7×7, stride 2, and pooling.
        pool: Height and width after the final average pooling: 1, or 2 for Mukhoti et al.'s Tiny-ImageNet.
        init: ``"torch"``: torch's default; ``"normal"``: convolutions drawn with variance 2 / (k²·outputs), as in Mukhoti et
            al.'s code for Tiny-ImageNet.

    References:
        He et al. 2016, Table 1; Mukhoti et al. 2020, code, Net/resnet.py and Net/resnet_tiny_imagenet.py.
    """

    def __init__(
        self,
        classes: int,
        depth: int = 18,
        stem: Literal["small", "imagenet"] = "small",
        pool: int = 1,
        init: Literal["torch", "normal"] = "torch",
    ) -> None:
        super().__init__()
        check_choice(init, name="init", choices=("torch", "normal"))
        kind, blocks = LAYERS[check_choice(str(depth), name="depth", choices=LAYERS)]
        first = [*_stem(stem, 64), *(_active(64) if stem == "small" else ())]
        # twice as many channels where the image is halved
        layers, width = _residual_stages(Basic if kind == "basic" else Bottleneck, blocks, (64, 128, 256, 512), 64)
        self._end([*first, *layers], width, classes, pool=pool)
        if init == "normal":
            normal_by_outputs(self)


class ThinResNet(Classifier):
    """He et al.'s ResNet-20, -32, -56, -110 for 32×32 images: 16, 32, 64 channels, shortcuts without parameters.

    Args:
        classes: Number of classes K.
        depth: 6·n + 2, such as 8, 20, 32 or 110.
        widths: Channels of the three stages.
        stride: Stride of the first convolution; 2 halves the image, which takes a quarter of the time.

    References:
        He et al. 2016 §4.2; ResNet-32 is the network of Wang et al. 2021.
    """

    def __init__(self, classes: int, depth: int = 32, widths: Sequence[int] = (16, 32, 64), stride: int = 1) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise InputError("depth 6·n + 2 (8, 14, 20, 32 …)", f"{depth}", "choose one of these")
        first = nn.Conv2d(3, widths[0], 3, stride, 1, bias=False)
        layers, width = _residual_stages(Basic, [(depth - 2) // 6] * 3, widths, widths[0], padded=True)
        self._end([first, *_active(widths[0]), *layers], width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                torch.nn.init.kaiming_normal_(module.weight)


VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)  # 0 halves the image


class WideResNet(Classifier):
    """Wide residual network WRN-depth-widen, with batch norm and ReLU after each convolution, also on shortcuts.

    That is what Mukhoti et al.'s code has (WRN-26-10: 36,481,434 parameters, 28 batch norms, convolutions drawn from a normal
    distribution of variance 2 / (k²·outputs)); Zagoruyko & Komodakis have them before.

    Args:
        classes: Number of classes K.
        depth: 6·n + 4, as counted by Zagoruyko & Komodakis, or 6·n + 2, as by Mukhoti et al., who do not count the two
            shortcuts: 26 and 28 are the same depth.
        widen: Factor on 16, 32, 64 channels.

    References:
        Zagoruyko & Komodakis 2016, Table 1; Mukhoti et al. 2020, code, Net/wide_resnet.py.
    """

    def __init__(self, classes: int, depth: int = 26, widen: int = 10) -> None:
        super().__init__()
        if depth < 8 or depth % 6 not in (2, 4):
            raise InputError("depth 6·n + 2 or 6·n + 4 (16, 22, 26, 28 …)", f"{depth}", "choose one of these")
        # two convolutions a block in three stages: 6·n, and 2 layers (or 4, with the shortcuts) outside of them
        widths = (16 * widen, 32 * widen, 64 * widen)
        layers, width = _residual_stages(Basic, [(depth - 2) // 6] * 3, widths, 16)
        self._end([nn.Conv2d(3, 16, 3, 1, 1, bias=False), *_active(16), *layers], width, classes)
        normal_by_outputs(self)


class DenseLayer(nn.Module):
    """1×1 and 3×3 convolutions, whose result is concatenated with the input."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_active(inputs),
            nn.Conv2d(inputs, 4 * growth, 1, bias=False),
            *_active(4 * growth),
            nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, inputs + growth, H, W)."""
        return torch.cat([self.body(x), x], dim=1)


class DenseNet(Classifier):
    """DenseNet-121.

    Args:
        classes: Number of classes K.
        growth: Number of channels that each layer adds.
        stem: ``"small"``: one 3×3 convolution, for 32×32 and 64×64 images; ``"imagenet"``: 7×7, stride 2, and pooling.

    References:
        Huang et al. 2017, Table 1.
    """

    def __init__(self, classes: int, growth: int = 32, stem: Literal["small", "imagenet"] = "small") -> None:
        super().__init__()
        width = 2 * growth
        layers = _stem(stem, width)
        for stage, count in enumerate((6, 12, 24, 16)):
            for _ in range(count):
                layers.append(DenseLayer(width, growth))
                width += growth
            if stage < 3:
                # a transition halves channels and image (compression θ = ½)
                half = width // 2
                layers += [*_active(width), nn.Conv2d(width, half, 1, bias=False), nn.AvgPool2d(2)]
                width = half
        self._end([*layers, *_active(width)], width, classes)


class VGG(Classifier):
    """VGG-16 with batch norm and one linear layer, for small images.

    Args:
        classes: Number of classes K.

    References:
        Simonyan & Zisserman 2015, configuration D.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for width in VGG16:
            if width:
                layers += [nn.Conv2d(inputs, width, 3, 1, 1), *_active(width)]
                inputs = width
            else:
                layers.append(nn.MaxPool2d(2))
        self._end(layers, inputs, classes)


class ViT(nn.Module):
    """A vision transformer: patches with learned positions, blocks that normalise first, the mean over patches, one linear layer.

    The sizes are ours, between the smallest of the papers and what trains on a CPU.

    Args:
        classes: Number of classes K.
        image: Height and width of an image.
        patch: Height and width of a patch; pixels beyond the last whole patch are left out.
        width: Numbers of a patch.
        depth: Blocks of attention and two linear layers.
        heads: Heads of attention; ``width`` is a multiple of it.
        dropout: Dropout probability in the blocks.

    References:
        Dosovitskiy et al. 2021, Eqs. 1–4, with the mean over patches instead of a class token (Beyer et al. 2022).
    """

    def __init__(
        self,
        classes: int,
        image: int = 32,
        patch: int = 4,
        width: int = 192,
        depth: int = 6,
        heads: int = 3,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.positions = nn.Parameter(0.02 * torch.randn(1, (image // patch) ** 2, width))
        block = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, depth, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.classifier = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, K) of images (N, 3, H, W)."""
        rows = self.patches(images).flatten(2).transpose(1, 2)  # (N, patches, width)
        return self.classifier(self.blocks(rows + self.positions).mean(dim=1))
