"""Long runs that try to knock a server over; docs/reliability.md has what they found and how to run them."""
