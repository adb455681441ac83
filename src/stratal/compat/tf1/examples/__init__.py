"""The place of TensorFlow's tutorials."""
