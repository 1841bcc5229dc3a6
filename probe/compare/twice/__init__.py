"""One program run two times: the first call whose bits differ, and what makes it so."""
