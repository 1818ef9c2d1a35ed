"""Links: what joins ranks, what an all-reduce over it takes, and links that are not here as models. Knows no bucket."""
