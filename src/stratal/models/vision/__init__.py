"""Networks that look at images; with torchvision's constructors and state dicts where it has the network."""
