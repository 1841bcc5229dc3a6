"""The configuration of the two monitors: every key is checked before anything is hooked."""
