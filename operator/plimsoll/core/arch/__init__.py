"""Model configurations read as ModelSpec."""
