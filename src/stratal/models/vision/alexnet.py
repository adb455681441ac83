"""AlexNet, in the form with one tower.

See: Krizhevsky 2014, One weird trick for parallelizing convolutional neural networks; for ReLU, dropout and
overlapping pooling Krizhevsky et al. 2012.
"""

from __future__ import annotations

from stratal import nn
from stratal.models.vision.layers import constructor, scaled
from stratal.tensor.tensor import Tensor


class AlexNet(nn.Module):
    """Five convolutions with three poolings, three linear layers; `width_mult` scales all widths.

    Shapes: [N, 3, H, W] -> [N, num_classes] logits; H and W are 63 or more, 224 in the paper.
    """

    def __init__(self, num_classes: int = 1000, dropout: float = 0.5, *, width_mult: float = 1.0) -> None:
        super().__init__()
        a, b, c, d, hidden = (scaled(n, width_mult) for n in (64, 192, 384, 256, 4096))
        self.features = nn.Sequential(
            nn.Conv2d(3, a, 11, stride=4, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2),
            nn.Conv2d(a, b, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2),
            nn.Conv2d(b, c, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(c, d, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(d, d, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2),
        )  # fmt: skip
        self.avgpool = nn.AdaptiveAvgPool2d((6, 6))
        self.classifier = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(d * 6 * 6, hidden), nn.ReLU(inplace=True),
            nn.Dropout(dropout), nn.Linear(hidden, hidden), nn.ReLU(inplace=True),
            nn.Linear(hidden, num_classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


alexnet = constructor(__name__, "alexnet", "AlexNet", AlexNet)
