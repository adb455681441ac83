"""Networks over graphs, given by their edges, and over trees."""
