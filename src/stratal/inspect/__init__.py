"""Viewers and measurements on top of everything else; nobody imports them."""
