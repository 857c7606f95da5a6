"""One file per training system; each trains the same `Task` the way its own documentation tells its users to."""
