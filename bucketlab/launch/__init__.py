"""Starts a script under torchrun or the user's own launcher, watches it, stops it, and says why it failed."""
