"""U-Net: a path down to coarse features, a path up, and at every size the features of both side by side.

See: Ronneberger et al. 2015, U-Net: convolutional networks for biomedical image segmentation, figure 1.
"""

from __future__ import annotations

from stratal import nn
from stratal.models.vision.layers import scaled
from stratal.tensor.functions.shapes import concat
from stratal.tensor.tensor import Tensor

F = nn.functional


class DoubleConv(nn.Module):
    """Two 3x3 convolutions, each normalised and cut at zero. Shapes: [N, n_in, H, W] -> [N, n_out, H, W]."""

    def __init__(self, n_in: int, n_out: int, n_mid: int | None = None) -> None:
        super().__init__()
        mid = n_mid or n_out
        self.double_conv = nn.Sequential(
            nn.Conv2d(n_in, mid, 3, padding=1, bias=False), nn.BatchNorm2d(mid), nn.ReLU(inplace=True),
            nn.Conv2d(mid, n_out, 3, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU(inplace=True),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.double_conv(x)


class Down(nn.Module):
    """Halve height and width by maxima, then two convolutions."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), DoubleConv(n_in, n_out))

    def forward(self, x: Tensor) -> Tensor:
        return self.maxpool_conv(x)


class Up(nn.Module):
    """Double height and width, put features of that size before, then two convolutions."""

    def __init__(self, n_in: int, n_out: int, bilinear: bool) -> None:
        super().__init__()
        if bilinear:
            self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        else:
            self.up = nn.ConvTranspose2d(n_in, n_in // 2, 2, stride=2)
        self.conv = DoubleConv(n_in, n_out, n_in // 2 if bilinear else None)

    def forward(self, x: Tensor, skipped: Tensor) -> Tensor:
        x = self.up(x)
        # A size that is odd was rounded down on the way: zeros fill what is missing.
        borders = []
        for axis in (3, 2):
            missing = int(skipped.shape[axis]) - int(x.shape[axis])
            borders += [missing // 2, missing - missing // 2]
        x = F.pad(x, borders) if any(borders) else x
        return self.conv(concat([skipped, x], 1))


class UNet(nn.Module):
    """Four steps down from 64 channels to 1024, four steps up, a 1x1 convolution to classes.

    Up goes by transposed convolutions, or, with `bilinear`, by interpolation. In the paper convolutions are
    not padded, so that maps shrink, and nothing is normalised; this form, in use today, keeps the size.
    `width_mult` scales all channels.

    Shapes: [N, n_channels, H, W] -> [N, n_classes, H, W] logits; H and W are 16 or more.
    """

    def __init__(
        self, n_channels: int, n_classes: int, bilinear: bool = False, *, width_mult: float = 1.0
    ) -> None:
        super().__init__()
        self.n_channels, self.n_classes, self.bilinear = n_channels, n_classes, bilinear
        a, b, c, d, e = (scaled(64, width_mult) << k for k in range(5))
        half = 2 if bilinear else 1  # interpolation keeps channels, a transposed convolution halves them
        self.inc = DoubleConv(n_channels, a)
        self.down1 = Down(a, b)
        self.down2 = Down(b, c)
        self.down3 = Down(c, d)
        self.down4 = Down(d, e // half)
        self.up1 = Up(e, d // half, bilinear)
        self.up2 = Up(d, c // half, bilinear)
        self.up3 = Up(c, b // half, bilinear)
        self.up4 = Up(b, a, bilinear)
        self.outc = nn.Sequential({"conv": nn.Conv2d(a, n_classes, 1)})

    def forward(self, x: Tensor) -> Tensor:
        a = self.inc(x)
        b = self.down1(a)
        c = self.down2(b)
        d = self.down3(c)
        x = self.up1(self.down4(d), d)
        return self.outc(self.up4(self.up3(self.up2(x, c), b), a))
