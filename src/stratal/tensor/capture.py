"""Capture: stand-in for the mutation counter."""

EPOCH = [0]


def note_mutation() -> None:
    """Tell compiled functions that a Python value they froze may have changed."""
    EPOCH[0] += 1
