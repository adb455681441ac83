"""Public calls whose graphs are known from earlier ones."""
