"""The data of TensorFlow's first tutorial, by the digits that come with this package."""
