"""The backward of calls, over any framework whose gradient graph can be walked."""
