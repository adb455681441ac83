"""Discrete Fourier transforms; they run on the host, by NumPy's pocketfft."""
