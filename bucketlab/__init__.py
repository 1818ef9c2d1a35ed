"""BucketLab: where a DistributedDataParallel step's time goes, and which gradient buckets fit its link."""

__version__ = "0.1.0"
