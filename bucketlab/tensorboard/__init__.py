"""BucketLab inside TensorBoard: a tab with the page of each run, and scalars and HParams of trials."""
