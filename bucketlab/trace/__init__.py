"""Traces of torch.profiler as columns of integers, and what their events mean. Measures no overlap, needs no torch."""
