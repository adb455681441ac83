"""Models of texts: recurrent ones, encoders, decoders and both, and what continues a text."""
