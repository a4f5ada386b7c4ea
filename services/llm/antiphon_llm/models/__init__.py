"""Model families: one file each over one decoder core, found through the registry."""
