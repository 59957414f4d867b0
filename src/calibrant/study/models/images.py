"""Networks for images and rows: ResNet, thin ResNet, Wide-ResNet, DenseNet, VGG and ViT for 32×32 and 64×64 images, and an MLP."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibrant._core.check import check_choice
from calibrant.errors import InputError


class Classifier(nn.Module):
    """A network whose last layer, ``classifier``, takes the output of ``features``. Subclasses create both."""

    features: nn.Module
    classifier: nn.Module

    def forward(self, inputs: Any) -> Tensor:
        """Return the logits (N, K) of a batch of images (N, 3, H, W), rows (N, …), or other inputs that the class takes."""
        return self.classifier(self.features(inputs))

    def _end(self, layers: list[nn.Module], width: int, classes: int, *, pool: int = 1) -> None:
        """Create the network from ``layers``, average pooling and a linear layer.

        Args:
            layers: Layers whose output has ``width`` channels.
            width: Number of channels.
            classes: Number of classes K.
            pool: Height and width of the output of the average pooling.
        """
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(pool), nn.Flatten())
        self.classifier = nn.Linear(width * pool * pool, classes)


class MLP(Classifier):
    """A multilayer perceptron: linear layers with ReLU between them.

    Args:
        classes: Number of classes K.
        inputs: Number of values in a flattened sample.
        hidden: Width of each hidden layer.

    Examples:
        >>> MLP(classes=3, inputs=64)(torch.zeros(2, 64)).shape
        torch.Size([2, 3])
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
    "110": ("bottleneck", (3, 4, 26, 3)),  # called ResNet-110 in Mukhoti et al.'s code; not He et al.'s
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
    """He et al.'s shortcut of option A: keep every second pixel and fill new channels with zeros, without parameters."""

    def __init__(self, extra: int) -> None:
        super().__init__()
        self.extra = extra

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, C + extra, H/2, W/2), with half of the zero channels before the others and half after them."""
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2))


def _residual_stages(
    block: Any, counts: Sequence[int], widths: Sequence[int], inputs: int, **options: Any
) -> tuple[list[nn.Module], int]:
    """Return the residual blocks, ``counts`` of each width, and the number of channels of the last.

    The first block of each stage except the first stage halves the image.
    """
    layers: list[nn.Module] = []
    for stage, (count, width) in enumerate(zip(counts, widths, strict=True)):
        for index in range(count):
            layers.append(block(inputs, width, 2 if stage and not index else 1, **options))
            inputs = width * block.expansion
    return layers, inputs


def _stem(kind: str, width: int) -> list[nn.Module]:
    """Return the first layers: a 3×3 convolution for small images, or a 7×7 convolution with stride 2 and pooling."""
    if check_choice(kind, name="stem", choices=("small", "imagenet")) == "small":
        return [nn.Conv2d(3, width, 3, 1, 1, bias=False)]
    return [nn.Conv2d(3, width, 7, 2, 3, bias=False), *_active(width), nn.MaxPool2d(3, 2, 1)]


def _active(width: int) -> list[nn.Module]:
    """Return batch normalisation and ReLU for ``width`` channels."""
    return [nn.BatchNorm2d(width), nn.ReLU()]


def normal_by_outputs(network: nn.Module) -> None:
    """Draw the weights of every convolution from a normal distribution with variance 2 / (k²·outputs).

    References:
        He et al. 2015, Eq. 14 (backward case); Mukhoti et al. 2020, code of Wide-ResNet and of the ResNet for Tiny-ImageNet.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def _shortcut(inputs: int, outputs: int, stride: int, *, padded: bool) -> nn.Module:
    """Return the shortcut of a residual block: the identity if shapes agree, else zero padding or a 1×1 convolution."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    if padded:
        return Padded(outputs - inputs)
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(Classifier):
    """ResNet-18, -34, -50, -101 and the "ResNet-110" of Mukhoti et al.'s code, with 64 channels in the first stage.

    Args:
        classes: Number of classes K.
        depth: 18, 34, 50, 101 or 110 (bottleneck blocks 3-4-26-3).
        stem: The first layers: ``"small"``, a 3×3 convolution for 32×32 and 64×64 images; or ``"imagenet"``, a 7×7
            convolution with stride 2, and pooling.
        pool: Height and width after the final average pooling: 1, or 2 for Mukhoti et al.'s Tiny-ImageNet.
        init: The initial weights: ``"torch"``, PyTorch's default; or ``"normal"``, convolutions drawn with variance
            2 / (k²·outputs), as in Mukhoti et al.'s code for Tiny-ImageNet.

    Raises:
        InputError: If ``depth``, ``stem`` or ``init`` is not one of these.

    Examples:
        >>> ResNet(classes=10, depth=18)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])

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
        # the number of channels doubles where the image is halved
        layers, width = _residual_stages(Basic if kind == "basic" else Bottleneck, blocks, (64, 128, 256, 512), 64)
        self._end([*first, *layers], width, classes, pool=pool)
        if init == "normal":
            normal_by_outputs(self)


class ThinResNet(Classifier):
    """He et al.'s ResNet-20, -32, -56 and -110 for 32×32 images, with shortcuts without parameters.

    Args:
        classes: Number of classes K.
        depth: Number of layers, 6·n + 2, such as 8, 20, 32 or 110.
        widths: Number of channels in each of the three stages.
        stride: Stride of the first convolution; 2 halves the image, so that the network takes a quarter of the time.

    Raises:
        InputError: If ``depth`` is not of the form 6·n + 2.

    Examples:
        >>> ThinResNet(classes=10, depth=8)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])

    References:
        He et al. 2016 §4.2; Wang et al. 2021 use ResNet-32.
    """

    def __init__(self, classes: int, depth: int = 32, widths: Sequence[int] = (16, 32, 64), stride: int = 1) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise InputError("depth of the form 6·n + 2 (8, 14, 20, 32 …)", f"{depth}", "choose one of these")
        first = nn.Conv2d(3, widths[0], 3, stride, 1, bias=False)
        layers, width = _residual_stages(Basic, [(depth - 2) // 6] * 3, widths, widths[0], padded=True)
        self._end([first, *_active(widths[0]), *layers], width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                torch.nn.init.kaiming_normal_(module.weight)


# numbers of channels of the convolutions; 0 is a max pooling, which halves the image
VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)


class WideResNet(Classifier):
    """Wide residual network WRN-depth-widen, with batch norm and ReLU after each convolution, also on shortcuts.

    The network is the one in Mukhoti et al.'s code (WRN-26-10 has 36,481,434 parameters and 28 batch norms, with convolutions
    drawn from a normal distribution with variance 2 / (k²·outputs)). Zagoruyko & Komodakis put batch norm and ReLU before
    each convolution.

    Args:
        classes: Number of classes K.
        depth: Number of layers: 6·n + 4, as counted by Zagoruyko & Komodakis, or 6·n + 2, as counted by Mukhoti et al., who
            do not count the two shortcuts. Depths 26 and 28 are therefore the same network.
        widen: Factor on the 16, 32 and 64 channels of the stages.

    Raises:
        InputError: If ``depth`` has neither form.

    Examples:
        >>> WideResNet(classes=10, depth=10, widen=1)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])

    References:
        Zagoruyko & Komodakis 2016, Table 1; Mukhoti et al. 2020, code, Net/wide_resnet.py.
    """

    def __init__(self, classes: int, depth: int = 26, widen: int = 10) -> None:
        super().__init__()
        if depth < 8 or depth % 6 not in (2, 4):
            wanted = "depth of the form 6·n + 2 or 6·n + 4 (16, 22, 26, 28 …)"
            raise InputError(wanted, f"{depth}", "choose one of these")
        # two convolutions per block in three stages make 6·n layers; 2 layers (or 4, with the shortcuts) are outside the blocks
        widths = (16 * widen, 32 * widen, 64 * widen)
        layers, width = _residual_stages(Basic, [(depth - 2) // 6] * 3, widths, 16)
        self._end([nn.Conv2d(3, 16, 3, 1, 1, bias=False), *_active(16), *layers], width, classes)
        normal_by_outputs(self)


class DenseLayer(nn.Module):
    """1×1 and 3×3 convolutions, whose output is concatenated with the input."""

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
        stem: The first layers: ``"small"``, a 3×3 convolution for 32×32 and 64×64 images; or ``"imagenet"``, a 7×7
            convolution with stride 2, and pooling.

    Raises:
        InputError: If ``stem`` is not one of these.

    Examples:
        >>> DenseNet(classes=10, growth=4)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])

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
                # a transition halves the channels and the image (compression θ = ½)
                half = width // 2
                layers += [*_active(width), nn.Conv2d(width, half, 1, bias=False), nn.AvgPool2d(2)]
                width = half
        self._end([*layers, *_active(width)], width, classes)


class VGG(Classifier):
    """VGG-16 with batch norm and one linear layer, for small images.

    Args:
        classes: Number of classes K.

    Examples:
        >>> VGG(classes=10)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])

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
    """A small vision transformer (ViT).

    It has patches with learned positions, transformer blocks that normalise first, a mean over patches, and a linear layer.
    The default sizes are Calibrant's own, between the papers' smallest networks and those that can be trained on a CPU.

    Args:
        classes: Number of classes K.
        image: Height and width of an image.
        patch: Height and width of a patch; pixels beyond the last whole patch are left out.
        width: Number of values that represent a patch.
        depth: Number of transformer blocks.
        heads: Number of attention heads, which must divide ``width``.
        dropout: Dropout probability in the blocks.

    Examples:
        >>> ViT(classes=10, width=12, depth=1)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])

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
        """Return the logits (N, K) of images (N, 3, H, W)."""
        rows = self.patches(images).flatten(2).transpose(1, 2)  # (N, patches, width)
        return self.classifier(self.blocks(rows + self.positions).mean(dim=1))
