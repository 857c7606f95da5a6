"""What a run draws and in which order: samplers, collation, loaders, datasets."""
