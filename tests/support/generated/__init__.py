"""Trainings on several ranks, drawn from a seed, with faults planted in them, and what is true of each.

`cases` draws what a training is like, `blocks` and `program` run it, `communication` is all that ranks do together,
`planting` makes the faults, `choosing` says where they go, `dumping` makes the dumps of many cases in one group of
processes. `truth` and `judging` need no framework: what is true is read from the call stacks of the dump, in which the
line stands that made the fault, and from nothing of the search that is tested.
"""
