"""The primitives of the schedule language, one file per family."""
