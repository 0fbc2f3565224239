"""What Chairlift's scheduler must show, as scenarios that print their figures; each also runs small in the tests."""
