"""LeNet-5."""

from __future__ import annotations

from stratal import nn
from stratal.tensor.tensor import Tensor

F = nn.functional


class LeNet(nn.Module):
    """Two convolutions, each with pooling, and three linear layers.

    Shapes: [N, in_channels, 32, 32] -> [N, num_classes] logits; with `padding=2` images are 28x28, as MNIST
    has them. Where the paper has scaled tanh, trained sub-sampling, a table of connections and radial basis
    functions, this is the form in use today: ReLU, maxima, all connections, a linear layer.
    See: LeCun et al. 1998, figure 2.
    """

    def __init__(self, num_classes: int = 10, in_channels: int = 1, *, padding: int = 0) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 6, 5, padding=padding)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc3(F.relu(self.fc2(x)))
