"""The public face: tables of functions and methods, names, texts, devices."""
