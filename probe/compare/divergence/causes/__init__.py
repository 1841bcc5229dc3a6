"""The origin of a difference: calls on the way, reordered elements, settings of an optimizer."""
