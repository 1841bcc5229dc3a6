"""One dump made of those of many ranks, among which tensor and pipeline parallelism split a model."""
