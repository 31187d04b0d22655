"""calispan."""
