"""What everything may import; imports nothing of ours."""
