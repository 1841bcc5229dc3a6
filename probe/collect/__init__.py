"""From a hook's report to the journal of a step."""
