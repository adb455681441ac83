"""Audio: a recurrent network listens to the spectrogram of a synthesised sound: what does its pitch do?"""

import sys

import numpy as np

import stratal as st
from stratal import nn, optim

KINDS = ("stays", "rises", "falls", "trembles", "leaps up", "leaps down")
RATE, TIME = 8000, np.linspace(0, 1, 4096)


def sounds(count, rng):
    """Return sounds [count, samples] and their kinds."""
    kind = rng.integers(0, len(KINDS), count)
    trembling, leaping = 0.3 * np.sin(12 * np.pi * TIME), 1.0 * (TIME > 0.5)
    octaves = np.stack([0 * TIME, TIME, -TIME, trembling, leaping, -leaping])[kind]
    pitch = rng.uniform(300, 1200, (count, 1)) * 2 ** (rng.uniform(0.3, 1, (count, 1)) * octaves)
    wave = np.sin(2 * np.pi * np.cumsum(pitch, axis=1) / RATE)
    return (wave + rng.normal(0, 0.5, wave.shape)).astype(np.float32), kind


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.LayerNorm(129), nn.Linear(64, len(KINDS))
        self.lstm = nn.LSTM(129, 64, batch_first=True)

    def forward(self, wave):
        spectra = st.stft(wave, n_fft=256, hop_length=128, window=st.hann_window(256), return_complex=True)
        return self.head(self.lstm(self.norm(spectra.abs().log1p().mT))[0][:, -1])


def main(small=False):
    st.manual_seed(0)
    rng = np.random.default_rng(0)
    net = Listener()
    optimizer = optim.Adam(net.parameters(), lr=5e-3)

    @st.compile
    def step(wave, kind):
        loss = nn.functional.cross_entropy(net(wave), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for k in range(1, (80 if small else 500) + 1):
        loss = step(*sounds(64, rng))
        print(f"step {k}: loss {loss.item():.3f}", end="\n" if k % 20 == 0 else "\r")
    wave, kind = sounds(500, rng)
    accuracy = (net(st.tensor(wave)).argmax(1).numpy() == kind).mean()
    print(f"of new sounds it hears {accuracy:.1%} right")
    return accuracy


if __name__ == "__main__":
    main(small="--small" in sys.argv)
