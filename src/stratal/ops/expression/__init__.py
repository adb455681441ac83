"""Ops that users write down as tensor expressions."""
