"""Who speaks: voices as unit vectors, and labels by their nearness."""
