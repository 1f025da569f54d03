"""Units over several paths, back in order."""
