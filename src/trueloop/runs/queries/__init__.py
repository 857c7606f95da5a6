"""Questions about runs, answered from their journals; nothing else is needed, and nothing here is written to a run."""
