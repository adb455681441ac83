"""The variational autoencoder: a code for each sample, drawn so that gradients pass.

See: Kingma and Welling 2013, Auto-encoding variational Bayes.
"""

from __future__ import annotations

from stratal import nn
from stratal.tensor.api.explained import explained
from stratal.tensor.functions.random import randn_like
from stratal.tensor.tensor import Tensor

F = nn.functional


class VAE(nn.Module):
    """A perceptron to the mean and the logarithm of the variance of a code, and one back from a draw of it.

    Shapes: [N, inputs], or anything of N times so many values in [0, 1] -> reconstruction [N, inputs], mean
    [N, latent], log variance [N, latent].
    """

    def __init__(self, inputs: int = 784, hidden: int = 400, latent: int = 20) -> None:
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc21 = nn.Linear(hidden, latent)
        self.fc22 = nn.Linear(hidden, latent)
        self.fc3 = nn.Linear(latent, hidden)
        self.fc4 = nn.Linear(hidden, inputs)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log variance of the code, each [N, latent], of samples [N, inputs]."""
        h = F.relu(self.fc1(x))
        return self.fc21(h), self.fc22(h)

    def reparameterize(self, mu: Tensor, logvar: Tensor) -> Tensor:
        """Draw mu + sigma * noise: gradients reach both. See: section 2.4."""
        return mu + randn_like(logvar) * (0.5 * logvar).exp()

    def decode(self, z: Tensor) -> Tensor:
        """Return values in (0, 1), [N, inputs], of codes [N, latent]."""
        return F.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mu, logvar = self.encode(x.flatten(1))
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


@explained
def vae_loss(reconstruction: Tensor, x: Tensor, mu: Tensor, logvar: Tensor, beta: float = 1.0) -> Tensor:
    """Return the negative evidence lower bound, summed over the batch.

    That is the cross-entropy of x, values in [0, 1], and `beta` times the divergence of N(mu, exp(logvar))
    from N(0, 1). See: appendix B; for beta Higgins et al. 2017.
    """
    entropy = F.binary_cross_entropy(reconstruction, x.flatten(1), reduction="sum")
    divergence = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum()
    return entropy + beta * divergence
