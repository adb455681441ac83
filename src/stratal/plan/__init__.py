"""What was planned, for people and for files: the plan, explanations, and stages written out and fed back."""
