"""Records for contractions, convolutions and windows."""
