"""The version of Stratal, said once."""

VERSION = "0.1.0"
