"""What becomes of every tensor, decided before anything is allocated."""
