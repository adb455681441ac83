"""Networks for images that torchvision lacks, as their state dicts are known, of PyTorch's layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class LeNet(nn.Module):
    """The network of PyTorch's tutorial on neural networks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Any) -> Any:
        for conv in (self.conv1, self.conv2):
            x = F.max_pool2d(F.relu(conv(x)), (2, 2))
        x = torch.flatten(x, 1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class VAE(nn.Module):
    """The autoencoder of PyTorch's examples; here it decodes the mean, without noise."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(784, 400), nn.Linear(400, 20), nn.Linear(400, 20)
        self.fc3, self.fc4 = nn.Linear(20, 400), nn.Linear(400, 784)

    def loss(self, x: Any) -> Any:
        h = F.relu(self.fc1(x))
        mu, logvar = self.fc21(h), self.fc22(h)
        made = torch.sigmoid(self.fc4(F.relu(self.fc3(mu))))
        divergence = torch.distributions.kl_divergence(
            torch.distributions.Normal(mu, (logvar / 2).exp()), torch.distributions.Normal(0.0, 1.0)
        )
        return F.binary_cross_entropy(made, x, reduction="sum") + divergence.sum()


class UNet(nn.Module):
    """The paper's figure, with the names of milesial's Pytorch-UNet."""

    def __init__(self, n_channels: int, n_classes: int, bilinear: bool, width: int) -> None:
        super().__init__()
        half = 2 if bilinear else 1
        sizes = [n_channels, *(width << k for k in range(4)), (width << 4) // half]
        for level in range(5):
            name = f"down{level}" if level else "inc"
            double = self._double(sizes[level], sizes[level + 1])
            holder = nn.Module()
            if level:
                holder.maxpool_conv = nn.ModuleList([nn.MaxPool2d(2), nn.Module()])
                holder.maxpool_conv[1].double_conv = double
            else:
                holder.double_conv = double
            self.add_module(name, holder)
        for k in range(1, 5):
            wide = width << (5 - k)
            holder = nn.Module()
            holder.up = nn.Module() if bilinear else nn.ConvTranspose2d(wide, wide // 2, 2, 2)
            holder.conv = nn.Module()
            out = wide // 2 // (half if k < 4 else 1)
            holder.conv.double_conv = self._double(wide, out, wide // half)
            self.add_module(f"up{k}", holder)
        self.outc = nn.Module()
        self.outc.conv = nn.Conv2d(width, n_classes, 1)
        self.bilinear = bilinear

    @staticmethod
    def _double(n_in: int, n_out: int, mid: int | None = None) -> Any:
        mid = n_out if mid is None or mid == n_in else mid
        pairs = [(n_in, mid), (mid, n_out)]
        return nn.Sequential(
            *(
                f
                for a, b in pairs
                for f in (nn.Conv2d(a, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())
            )
        )

    def forward(self, x: Any) -> Any:
        kept = [self.inc.double_conv(x)]
        for k in range(1, 5):
            down = getattr(self, f"down{k}").maxpool_conv
            kept.append(down[1].double_conv(down[0](kept[-1])))
        x = kept.pop()
        for k in range(1, 5):
            up, beside = getattr(self, f"up{k}"), kept.pop()
            if self.bilinear:
                x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)
            else:
                x = up.up(x)
            (h, w), (b, a) = beside.shape[2:], x.shape[2:]
            x = F.pad(x, [(w - a) // 2, (w - a + 1) // 2, (h - b) // 2, (h - b + 1) // 2])
            x = up.conv.double_conv(torch.cat([beside, x], 1))
        return self.outc.conv(x)
