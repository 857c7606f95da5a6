"""Train the same `Task` with each training system as its documentation says: one file per system."""
