"""Classes of videos: a convolutional network on every frame, a recurrent one over them."""

from __future__ import annotations

from collections.abc import Sequence

from stratal import nn
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.tensor.tensor import Tensor

F = nn.functional


class CNNLSTM(nn.Module):
    """Each frame goes through 3x3 convolutions with ReLU and pooling, and their mean over its places into an
    LSTM.

    Frames [N, T, in_channels, H, W] -> logits [N, num_classes] after the last frame; H and W are halved by
    each of the `channels`, so they are at least 2 ** len(channels). See: Donahue et al. 2015, figure 1
    (LRCN).
    """

    def __init__(
        self, num_classes: int, in_channels: int = 3, channels: Sequence[int] = (32, 64, 128),
        hidden_size: int = 128, num_layers: int = 1, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if not channels:
            raise AttributeValueError("CNNLSTM: there is at least one convolution", got="no channels")
        self.in_channels, self.least = in_channels, 2 ** len(channels)
        widths = [in_channels, *channels]
        self.convs = nn.ModuleList(
            [nn.Conv2d(widths[k], widths[k + 1], 3, padding=1) for k in range(len(channels))]
        )
        self.lstm = nn.LSTM(widths[-1], hidden_size, num_layers, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(hidden_size, num_classes)

    def forward(self, frames: Tensor) -> Tensor:
        _, steps, channels, *size = frames.shape if frames.ndim == 5 else (0,) * 5
        if steps == 0 or channels != self.in_channels or min(size) < self.least:
            raise ShapeError(
                f"CNNLSTM: takes frames [N, T, {self.in_channels}, H, W], H and W at least {self.least}",
                got=f"shape {list(frames.shape)}",
            )
        n, steps = frames.shape[:2]
        x = frames.reshape((n * steps, *frames.shape[2:]))
        for conv in self.convs:
            x = F.max_pool2d(F.relu(conv(x)), 2)
        outputs, _ = self.lstm(x.mean((2, 3)).reshape((n, steps, -1)))
        return self.fc(self.dropout(outputs[:, -1]))
