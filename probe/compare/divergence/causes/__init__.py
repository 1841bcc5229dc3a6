"""Where a difference comes from: calls on the way, reordered elements, settings of an optimizer."""
