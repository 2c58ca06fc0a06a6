"""What the loop can be told to try, one idea a file."""
