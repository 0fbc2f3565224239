"""What the user may choose: frozen sections, resolved once. The only reader of environment variables."""
